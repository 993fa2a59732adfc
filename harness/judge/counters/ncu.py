"""Run the judge's own launcher under Nsight Compute, in a sandbox like a runner's, at the lowest priority.

Sources: Nsight Compute CLI (options; the file of `--log-file` has the messages, which begin with `==`, and the table),
and https://developer.nvidia.com/ERR_NVGPUCTRPERM for the permission that it needs.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.judge.counters.metrics import CORE_METRICS, METRICS, ProfiledLaunch, parse_table
from harness.judge.devices.cuda_environment import device_nodes, runner_environment
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.isolation.sandbox import STAGE, Binds, launch, path_in_stage, runner_home, shown_already
from harness.model.config import SandboxKind

PROFILE_S = 20.0
"""Timeout of a profile, for all attempts together."""
MAX_LAUNCHES = 16
"""Launches of a call that are profiled."""
_LOG_BYTES = 4 << 20
_LOWEST_PRIORITY = 19
_START = "import sys; sys.path.insert(0, sys.argv[1]); from runner.profiled import main; main(sys.argv[2])"
_PERMISSION_FIX = (
    "let users read counters: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > "
    "/etc/modprobe.d/nvidia-profiler.conf, then load the driver again (or reboot). In a container this is set on its "
    "host. https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
_INSTALL = "install Nsight Compute (a part of the CUDA toolkit) and put ncu on the PATH"
_MESSAGES = {
    "ERR_NVGPUCTRPERM": ("the driver does not permit this user to read counters (ERR_NVGPUCTRPERM)", _PERMISSION_FIX),
    "driver resource was unavailable": (
        "another profiler or monitor (DCGM, for example) uses the counters of this GPU",
        "stop it, or pause it with `dcgmi profile --pause`",
    ),
    "No kernels were profiled": (
        "Nsight Compute found no launch",
        "run `ncu --version`: it may be older than the driver",
    ),
}
"""Part of a message of Nsight Compute -> (reason, fix). No other text of a message is reported."""


@dataclass(frozen=True)
class NcuResult:
    """NcuResult launches, or the reason for their absence and a fix."""

    launches: tuple[ProfiledLaunch, ...] = ()
    reason: str | None = None
    fix: str | None = None


@cache
def find_ncu() -> Path | None:
    """Return the path of the program with links resolved; None if Nsight Compute is not installed."""
    program = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    return Path(program).resolve() if program else None


def ncu_arguments(metrics: Sequence[str], log: str) -> list[str]:
    """Return options of Nsight Compute that flush caches before each pass and do not change clocks.

    Args:
        metrics: names of the metrics.
        log: path of the log file.
    """
    return [
        "--config-file", "off", "--target-processes", "application-only", "--profile-from-start", "off",
        "--replay-mode", "kernel", "--cache-control", "all", "--clock-control", "none",
        "--launch-count", str(MAX_LAUNCHES), "--metrics", ",".join(metrics),
        "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled", "--log-file", log,
    ]  # fmt: skip


def profile_request(stage: Path, *, device_id: str, sandbox: SandboxKind) -> NcuResult:
    """Profile the call that `stage/request.json` describes, whose paths are those of `path_in_stage`.

    Args:
        stage: directory with all files that the launcher reads.
        device_id: value of CUDA_VISIBLE_DEVICES for the GPU.
        sandbox: isolation of the process.
    """
    program = find_ncu()
    if program is None:
        return NcuResult(reason="Nsight Compute (ncu) is not installed on the judge's host", fix=_INSTALL)
    deadline = time.monotonic() + PROFILE_S
    metrics: tuple[str, ...] = METRICS
    for _ in range(3):
        text, code = _run(program, stage, metrics, device_id, sandbox, deadline - time.monotonic())
        launches = tuple(parse_table(text))
        if launches and any(launch.values for launch in launches):
            return NcuResult(launches)
        if code is None:
            return NcuResult(
                reason=f"Nsight Compute did not finish within {PROFILE_S:.0f} s",
                fix="profile a smaller workload, with --workload",
            )
        for words, (reason, fix) in _MESSAGES.items():
            if words in text:
                return NcuResult(reason=reason, fix=fix)
        metrics = _without_rejected(metrics, text)
    return NcuResult(
        reason=f"Nsight Compute ended with code {code} and no counters",
        fix="run `ncu --version` and `nvidia-smi`: it must be as new as the driver",
    )


def _run(
    program: Path, stage: Path, metrics: Sequence[str], device_id: str, sandbox: SandboxKind, within_s: float
) -> tuple[str, int | None]:
    """Return Nsight Compute's log and exit code; the code is None after a timeout."""
    output = stage.parent / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    confined = sandbox == "bubblewrap"
    request = path_in_stage(sandbox, stage, stage / "request.json")
    log = "/output/log" if confined else str(output / "log")
    target = [sys.executable, "-I", "-B", "-c", _START, runner_home(sandbox, stage.parent), request]
    with (stage.parent / "stderr").open("w+b") as messages:
        process = launch(
            sandbox,
            [str(program), *ncu_arguments(metrics, log), *target],
            binds=Binds(
                read_only={stage: STAGE, **{path: str(path) for path in _installation(program)}},
                writable={output: "/output"},
                devices=device_nodes(),
                tmp_bytes=GIB,
            ),
            limits=SandboxLimits(nice=_LOWEST_PRIORITY, address_space_bytes=None, memory_bytes=32 * GIB),
            env={**runner_environment(device_id), **({} if confined else {"HOME": str(output), "TMPDIR": str(output)})},
            stderr=messages,
            cwd=stage.parent,
        )
        code = process.exit_signal_or_code(max(within_s, 0.0))
        process.kill()
        text = os.pread(messages.fileno(), _LOG_BYTES, 0).decode(errors="replace")
    file = output / "log"
    if file.is_file() and not file.is_symlink():
        with file.open("rb") as opened:
            text = opened.read(_LOG_BYTES).decode(errors="replace") + "\n" + text
    return text, code


def _installation(program: Path) -> list[Path]:
    """Return the directories that Nsight Compute needs and that are not visible in every sandbox."""
    cuda_home = program.parent.parent if program.parent.name == "bin" else program.parent
    directories = [cuda_home, Path("/opt/nvidia/nsight-compute")]
    return [path for path in directories if path.is_dir() and path != Path("/") and not shown_already(path)]


def _without_rejected(metrics: Sequence[str], text: str) -> tuple[str, ...]:
    """Return the metrics that no message of Nsight Compute names, or those of every GPU if it names none."""
    messages = " ".join(line for line in text.splitlines() if line.startswith("=="))
    accepted = tuple(metric for metric in metrics if metric not in messages)
    return accepted if accepted and len(accepted) < len(metrics) else CORE_METRICS
