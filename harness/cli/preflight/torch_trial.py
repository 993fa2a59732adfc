"""A trial of torch inside the judge's sandbox: that it can be imported there, and that `torch.compile` works.

It compiles for the device that the run uses: for a CPU with the C++ compiler, for a GPU with Triton and a C compiler.

`harness start` and `harness doctor` make it before any judge starts. That torch is installed is not enough: the
sandbox shows this Python's own directories only, and `torch.compile` needs a compiler and Python's headers there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from harness.errors import ConfigurationError
from harness.judge.devices.cuda_environment import device_nodes, runner_environment
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import Binds, launch
from harness.model.config import SandboxKind
from harness.workspace.files import atomic_write
from harness.workspace.sandbox_mounts import python_prefixes

COMPILES_WITHIN_S = 180.0
"""On a slow, cold disk the import alone takes a minute."""
_NO_IMPORT, _NO_COMPILE = 11, 12
_ANSWER = "torch trial: "
_LONGEST_REASON = 300
_OUTPUT_BYTES = 64 << 10
# Exceptions of torch.compile wrap the one that has the reason, such as the compiler's own words.
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
    """Device that a trial compiles for."""

    name: Literal["cpu", "cuda"] = "cpu"
    """As torch calls it."""
    nodes: tuple[str, ...] = ()
    """Device nodes that the sandbox shows."""
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def gpu(cls, ordinal: int) -> TrialDevice:
        """Return a GPU by its number among those that CUDA_VISIBLE_DEVICES shows, as its judge's runners see it."""
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
        number = visible[ordinal] if visible[0] and ordinal < len(visible) else str(ordinal)
        return cls("cuda", device_nodes(), runner_environment(number))


@dataclass(frozen=True)
class TorchTrial:
    """Result of a trial. A reason is None if that part worked."""

    no_import: str | None = None
    """Why torch cannot be imported inside the sandbox."""
    no_compile: str | None = None
    """Why `torch.compile` does not work there; None also where torch cannot be imported."""
    timed_out: bool = False
    """The trial was ended before it had an answer: nothing is known."""


def torch_version() -> str:
    """The version of torch that this Python has.

    Raises:
        ConfigurationError: it has none.
    """
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise ConfigurationError("torch is not installed", remedy="pip install torch") from error


def try_torch(kind: SandboxKind, device: TrialDevice, *, within_s: float) -> TorchTrial:
    """Import torch, and compile a small function, in a sandbox as the judge makes it.

    Args:
        kind: the sandbox.
        device: compile for it.
        within_s: end the trial after so many seconds.

    Raises:
        ConfigurationError: the sandbox cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-harness-trial-") as scratch, tempfile.TemporaryFile() as said:
        env = dict(device.env)
        if kind == "none":
            env |= {"TMPDIR": scratch, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor"}
            env |= {"TRITON_CACHE_DIR": f"{scratch}/triton"}
        sandbox = launch(
            kind,
            [sys.executable, "-I", "-B", "-c", _PROGRAM, device.name],
            binds=Binds(devices=device.nodes),
            # CUDA reserves more address space than a limit on it would allow.
            limits=SandboxLimits(address_space_bytes=None) if device.nodes else SandboxLimits(),
            env=env,
            stderr=said,
            cwd=Path(scratch),
        )
        try:
            code = sandbox.exit_signal_or_code(within_s)
        finally:
            sandbox.kill()
        text = os.pread(said.fileno(), _OUTPUT_BYTES, max(0, os.fstat(said.fileno()).st_size - _OUTPUT_BYTES))
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


def is_remembered(cache: Path, kind: SandboxKind, device: TrialDevice) -> bool:
    """Return whether the trial was made before with the same torch, Python, compilers and sandbox, and did not fail."""
    return _record(cache, kind, device).is_file()


def remember(cache: Path, kind: SandboxKind, device: TrialDevice) -> None:
    """Keep that the trial was made and did not fail. A cache that cannot be written is not used."""
    with suppress(ConfigurationError):
        atomic_write(_record(cache, kind, device), json.dumps(_circumstances(kind, device), indent=1))


def forget(cache: Path, kind: SandboxKind, device: TrialDevice) -> None:
    """Forget an earlier trial, since the present one has failed."""
    with suppress(OSError):
        _record(cache, kind, device).unlink(missing_ok=True)


def _record(cache: Path, kind: SandboxKind, device: TrialDevice) -> Path:
    key = json.dumps(_circumstances(kind, device), sort_keys=True)
    return cache / "torch-trials" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _circumstances(kind: SandboxKind, device: TrialDevice) -> dict[str, object]:
    """Everything that a trial's outcome depends on and that changes without a new machine."""
    return {
        "program": hashlib.sha256(_PROGRAM.encode()).hexdigest()[:16],
        "sandbox": [kind, _file(shutil.which("bwrap"))],
        "device": [device.name, *(_gpu() if device.name == "cuda" else ())],
        "torch": [torch_version(), _file(str(metadata.distribution("torch").locate_file("torch/version.py")))],
        "python": [sys.version, sys.executable, *map(str, python_prefixes())],
        "compilers": [_version(name) for name in (os.environ.get("CXX", "c++"), "g++", "gcc")],
    }


def _gpu() -> Sequence[object]:
    """The driver and Triton, which compile for a GPU."""
    driver, triton = Path("/proc/driver/nvidia/version"), ""
    with suppress(metadata.PackageNotFoundError):
        triton = metadata.version("triton")
    with suppress(OSError):
        return (triton, driver.read_text())
    return (triton,)


def _file(path: str | None) -> Sequence[object]:
    """A file's path, size and time: another one has others."""
    if path is None:
        return ()
    real = Path(path).resolve()
    with suppress(OSError):
        status = real.stat()
        return (str(real), status.st_size, status.st_mtime_ns)
    return (str(real),)


def _version(compiler: str) -> Sequence[object]:
    path = shutil.which(compiler)
    if path is None:
        return ()
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
        return (*_file(path), said.partition("\n")[0])
    return _file(path)
