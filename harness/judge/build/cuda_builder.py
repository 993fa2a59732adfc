"""Builds of CUDA C++ to cubins: of candidates in the builder's sandbox, and of the judge's own kernels without it."""

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
    files_of,
    runs,
)
from harness.judge.build.report import build_warnings, resources_of_cubin
from harness.judge.build.toolkit import Toolkit, find_toolkit
from harness.judge.isolation.resource_limits import GIB
from harness.model.config import SandboxKind
from harness.model.judging import BuildReport
from harness.model.launches import DeviceLimits, ResolvedPlan, resolve
from harness.model.plan import Launch, WorkspaceSpec
from harness.model.problem import Problem, ScalarInput, Workload
from harness.model.solution import Solution
from harness.runner import nvrtc
from harness.runner.cubin import MalformedCubinError, check_size
from harness.runner.wire import TRUSTED_KERNELS

_FORMAT = 1
_OPTIONS = ("-std=c++17", "-default-device")
_VERBOSE = "--ptxas-options=-v"
"""Adds the spills of each kernel to the log."""
_MAKES = ("kernel.cubin", "names.json")
_LOG = "compile.log"
PTX_NAME = "kernel.ptx"
_LOG_CHARACTERS = 1 << 20
_OPTIMISED = {9, 10, 12}
"""Major versions of compute capability with architecture-specific instructions (`sm_90a`)."""


@dataclass(frozen=True)
class SealedBuild:
    """A compiled sealed solution."""

    directory: Path
    """Directory with kernel.cubin and names.json."""
    plans: Mapping[str, ResolvedPlan]
    """Launch plan by uuid of the workload."""
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
        """Return the compiler's messages; "" if their file is missing or a symbolic link."""
        log = self.directory / _LOG
        return log.read_text(errors="replace")[:_LOG_CHARACTERS] if log.is_file() and not log.is_symlink() else ""


def architecture() -> str:
    """Return the architecture of the present GPU as NVRTC names it, such as `sm_90a`."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major in _OPTIMISED else ''}"


def device_limits() -> DeviceLimits:
    """Return the limits of the present GPU, or those of an H200 if there is none."""
    if not torch.cuda.is_available():
        return DeviceLimits()
    properties = torch.cuda.get_device_properties(0)
    shared_bytes = getattr(properties, "shared_memory_per_block_optin", DeviceLimits().shared_bytes)
    return DeviceLimits(shared_bytes=shared_bytes, sm_count=properties.multi_processor_count)


def plans_of(problem: Problem, solution: Solution) -> dict[str, ResolvedPlan]:
    """Return the launch plan of every workload with all expressions evaluated, by uuid.

    Args:
        problem: the problem.
        solution: a sealed solution.

    Raises:
        FormatError: the plan is malformed for a workload.
    """
    spec = solution.spec
    try:
        launches = tuple(Launch.model_validate(launch) for launch in spec.launch)
        spaces = {name: WorkspaceSpec.model_validate(space) for name, space in spec.workspaces.items()}
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FormatError(f"{where}: {first['msg']}", where="solution.yaml: launch or workspaces") from error
    for name, tensor in problem.definition.inputs.items():
        specs = [workload.inputs.get(name) for workload in problem.workloads]
        if tensor.shape is None and not all(isinstance(spec, ScalarInput) for spec in specs):
            raise FormatError(
                f"scalar `{name}` is drawn for every call; a launch plan needs its value before the calls"
            )

    def plan(workload: Workload) -> ResolvedPlan:
        sizes = problem.sizes(workload)
        return resolve(launches, spaces, problem.definition, sizes, workload.scalars, dict(spec.params), device)

    device = device_limits()
    return {workload.uuid: plan(workload) for workload in problem.workloads}


def build_cuda(problem: Problem, solution: Solution, *, cache_dir: Path, sandbox: SandboxKind) -> SealedBuild:
    """Compile a sealed solution for the present GPU, or take it from the cache.

    Args:
        problem: its constant axes become macros.
        solution: the solution.
        cache_dir: directory of the build cache.
        sandbox: kind of sandbox in which the compiler runs.

    Raises:
        BuildFailed: the compiler reported an error, took too long, or wrote too large an artefact.
        FormatError: the launch plan is malformed.
        ConfigurationError: NVRTC or its headers are missing.
    """
    plans = plans_of(problem, solution)
    kernels = sorted({launch.kernel for plan in plans.values() for launch in plan.launches})
    toolkit = find_toolkit()
    options = [*_OPTIONS, _VERBOSE, *defines(problem, solution.spec.params), *solution.spec.compile.flags]
    request = _request(toolkit, options, kernels)
    cached = cache_dir / "cubins" / content_key(solution, [_FORMAT, solution.spec.file, request])
    if _is_complete(cached):
        return SealedBuild(cached, plans, cached=True)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent, prefix="build-") as scratch:
        output = _compile(solution, request, toolkit, Path(scratch), sandbox)
        try:
            check_size((output / "kernel.cubin").read_bytes())
        except MalformedCubinError as error:
            raise BuildFailed(f"the compiled kernels cannot be loaded: {error}") from None
        (output / "sha256").write_text(_digest(output))
        shutil.rmtree(cached, ignore_errors=True)
        output.rename(cached)
    return SealedBuild(cached, plans, cached=False)


def _request(toolkit: Toolkit, options: list[str], kernels: list[str]) -> dict[str, object]:
    """Return a request to `nvrtc` without its source."""
    includes = [str(path) for path in toolkit.includes]
    request: dict[str, object] = {"library": str(toolkit.library), "includes": includes}
    return {**request, "architecture": architecture(), "options": options, "kernels": kernels}


def _digest(directory: Path) -> str:
    parts = [(directory / name).read_bytes() for name in _MAKES]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


def _is_complete(directory: Path) -> bool:
    index = directory / "sha256"
    return index.is_file() and index.read_text() == _digest(directory)


def _compile(
    solution: Solution, request: Mapping[str, object], toolkit: Toolkit, scratch: Path, sandbox: SandboxKind
) -> Path:
    def command(paths: BuildPaths) -> list[str]:
        return [*runs(nvrtc, sandbox), paths.request, paths.output]

    def full_request(paths: BuildPaths) -> object:
        return {**request, "source": f"{paths.sources}/{solution.spec.file}"}

    limits = build_limits(8 * GIB, processes=64)
    shown = (toolkit.library.parent, *toolkit.includes)
    compilation = Compilation(
        command, limits, BUILD_S, shown, _MAKES, (PTX_NAME,), _LOG, request=full_request, unusable_code=nvrtc.UNUSABLE
    )
    return compiled(files_of(solution), compilation, scratch, sandbox)


def trusted_cubin(cache: Path) -> bytes:
    """Return the cubin of the judge's own kernels for the present GPU, compiled once per cache directory.

    Raises:
        ConfigurationError: NVRTC cannot be used on this machine; the message has its output.
    """
    source = Path(nvrtc.__file__).with_name("trusted.cu")
    request = {**_request(find_toolkit(), list(_OPTIONS), list(TRUSTED_KERNELS)), "source": str(source)}
    name = hashlib.sha256(source.read_bytes() + json.dumps(request).encode()).hexdigest()[:16]
    cubin = cache / "native" / f"trusted-{name}.cubin"
    if not cubin.is_file():
        cubin.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cubin.parent) as scratch:
            (Path(scratch) / "request.json").write_text(json.dumps(request))
            command = [*runs(nvrtc, "none"), f"{scratch}/request.json", scratch]
            compilation = subprocess.run(command, check=False, capture_output=True, timeout=BUILD_S, text=True)
            if compilation.returncode:
                log = Path(scratch) / _LOG
                messages = log.read_text() if log.is_file() else compilation.stderr
                raise ConfigurationError(f"the judge's own kernels do not compile: {messages.strip()}")
            (Path(scratch) / "kernel.cubin").replace(cubin)
    return cubin.read_bytes()
