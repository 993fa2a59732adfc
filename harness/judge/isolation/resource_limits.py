"""Limits of a sandbox: resource limits, and control groups where this process may write them.

The limits are set on the sandbox's first process before its first instruction, so that every process in the sandbox
inherits them. No process in it can raise them, because the limits are hard and the sandbox has no capabilities.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1 << 30
_CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "kernel-harness-"
_AFTER_SIGXCPU_S = 5


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one sandbox; None is no limit.

    `address_space_bytes` must be None for a device whose driver reserves much address space, as CUDA does.
    """

    cpus: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    """Processors of the sandbox, which it cannot change."""
    nice: int = 0
    """Niceness. A negative one needs root, and keeps other programs off the measured processor."""
    address_space_bytes: int | None = 16 * GIB
    memory_bytes: int | None = 8 * GIB
    """Memory of all processes together; enforced only where a memory control group can be created."""
    file_bytes: int = 64 << 20
    open_files: int = 1024
    processes: int = 512
    cpu_s: int | None = None
    """Processor seconds of each process, after which it gets SIGXCPU, and SIGKILL `_AFTER_SIGXCPU_S` seconds later."""


def apply_limits(pid: int, limits: SandboxLimits) -> None:
    """Limit a process and every process that it will start.

    Args:
        pid: of the process.
        limits: all but `memory_bytes`, which `join_cgroups` applies.
    """
    os.sched_setaffinity(pid, limits.cpus)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, limits.nice)
    if limits.cpu_s is not None:
        resource.prlimit(pid, resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + _AFTER_SIGXCPU_S))
    bounds = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes),  # the kernel does not enforce it for uid 0; the control group does
        (resource.RLIMIT_MEMLOCK, 64 << 20),
    ]
    if limits.address_space_bytes is not None:
        bounds.append((resource.RLIMIT_AS, limits.address_space_bytes))
    for kind, value in bounds:
        _, hard = resource.prlimit(pid, kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # noqa: PLW2901 - never raise a limit
        resource.prlimit(pid, kind, (value, value))
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("800")  # without memory, the kernel kills the candidate first


def _own_group(controller: str) -> Path | None:
    """Return this process's group of a controller of version 1, or of version 2 for ""; None if there is none."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (controller or not controllers):
            for root in (_CGROUPS / controller, _CGROUPS / "unified", _CGROUPS):
                group = root / path.lstrip("/")
                if (group / "cgroup.procs").is_file():
                    return group
    return None


def _settings(limits: SandboxLimits) -> Iterator[tuple[Path | None, dict[str, str]]]:
    memory = str(limits.memory_bytes) if limits.memory_bytes is not None else None
    yield _own_group("pids"), {"pids.max": str(limits.processes)}
    if memory:
        yield _own_group("memory"), {"memory.limit_in_bytes": memory}
    yield _own_group(""), {"pids.max": str(limits.processes)} | ({"memory.max": memory} if memory else {})


def join_cgroups(pid: int, limits: SandboxLimits, name: str) -> tuple[Path, ...]:
    """Move a process into new control groups with these limits. Return the groups, for `remove_cgroups`.

    If no group can be created (without root and delegation), only the resource limits apply. A group of version 2 also
    has a freezer (harness/judge/isolation/cgroup_freezer.py).

    Args:
        pid: of the process.
        limits: of its sandbox; the groups limit processes and memory.
        name: distinguishes the groups of this process's sandboxes.
    """
    groups: list[Path] = []
    for parent, values in _settings(limits):
        if parent is None:
            continue
        _remove_left_behind(parent)
        group = parent / f"{_PREFIX}{os.getpid()}-{name}"
        try:
            group.mkdir()
            groups.append(group)
            for key, value in values.items():
                _limit(group / key, value)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            if groups and groups[-1] == group:
                remove_cgroups((groups.pop(),))
    return tuple(groups)


def _limit(file: Path, value: str) -> None:
    """Write one limit. Ignore a missing controller of a group of version 2, which still has a freezer."""
    if file.exists() or not (file.parent / "cgroup.freeze").exists():
        file.write_text(value)


def _remove_left_behind(parent: Path) -> None:
    """Remove groups of judges that were killed. They are empty, because a sandbox ends with its judge."""
    for group in parent.glob(f"{_PREFIX}*"):
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def reached_memory_limit(groups: tuple[Path, ...]) -> bool | None:
    """Return true if a control group reached its memory limit; None if no group has one."""
    for group in groups:
        with contextlib.suppress(OSError, ValueError):
            return int((group / "memory.failcnt").read_text()) > 0  # version 1
        with contextlib.suppress(OSError):
            events = (group / "memory.events").read_text().split()  # version 2: names and numbers alternate
            return any(number != "0" for name, number in zip(events[::2], events[1::2], strict=True) if name == "max")
    return None


def remove_cgroups(groups: tuple[Path, ...]) -> None:
    """Remove groups whose processes have ended."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
