"""A trial of torch inside the judge's sandbox: checks that torch can be imported and that `torch.compile` works.

It compiles for the device that the run uses: for a CPU with the C++ compiler, for a GPU with Triton and a C compiler.

`harness start` and `harness doctor` run the trial before a judge starts. An installed torch is not sufficient: the
sandbox shows only the directories of this Python, and `torch.compile` needs a compiler and Python's headers there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from harness.cli.devices import shown_gpus
from harness.errors import ConfigurationError
from harness.judge.devices.cuda_environment import device_nodes, runner_environment
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import Binds, launch
from harness.model.config import SandboxKind
from harness.workspace.files import atomic_write
from harness.workspace.processes import output_of
from harness.workspace.sandbox_mounts import python_prefixes

TRIAL_TIMEOUT_S = 180.0
"""On a slow disk with cold caches, the import alone takes a minute."""
_NO_IMPORT, _NO_COMPILE = 11, 12
_ANSWER = "torch trial: "
_LONGEST_REASON = 300
_OUTPUT_BYTES = 64 << 10
# Exceptions of torch.compile wrap the exception with the reason, such as the compiler's output.
_PROGRAM = f"""
import sys


def end(code, error):
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    parts = [type(error).__name__, *lines[:1]]
    if "Output:" in lines:  # the compiler's
        parts += lines[lines.index("Output:") + 1:][:1]
    sys.stderr.write("{_ANSWER}" + ": ".join(parts) + chr(10))
    sys.stderr.flush()
    sys.exit(code)


try:
    import torch
    torch.ones(64) + 1
except BaseException as error:
    end({_NO_IMPORT}, error)
try:
    values = torch.ones(64, device=sys.argv[1])
    expected = (values + 1) * 2
    computed = torch.compile(lambda given: (given + 1) * 2, dynamic=True)(values)
    if not torch.equal(computed, expected):
        raise ValueError("the compiled function returns wrong values")
except BaseException as error:
    end({_NO_COMPILE}, error)
"""


@dataclass(frozen=True)
class TrialDevice:
    """The device that a trial compiles for."""

    name: Literal["cpu", "cuda"] = "cpu"
    """Torch's name of the device type."""
    nodes: tuple[str, ...] = ()
    """Device nodes that the sandbox shows."""
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def gpu(cls, ordinal: int) -> TrialDevice:
        """Return a GPU by its number among those that CUDA_VISIBLE_DEVICES shows, as its judge's runners see it."""
        shown = shown_gpus() or []
        number = shown[ordinal] if ordinal < len(shown) else str(ordinal)
        return cls("cuda", device_nodes(), runner_environment(number))


@dataclass(frozen=True)
class TorchTrial:
    """The result of a trial. A reason is None if that part succeeded."""

    no_import: str | None = None
    """The reason why torch cannot be imported inside the sandbox."""
    no_compile: str | None = None
    """The reason why `torch.compile` does not work there; None also if torch cannot be imported."""
    timed_out: bool = False
    """True if the trial was ended before it had a result."""


def torch_version() -> str:
    """Return the version of the installed torch.

    Raises:
        ConfigurationError: torch is not installed.
    """
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise ConfigurationError("torch is not installed", remedy="pip install torch") from error


def try_torch(kind: SandboxKind, device: TrialDevice, *, within_s: float) -> TorchTrial:
    """Import torch and compile a small function in a sandbox with the judge's settings.

    Args:
        within_s: timeout in seconds.

    Raises:
        ConfigurationError: the sandbox cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-harness-trial-") as scratch, tempfile.TemporaryFile() as stderr:
        env = dict(device.env)
        if kind == "none":
            env |= {"TMPDIR": scratch, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor"}
            env |= {"TRITON_CACHE_DIR": f"{scratch}/triton"}
        sandbox = launch(
            kind,
            [sys.executable, "-I", "-B", "-c", _PROGRAM, device.name],
            binds=Binds(devices=device.nodes),
            # CUDA reserves more address space than the limit allows.
            limits=SandboxLimits(address_space_bytes=None) if device.nodes else SandboxLimits(),
            env=env,
            stderr=stderr,
            cwd=Path(scratch),
        )
        try:
            code = sandbox.exit_signal_or_code(within_s)
        finally:
            sandbox.kill()
        text = os.pread(stderr.fileno(), _OUTPUT_BYTES, max(0, os.fstat(stderr.fileno()).st_size - _OUTPUT_BYTES))
    return _trial(code, text.decode(errors="replace"))


def _trial(code: int | None, text: str) -> TorchTrial:
    if code is None:
        return TorchTrial(timed_out=True)
    if code == 0:
        return TorchTrial()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    answers = [line.partition(_ANSWER)[2] for line in lines if line.startswith(_ANSWER)]
    reason = (answers or [*lines, f"it ended with {code}"])[-1][:_LONGEST_REASON]
    return TorchTrial(no_compile=reason) if code == _NO_COMPILE else TorchTrial(no_import=reason)


def remember(cache: Path, kind: SandboxKind, device: TrialDevice) -> None:
    """Store the success of a trial; a cache that cannot be written is ignored."""
    with suppress(ConfigurationError):
        atomic_write(success_record(cache, kind, device), json.dumps(_circumstances(kind, device), indent=1))


def success_record(cache: Path, kind: SandboxKind, device: TrialDevice) -> Path:
    """Return the file that exists if a trial with the same torch, Python, compilers and sandbox succeeded."""
    key = json.dumps(_circumstances(kind, device), sort_keys=True)
    return cache / "torch-trials" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _circumstances(kind: SandboxKind, device: TrialDevice) -> dict[str, object]:
    """Return all facts on which the result of a trial depends and that may change on one machine."""
    return {
        "program": hashlib.sha256(_PROGRAM.encode()).hexdigest()[:16],
        "sandbox": [kind, _file(shutil.which("bwrap"))],
        "device": [device.name, *(_gpu() if device.name == "cuda" else ())],
        "torch": [torch_version(), _file(str(metadata.distribution("torch").locate_file("torch/version.py")))],
        "python": [sys.version, sys.executable, *map(str, python_prefixes())],
        "compilers": [_version(name) for name in (os.environ.get("CXX", "c++"), "g++", "gcc")],
    }


def _gpu() -> Sequence[object]:
    """Return the versions of Triton and the driver, which compile for a GPU."""
    driver, triton = Path("/proc/driver/nvidia/version"), ""
    with suppress(metadata.PackageNotFoundError):
        triton = metadata.version("triton")
    with suppress(OSError):
        return (triton, driver.read_text())
    return (triton,)


def _file(path: str | None) -> Sequence[object]:
    """Return a file's path, size and modification time, which identify its version."""
    if path is None:
        return ()
    real = Path(path).resolve()
    with suppress(OSError):
        status = real.stat()
        return (str(real), status.st_size, status.st_mtime_ns)
    return (str(real),)


def _version(compiler: str) -> Sequence[object]:
    version = output_of(compiler, "--version") or ""
    return (*_file(shutil.which(compiler)), version.partition("\n")[0])
