"""Limits of a sandbox: resource limits, and control groups where this process may write them.

SandboxLimits are set on the sandbox's first process while it is held before its first instruction, so that everything
born in it inherits them and nothing in it can raise them (no capability, hard limits).
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
    """Bounds of one sandbox. None is no bound.

    `address_space_bytes` must be None where a device reserves huge address space (CUDA does).
    """

    cpus: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    """The processors it runs on; it cannot change them."""
    nice: int = 0
    """Below 0 only where this process may (root): keeps other programs off the measured processor."""
    address_space_bytes: int | None = 16 * GIB
    memory_bytes: int | None = 8 * GIB
    """Of all processes together; holds only where a memory control group can be made."""
    file_bytes: int = 64 << 20
    open_files: int = 1024
    processes: int = 512
    cpu_s: int | None = None
    """Of each process: SIGXCPU then, and SIGKILL some seconds later."""


def apply_limits(pid: int, limits: SandboxLimits) -> None:
    """Bound process `pid` and everything it will start."""
    os.sched_setaffinity(pid, limits.cpus)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, limits.nice)
    if limits.cpu_s is not None:
        resource.prlimit(pid, resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + _AFTER_SIGXCPU_S))
    bounds = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes),  # not enforced for uid 0, hence the control group
        (resource.RLIMIT_MEMLOCK, 64 << 20),
    ]
    if limits.address_space_bytes is not None:
        bounds.append((resource.RLIMIT_AS, limits.address_space_bytes))
    for kind, value in bounds:
        _, hard = resource.prlimit(pid, kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # noqa: PLW2901 - never upwards
        resource.prlimit(pid, kind, (value, value))
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("800")  # when memory runs out the candidate goes first


def _own_group(controller: str) -> Path | None:
    """This process's group of a v1 `controller`, or its v2 group for controller ''."""
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
    """Move `pid` into fresh control groups with these limits; the groups made, for `remove_cgroups`.

    Where none can be made (no root, no delegation) the resource limits hold alone. A group of version 2 also has a
    freezer (harness/judge/isolation/cgroup_freezer.py).
    """
    made: list[Path] = []
    for parent, values in _settings(limits):
        if parent is None:
            continue
        _remove_left_behind(parent)
        group = parent / f"{_PREFIX}{os.getpid()}-{name}"
        try:
            group.mkdir()
            made.append(group)
            for key, value in values.items():
                _limit(group / key, value)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            if made and made[-1] == group:
                remove_cgroups((made.pop(),))
    return tuple(made)


def _limit(file: Path, value: str) -> None:
    """Write one limit. A group of version 2 that has not this controller is of use for its freezer."""
    if file.exists() or not (file.parent / "cgroup.freeze").exists():
        file.write_text(value)


def _remove_left_behind(parent: Path) -> None:
    """Groups of judges that were killed: empty by now, since sandboxes die with their judge."""
    for group in parent.glob(f"{_PREFIX}*"):
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def reached_memory_limit(groups: tuple[Path, ...]) -> bool | None:
    """Return whether control groups met their limit of memory; None where none of them limits it."""
    for group in groups:
        with contextlib.suppress(OSError, ValueError):
            return int((group / "memory.failcnt").read_text()) > 0  # version 1
        with contextlib.suppress(OSError):
            events = (group / "memory.events").read_text().split()  # version 2: names and numbers in turn
            return any(number != "0" for name, number in zip(events[::2], events[1::2], strict=True) if name == "max")
    return None


def remove_cgroups(groups: tuple[Path, ...]) -> None:
    """Remove groups whose processes are gone."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
