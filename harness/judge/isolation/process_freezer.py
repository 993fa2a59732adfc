"""Stopping every process of a sandbox, and knowing that they are stopped.

SIGSTOP alone proves nothing: a thread may still be running, and processes of the sandbox could continue each other.
The proof here is two looks in a row that agree: the same threads, each in state T, none of which has been given the
processor in between (its count of time slices is unchanged). Then at the moment between the looks all were stopped
at once, and nothing in the sandbox can wake anything; only the judge, outside, can.

A proved stop can still end: the kernel itself sends SIGCONT for a process that has asked for it (a timer, an
asynchronous descriptor). The system-call filter refuses the known ways to ask. Where the kernel has a freezer, the
sandbox is frozen until just before the clock (cgroup_freezer.py). And `check_still_stopped` detects every way: a thread
that has run since the proof has been given another time slice. The native exchange compares that count once more, just
before the clock.

Fast path: the sandbox's own /proc, opened once before any untrusted code ran, lists its processes, and each is read
through descriptors kept open. Measured on a two-core VM: see docs/performance.md.
"""

# ruff: noqa: PTH115, PTH123, PTH208 - descriptors and plain strings: this runs inside the timed section
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.judge.isolation.cgroup_freezer import GroupFreezer
from harness.judge.native import Process

MAX_PROCESSES = 64
"""More are a fork bomb."""
_FREEZE_S = 1.0


class FreezeError(Exception):
    """The sandbox did not come to a stop; `reason` is one line for the verdict."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EndedWhileStopped(FreezeError):  # noqa: N818 - an outcome
    """A process of the sandbox ended although it was stopped."""


@dataclass
class _SandboxProcess:
    """One process of the sandbox, held by descriptors so that a reused id is never mistaken for it."""

    pid: int
    pidfd: int
    directory: int
    stat: int
    schedstat: int
    task: int = -1
    threads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Descriptors of stat and schedstat of each thread that was seen; a reused number has others."""

    @classmethod
    def open(cls, pid: int) -> _SandboxProcess | None:
        opened: list[int] = []
        try:
            opened.append(os.pidfd_open(pid))
            opened.append(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY))
            opened.append(os.open("stat", os.O_RDONLY, dir_fd=opened[1]))
            opened.append(os.open("schedstat", os.O_RDONLY, dir_fd=opened[1]))
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            return None
        pidfd, directory, stat, schedstat = opened
        return cls(pid, pidfd, directory, stat, schedstat)

    def close(self) -> None:
        for descriptor in (self.pidfd, self.directory, self.stat, self.schedstat):
            os.close(descriptor)
        for name in list(self.threads):
            self._forget(name)
        if self.task >= 0:
            os.close(self.task)

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def look(self) -> tuple[bool, object]:
        """(is every thread stopped or dead, what must not change until the next look)."""
        try:
            fields = _stat_fields(os.pread(self.stat, 1024, 0))
            if fields[17] == b"1":
                return fields[0] in b"TZX", os.pread(self.schedstat, 128, 0)
        except ProcessLookupError:
            return True, None  # gone
        try:
            return self._look_at_threads()
        except (ProcessLookupError, FileNotFoundError):
            return False, None  # a thread has just ended: something ran

    def _look_at_threads(self) -> tuple[bool, object]:
        """Each through descriptors that stay open: opening and closing 40 files takes longer than the stop itself."""
        if self.task < 0:
            self.task = os.open("task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.directory)
        names = os.listdir(self.task)
        for gone in self.threads.keys() - set(names):
            self._forget(gone)
        looks = [(name, *self._look_at(name)) for name in names]
        return all(state in b"TZX" for _, state, _ in looks), tuple((name, slices) for name, _, slices in looks)

    def _look_at(self, name: str) -> tuple[bytes, bytes]:
        """State and time slices of a thread.

        Raises:
            ProcessLookupError, FileNotFoundError: it has ended since it was listed.
        """
        if name in self.threads:
            with contextlib.suppress(ProcessLookupError):
                return self._read(name)
            self._forget(name)  # another thread has its number now
        stat = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=self.task)
        try:
            self.threads[name] = stat, os.open(f"{name}/schedstat", os.O_RDONLY, dir_fd=self.task)
        except OSError:
            os.close(stat)
            raise
        return self._read(name)

    def _read(self, name: str) -> tuple[bytes, bytes]:
        stat, schedstat = self.threads[name]
        return _stat_fields(os.pread(stat, 1024, 0))[0], os.pread(schedstat, 128, 0)

    def _forget(self, name: str) -> None:
        for descriptor in self.threads.pop(name):
            os.close(descriptor)


def _counters(looks: Iterable[tuple[bool, object]]) -> tuple[int, int]:
    """(Processor time in ns, time slices) over all threads, from lines of schedstat."""
    cpu_ns = slices = 0
    for _, seen in looks:
        lines = [seen] if isinstance(seen, bytes) else [line for _, line in seen] if isinstance(seen, tuple) else []
        for line in lines:
            on, _, count = line.split()
            cpu_ns, slices = cpu_ns + int(on), slices + int(count)
    return cpu_ns, slices


def _stat_fields(line: bytes) -> list[bytes]:
    """/proc/PID/stat from its third field, the state: the name before it may hold anything."""
    return line[line.rindex(b")") + 2 :].split()


@dataclass
class Herd:
    """The processes of one sandbox, as the judge stops and continues them.

    `namespace` is the inode of its pid namespace; None without bubblewrap, where the session of `first` stands in.
    """

    first: int
    namespace: str | None
    runner: int
    """The runner's process id on this host; without bubblewrap `first` itself."""
    freezer: GroupFreezer | None = None
    """Freezes the sandbox whenever its stop has been proved; None where the kernel offers none."""
    _listing: int = -1
    _listed: frozenset[str] = frozenset()
    _processes: dict[int, _SandboxProcess] = field(default_factory=dict)
    _first_in_line: bool = False
    _proof: tuple[int, int] | None = None
    """Counters of the last proved stop, over all threads: (processor time in ns, time slices); None while it runs."""

    @classmethod
    def of(cls, first: int, *, isolated: bool, freezer: GroupFreezer | None = None) -> Herd:
        """The herd of a sandbox that has started its command and has run nothing untrusted yet.

        `freezer`, if any, is closed with the herd.

        Raises:
            FreezeError: it has ended, and its process id may be another's: nothing of the host is ever stopped.
        """
        namespace = os.readlink(f"/proc/{first}/ns/pid") if isolated else None
        if namespace == os.readlink("/proc/self/ns/pid"):
            raise FreezeError("the sandbox ended before it began")
        herd = cls(first, namespace, first, freezer)
        herd._gather()
        if isolated:
            herd.runner = next(pid for pid in herd._processes if pid != first)
            herd._listing = os.open(f"/proc/{herd.runner}/root/proc", os.O_RDONLY | os.O_DIRECTORY)
            herd._listed = herd._names()
        return herd

    def _names(self) -> frozenset[str]:
        os.lseek(
            self._listing, 0, os.SEEK_SET
        )  # the native exchange reads through this descriptor too, and leaves its end
        return frozenset(name for name in os.listdir(self._listing) if name.isdigit())

    def _members(self) -> list[int]:
        """Every process of the sandbox, found by a walk over this host's /proc."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                if self.namespace is not None:
                    mine = os.readlink(f"/proc/{name}/ns/pid") == self.namespace
                else:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        mine = int(_stat_fields(file.read())[3]) == self.first
                if mine:
                    found.append(int(name))
        return found

    def _gather(self) -> bool:
        """Bring the known processes up to date; whether any is new."""
        members = self._members()
        new = [pid for pid in members if pid not in self._processes]
        for pid in set(self._processes) - set(members):
            self._processes.pop(pid).close()
        for pid in new:
            process = _SandboxProcess.open(pid)
            if process is not None:
                self._processes[pid] = process
        if len(self._processes) > MAX_PROCESSES:
            raise FreezeError(f"more than {MAX_PROCESSES} processes in the sandbox")
        return bool(new)

    def has_grown(self) -> bool:
        """Without bubblewrap: whether there are processes now that a stop of the known ones did not reach."""
        return self._listing < 0 and self._gather()

    def _up_to_date(self) -> bool:
        """Return true if there is no process that has not been looked at; gathers when there is."""
        if self._listing >= 0:
            names = self._names()
            if names == self._listed:
                return True
            self._gather()
            self._listed = names
            return False
        return not self._gather()

    def stop(self, deadline_s: float = 1.0) -> None:
        """Stop everything in the sandbox; on return nothing in it runs until `go`.

        Raises:
            FreezeError: it kept running or kept forking until the deadline.
        """
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            for process in self._processes.values():
                process.send(signal.SIGSTOP)
            current = self._up_to_date()
            first = [process.look() for process in self._processes.values()]
            if not current or not all(stopped for stopped, _ in first):
                continue
            if self._up_to_date() and first == [process.look() for process in self._processes.values()]:
                self.stop_was_proved(_counters(first))
                return
        raise FreezeError("the sandbox could not be stopped")

    def stop_was_proved(self, counters: tuple[int, int]) -> None:
        """Note the counters of a stop's proof, and freeze what is stopped.

        Raises:
            FreezeError: it cannot be frozen, so that something in it is not stopped.
        """
        self._proof = counters
        if self.freezer is not None and not self.freezer.freeze(_FREEZE_S):
            raise FreezeError("the sandbox could not be frozen")

    def check_still_stopped(self) -> None:
        """Check that nothing in the sandbox has run since its stop was proved.

        The number of time slices is the evidence: the scheduler counts one whenever a thread is given a processor, and
        nothing else changes it.

        Raises:
            EndedWhileStopped: a process is gone. SIGKILL alone ends a stopped one, for example where memory is out.
            FreezeError: a thread was given a processor, or there is a process that was not there.
        """
        if self._proof is None:
            return
        current = self._up_to_date()
        looks = [process.look() for process in self._processes.values()]
        if (True, None) in looks:
            raise EndedWhileStopped("a process ended while it was stopped: it was killed, perhaps for want of memory")
        cpu_ns, slices = (now - then for now, then in zip(_counters(looks), self._proof, strict=True))
        if not current:
            raise FreezeError("started a process while it was stopped")
        # Processor time alone is no evidence: the scheduler books what a thread used on its way to the stop after it.
        if slices or not all(stopped for stopped, _ in looks):
            raise FreezeError(f"ran for {cpu_ns / 1e3:.0f} us while it was stopped ({slices} time slices)")

    @property
    def proved_slices(self) -> int | None:
        """Time slices of all threads at the proof of the last stop; None while the sandbox runs."""
        return None if self._proof is None else self._proof[1]

    def goes(self) -> None:
        """Forget the proof of the last stop: the caller thaws the sandbox and lets it run."""
        self._proof = None

    def go(self) -> None:
        """Let everything in the sandbox run."""
        self.goes()
        if self.freezer is not None:
            self.freezer.thaw()
        for process in self._processes.values():
            process.send(signal.SIGCONT)

    def pin(self, processors: frozenset[int]) -> None:
        """Keep every thread there is, and every one to come, on these processors."""
        for pid in self._processes:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), processors)

    def pin_main_thread(self, processors: frozenset[int]) -> None:
        """Keep the runner's main thread, and what it starts from now on, on these processors."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self.runner, processors)

    def descriptors(self) -> tuple[ctypes.Array[Process], int, int]:
        """Arguments of the native exchange: processes (pid 1 of the sandbox first), its /proc or -1, freezer or -1."""
        known = sorted(self._processes.values(), key=lambda process: process.pid != self.first)
        array = (Process * len(known))(
            *[Process(each.pidfd, each.directory, each.stat, each.schedstat) for each in known]
        )
        return array, self._listing, self.freezer.switch if self.freezer is not None else -1

    def first_in_line(self, *, on: bool) -> None:
        """Let the runner go before every ordinary process on its processor, where this process may.

        For the length of a timed batch only; what it starts meanwhile does not inherit it. The sandbox's pid 1 goes
        with it: a stop waits until pid 1, too, has been given the processor and has stopped.
        """
        if on == self._first_in_line:
            return
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK if on else os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
        with contextlib.suppress(OSError):
            for pid in {self.first, self.runner}:
                os.sched_setscheduler(pid, policy, os.sched_param(1 if on else 0))
            self._first_in_line = on

    def run_delay_ns(self) -> tuple[int, int, int]:
        """(runner's main thread on the processor, waiting for it; all known processes on it), nanoseconds so far.

        The last is from each process' CPU clock and includes threads that have ended.
        """
        process = self._processes.get(self.runner)
        if process is None:
            return 0, 0, 0
        on, waiting, _ = os.pread(process.schedstat, 128, 0).split()
        total = 0
        for pid in self._processes:
            with contextlib.suppress(OSError):
                total += time.clock_gettime_ns((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process
        return int(on), int(waiting), total

    def close(self) -> None:
        """Give back the descriptors."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        if self.freezer is not None:
            self.freezer.close()
            self.freezer = None
        if self._listing >= 0:
            os.close(self._listing)
            self._listing = -1
