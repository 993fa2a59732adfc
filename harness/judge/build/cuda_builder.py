"""From CUDA C++ to a cubin: a candidate's in the builder's sandbox, the judge's own kernels beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import load_json_file
from harness.judge.build.builder import (
    BUILD_S,
    BuildFailed,
    BuildPaths,
    Compilation,
    build_limits,
    compiled,
    content_key,
    defines,
    runs,
)
from harness.judge.build.kernel_resources import resources_of_cubin
from harness.judge.build.toolkit import Toolkit, find_toolkit
from harness.judge.build.warnings import build_warnings
from harness.judge.isolation.resource_limits import GIB
from harness.model.checking import BuildReport
from harness.model.config import SandboxKind
from harness.model.launches import DeviceLimits, ResolvedPlan, resolve
from harness.model.plan import Launch, WorkspaceSpec
from harness.model.problem import Problem, ScalarInput, Workload
from harness.model.solution import Solution
from harness.runner import nvrtc
from harness.runner.module_variables import MalformedCubinError, check_size
from harness.runner.wire import TRUSTED_KERNELS

_FORMAT = 1
_OPTIONS = ("-std=c++17", "-default-device")
_VERBOSE = "--ptxas-options=-v"
"""The log then has the spills of each kernel."""
_MAKES = ("kernel.cubin", "names.json")
_LOG = "compile.log"
PTX_NAME = "kernel.ptx"
_LOG_CHARACTERS = 1 << 20
_OPTIMISED = {9, 10, 12}
"""Major versions of compute capability that have instructions of their own (`sm_90a`)."""


@dataclass(frozen=True)
class SealedBuild:
    """A compiled sealed solution: a directory with kernel.cubin and names.json, and by workload its plan in numbers."""

    directory: Path
    plans: Mapping[str, ResolvedPlan]
    cached: bool

    @property
    def report(self) -> BuildReport:
        """Warnings, and registers, shared memory and spills of each kernel."""
        messages = self._messages()
        symbols: dict[str, str] = load_json_file(self.directory / "names.json")["symbols"]
        names = {symbol: name for name, symbol in symbols.items()}
        kernels = resources_of_cubin((self.directory / "kernel.cubin").read_bytes(), names, messages)
        return BuildReport(warnings=build_warnings(messages), kernels=kernels)

    def _messages(self) -> str:
        """The compiler's messages. A symbolic link in the place of their file is not followed."""
        log = self.directory / _LOG
        return log.read_text(errors="replace")[:_LOG_CHARACTERS] if log.is_file() and not log.is_symlink() else ""


def architecture() -> str:
    """Of the device at hand, as NVRTC names it."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major in _OPTIMISED else ''}"


def device_limits() -> DeviceLimits:
    """Of the device at hand; those of an H200 where there is none."""
    if not torch.cuda.is_available():
        return DeviceLimits()
    facts = torch.cuda.get_device_properties(0)
    shared_bytes = getattr(facts, "shared_memory_per_block_optin", DeviceLimits().shared_bytes)
    return DeviceLimits(shared_bytes=shared_bytes, sm_count=facts.multi_processor_count)


def plans_of(problem: Problem, solution: Solution) -> dict[str, ResolvedPlan]:
    """The launch plan of every workload, in numbers.

    Raises:
        FormatError: the plan is malformed for one of them.
    """
    spec = solution.spec
    try:
        launches = tuple(Launch.model_validate(one) for one in spec.launch)
        spaces = {name: WorkspaceSpec.model_validate(one) for name, one in spec.workspaces.items()}
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FormatError(f"{where}: {first['msg']}", where="solution.yaml: launch or workspaces") from error
    for name, tensor in problem.definition.inputs.items():
        given = [workload.inputs.get(name) for workload in problem.workloads]
        if tensor.shape is None and not all(isinstance(one, ScalarInput) for one in given):
            raise FormatError(f"scalar `{name}` is drawn for every call; a launch plan has its numbers beforehand")

    def plan(workload: Workload) -> ResolvedPlan:
        scalars = {name: given.value for name, given in workload.inputs.items() if isinstance(given, ScalarInput)}
        return resolve(
            launches, spaces, problem.definition, problem.sizes(workload), scalars, dict(spec.params), device
        )

    device = device_limits()
    return {workload.uuid: plan(workload) for workload in problem.workloads}


def build_cuda(problem: Problem, solution: Solution, *, cache_dir: Path, sandbox: SandboxKind) -> SealedBuild:
    """Compile a sealed solution for the device at hand, or take it from the cache.

    Raises:
        BuildFailed: the compiler said no, took too long, or made too much.
        FormatError: the launch plan is malformed.
        ConfigurationError: NVRTC or its headers are missing.
    """
    plans = plans_of(problem, solution)
    kernels = sorted({launch.kernel for plan in plans.values() for launch in plan.launches})
    toolkit = find_toolkit()
    options = [*_OPTIONS, _VERBOSE, *defines(problem, solution.spec.params), *solution.spec.compile.flags]
    request = {
        "library": str(toolkit.library),
        "includes": [str(path) for path in toolkit.includes],
        "architecture": architecture(),
        "options": options,
        "kernels": kernels,
    }
    kept = cache_dir / "cubins" / content_key(solution, [_FORMAT, solution.spec.file, request])
    if _whole(kept):
        return SealedBuild(kept, plans, cached=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="build-") as scratch:
        made = _compile(solution, request, toolkit, Path(scratch), sandbox)
        try:
            check_size((made / "kernel.cubin").read_bytes())
        except MalformedCubinError as error:
            raise BuildFailed(f"the compiled kernels cannot be loaded: {error}") from None
        (made / "sha256").write_text(_digest(made))
        shutil.rmtree(kept, ignore_errors=True)
        made.rename(kept)
    return SealedBuild(kept, plans, cached=False)


def _digest(directory: Path) -> str:
    parts = [(directory / name).read_bytes() for name in _MAKES]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


def _whole(directory: Path) -> bool:
    index = directory / "sha256"
    return index.is_file() and index.read_text() == _digest(directory)


def _compile(
    solution: Solution, request: Mapping[str, object], toolkit: Toolkit, scratch: Path, sandbox: SandboxKind
) -> Path:
    def command(paths: BuildPaths) -> list[str]:
        return [*runs(nvrtc, sandbox), paths.request, paths.output]

    def whole(paths: BuildPaths) -> object:
        return {**request, "source": f"{paths.sources}/{solution.spec.file}"}

    limits = build_limits(8 * GIB, processes=64)
    shown = (toolkit.library.parent, *toolkit.includes)
    compilation = Compilation(
        command, limits, BUILD_S, shown, _MAKES, (PTX_NAME,), _LOG, request=whole, unusable_code=nvrtc.UNUSABLE
    )
    return compiled(solution, compilation, scratch, sandbox)


def trusted_cubin(cache: Path) -> bytes:
    """The judge's own kernels for the device at hand, compiled once.

    Raises:
        ConfigurationError: NVRTC cannot be used here; the message is its own.
    """
    source = Path(nvrtc.__file__).with_name("trusted.cu")
    toolkit = find_toolkit()
    request = {
        "library": str(toolkit.library),
        "includes": [str(path) for path in toolkit.includes],
        "source": str(source),
        "architecture": architecture(),
        "options": list(_OPTIONS),
        "kernels": list(TRUSTED_KERNELS),
    }
    name = hashlib.sha256(source.read_bytes() + json.dumps(request).encode()).hexdigest()[:16]
    kept = cache / "native" / f"trusted-{name}.cubin"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            (Path(scratch) / "request.json").write_text(json.dumps(request))
            command = [*runs(nvrtc, "none"), f"{scratch}/request.json", scratch]
            done = subprocess.run(command, check=False, capture_output=True, timeout=BUILD_S, text=True)
            if done.returncode:
                log = Path(scratch) / _LOG
                said = log.read_text() if log.is_file() else done.stderr
                raise ConfigurationError(f"the judge's own kernels do not compile: {said.strip()}")
            (Path(scratch) / "kernel.cubin").replace(kept)
    return kept.read_bytes()
