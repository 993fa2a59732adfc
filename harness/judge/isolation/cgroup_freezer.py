"""The kernel's freezer (control groups, version 2): keeps a stopped sandbox stopped whatever signal arrives.

A thread of a frozen group does not return to its own code, whoever sends it SIGCONT. A group of threads that are all
stopped by SIGSTOP counts as frozen at once, none of them is given a processor for it, and it is stopped, not running,
when the group is thawed (linux/kernel/cgroup/freezer.c). So freezing costs a write and a read, after the clock.

Source: Documentation/admin-guide/cgroup-v2.rst, `cgroup.freeze` and `cgroup.events`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.judge.isolation.resource_limits import SandboxLimits, join_cgroups, remove_cgroups

_TRIAL_S = 1.0


@dataclass(frozen=True)
class GroupFreezer:
    """The freezer of one control group. `switch` is its open `cgroup.freeze`."""

    switch: int
    _events: int

    @classmethod
    def of(cls, groups: Sequence[Path]) -> GroupFreezer | None:
        """Open the freezer of the first group that has one."""
        for group in groups:
            try:
                switch = os.open(group / "cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                return cls(switch, os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                os.close(switch)
        return None

    def freeze(self, deadline_s: float) -> bool:
        """Freeze the group, and return whether all of it was frozen by the deadline."""
        end = time.monotonic() + deadline_s
        os.pwrite(self.switch, b"1", 0)
        while not self.is_frozen():
            if time.monotonic() > end:
                return False
        return True

    def thaw(self) -> None:
        """Let the group run, but for what signals have stopped."""
        os.pwrite(self.switch, b"0", 0)

    def is_frozen(self) -> bool:
        """Return whether every thread of the group is frozen."""
        return b"frozen 1" in os.pread(self._events, 256, 0)

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.switch)
        os.close(self._events)


def freezer_works() -> bool:
    """Freeze a process of our own and thaw it: only a freezer that does both is used."""
    with subprocess.Popen(["/bin/sleep", "60"], stdin=subprocess.DEVNULL) as trial:
        groups = join_cgroups(trial.pid, SandboxLimits(), f"trial-{uuid.uuid4().hex[:12]}")
        freezer = GroupFreezer.of(groups)
        try:
            if freezer is None:
                return False
            frozen = freezer.freeze(_TRIAL_S)
            freezer.thaw()
            return frozen and not freezer.is_frozen()
        except OSError:
            return False
        finally:
            if freezer is not None:
                with contextlib.suppress(OSError):
                    freezer.thaw()
                freezer.close()
            trial.kill()
            trial.wait()
            remove_cgroups(groups)
