"""The kernel's freezer (control groups, version 2), which keeps a stopped sandbox stopped whatever signal arrives.

A thread of a frozen group does not return to its own code, even after SIGCONT. A group whose threads are all stopped by
SIGSTOP is frozen at once, and no thread is given a processor for that. When the group is thawed, the threads are
stopped and not running (linux/kernel/cgroup/freezer.c). Freezing therefore costs one write and one read, outside the
timed section.

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
        """Open the freezer of the first group that has one; None if no group has."""
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
        """Freeze the group. Return true if every thread was frozen within `deadline_s` seconds."""
        end = time.monotonic() + deadline_s
        os.pwrite(self.switch, b"1", 0)
        while not self.is_frozen():
            if time.monotonic() > end:
                return False
        return True

    def thaw(self) -> None:
        """Thaw the group. Threads that SIGSTOP has stopped remain stopped."""
        os.pwrite(self.switch, b"0", 0)

    def is_frozen(self) -> bool:
        """Return true if every thread of the group is frozen."""
        return b"frozen 1" in os.pread(self._events, 256, 0)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.switch)
        os.close(self._events)


def freezer_works() -> bool:
    """Return true if this machine's freezer can freeze and thaw a process that is started for this trial."""
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
