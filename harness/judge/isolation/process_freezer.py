"""Stop of every process of a sandbox, with a proof that they are stopped.

SIGSTOP alone proves nothing: a thread may still be running, and processes of the sandbox could continue each other.
The proof is two consecutive inspections that agree: they find the same threads, each in state T, and no thread was
given a processor in between (its count of time slices is unchanged). At the moment between the inspections all threads
were stopped, so no process in the sandbox can continue another one; only the judge can.

A proved stop can still end: the kernel sends SIGCONT for a process that has requested it (by a timer or an asynchronous
descriptor). Three measures prevent or detect this. The system-call filter refuses the known requests. Where the kernel
has a freezer, the sandbox is frozen until just before the clock starts (cgroup_freezer.py). `check_still_stopped`
detects every other way, because a thread that has run since the proof has been given another time slice; the native
exchange compares that count again just before the clock starts.

For speed, the processes are listed through the sandbox's own /proc, opened once before any untrusted code ran, and each
process is read through descriptors that stay open. docs/performance.md has times measured on a two-core VM.
"""

# ruff: noqa: PTH115, PTH123, PTH208 - descriptors and plain strings, because this runs inside the timed section
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
"""More processes count as a fork bomb."""
_FREEZE_S = 1.0
_EXITING = 0x4
"""PF_EXITING of linux/sched.h, a bit of the ninth field of /proc/PID/stat: the process is ending."""
_BEGIN_TO_END_S = 0.1
"""A process that SIGKILL has woken begins to end within microseconds of processor time."""


class FreezeError(Exception):
    """The sandbox is not stopped; `reason` is one line for the verdict."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_KILLED = "a process ended while it was stopped: it was killed, perhaps for lack of memory"


class EndedWhileStopped(FreezeError):  # noqa: N818 - an outcome
    """A process of the sandbox ended although it was stopped."""


@dataclass
class _SandboxProcess:
    """One process of the sandbox, identified by open descriptors, because its process id may be reused."""

    pid: int
    pidfd: int
    directory: int
    stat: int
    schedstat: int
    task: int = -1
    threads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Descriptors of stat and schedstat by thread id. If a thread id is reused, the old descriptors fail."""

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

    def inspect(self) -> tuple[bool, object]:
        """Return (true if every thread is stopped or has ended, the time slices that must not change)."""
        try:
            fields = _stat_fields(os.pread(self.stat, 1024, 0))
            if fields[17] == b"1":
                return fields[0] in b"TZX", os.pread(self.schedstat, 128, 0)
        except ProcessLookupError:
            return True, None  # the process has ended
        try:
            return self._inspect_threads()
        except (ProcessLookupError, FileNotFoundError):
            return False, None  # a thread has just ended, so a thread ran

    def is_ending(self) -> bool:
        """Return true if the process has ended or is ending."""
        try:
            fields = _stat_fields(os.pread(self.stat, 1024, 0))
        except ProcessLookupError:
            return True
        return fields[0] in b"ZX" or bool(int(fields[6]) & _EXITING)

    def _inspect_threads(self) -> tuple[bool, object]:
        """Read every thread through open descriptors: to open and close 40 files takes longer than the stop."""
        if self.task < 0:
            self.task = os.open("task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.directory)
        names = os.listdir(self.task)
        for ended in self.threads.keys() - set(names):
            self._forget(ended)
        threads = [(name, *self._inspect_thread(name)) for name in names]
        return all(state in b"TZX" for _, state, _ in threads), tuple((name, slices) for name, _, slices in threads)

    def _inspect_thread(self, name: str) -> tuple[bytes, bytes]:
        """Return the state and the schedstat line of a thread.

        Raises:
            ProcessLookupError: the thread has ended since it was listed.
            FileNotFoundError: the same.
        """
        if name in self.threads:
            with contextlib.suppress(ProcessLookupError):
                return self._read(name)
            self._forget(name)  # another thread has the id now
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


def _counters(inspections: Iterable[tuple[bool, object]]) -> tuple[int, int]:
    """Return (processor time in ns, time slices), summed over the schedstat lines of all threads."""
    cpu_ns = slices = 0
    for _, data in inspections:
        lines = [data] if isinstance(data, bytes) else [line for _, line in data] if isinstance(data, tuple) else []
        for line in lines:
            thread_cpu_ns, _, count = line.split()
            cpu_ns, slices = cpu_ns + int(thread_cpu_ns), slices + int(count)
    return cpu_ns, slices


def _stat_fields(line: bytes) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third, the state. The name before it may contain any character."""
    return line[line.rindex(b")") + 2 :].split()


@dataclass
class SandboxProcesses:
    """Processes of one sandbox, which the judge stops and resumes.

    `first` is the id of the sandbox's first process on this host. `namespace` is the inode of its pid namespace; None
    without bubblewrap, where the members of the session of `first` are the processes.
    """

    first: int
    namespace: str | None
    runner: int
    """Id of the runner's process on this host; without bubblewrap it is `first`."""
    freezer: GroupFreezer | None = None
    """Freezes the sandbox whenever a stop has been proved; None if the kernel has no freezer."""
    _listing: int = -1
    _listed: frozenset[str] = frozenset()
    _processes: dict[int, _SandboxProcess] = field(default_factory=dict)
    _is_realtime: bool = False
    _proof: tuple[int, int] | None = None
    """Sums over all threads at the last proved stop: (processor time in ns, time slices); None while it runs."""

    @classmethod
    def of(cls, first: int, *, isolated: bool, freezer: GroupFreezer | None = None) -> SandboxProcesses:
        """Open the processes of a sandbox that has started its command and has not run untrusted code yet.

        Args:
            first: id of the sandbox's first process on this host.
            isolated: true for a sandbox with a pid namespace of its own.
            freezer: of the sandbox's control group; `close` closes it.

        Raises:
            FreezeError: the sandbox has ended. Its process id may belong to another process of the host, which must
                not be stopped.
        """
        namespace = os.readlink(f"/proc/{first}/ns/pid") if isolated else None
        sandbox = cls(first, namespace, first, freezer)
        if namespace != os.readlink("/proc/self/ns/pid"):
            sandbox._gather()
        if not sandbox._processes or (isolated and sandbox._processes.keys() == {first}):
            sandbox.close()
            raise FreezeError("the sandbox ended before it began")
        if isolated:
            sandbox.runner = next(pid for pid in sandbox._processes if pid != first)
            sandbox._listing = os.open(f"/proc/{sandbox.runner}/root/proc", os.O_RDONLY | os.O_DIRECTORY)
            sandbox._listed = sandbox._names()
        return sandbox

    def _names(self) -> frozenset[str]:
        # The native exchange reads through this descriptor too and leaves it at the end.
        os.lseek(self._listing, 0, os.SEEK_SET)
        return frozenset(name for name in os.listdir(self._listing) if name.isdigit())

    def _members(self) -> list[int]:
        """Return the ids of the sandbox's processes, from this host's /proc."""
        members = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                if self.namespace is not None:
                    is_member = os.readlink(f"/proc/{name}/ns/pid") == self.namespace
                else:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        is_member = int(_stat_fields(file.read())[3]) == self.first
                if is_member:
                    members.append(int(name))
        return members

    def _gather(self) -> bool:
        """Update the open processes. Return true if one is new."""
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
        """Return true, without bubblewrap, if a process exists that the last stop did not include."""
        return self._listing < 0 and self._gather()

    def _up_to_date(self) -> bool:
        """Return true if no process is new; otherwise update the open processes."""
        if self._listing >= 0:
            names = self._names()
            if names == self._listed:
                return True
            self._gather()
            self._listed = names
            return False
        return not self._gather()

    def stop(self, deadline_s: float = 1.0) -> None:
        """Stop every process of the sandbox. No thread of it runs until `resume`.

        Raises:
            FreezeError: a thread ran, or processes were started, until `deadline_s` seconds had passed.
        """
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            for process in self._processes.values():
                process.send(signal.SIGSTOP)
            current = self._up_to_date()
            first = [process.inspect() for process in self._processes.values()]
            if not current or not all(stopped for stopped, _ in first):
                continue
            if self._up_to_date() and first == [process.inspect() for process in self._processes.values()]:
                self.stop_was_proved(_counters(first))
                return
        raise FreezeError("the sandbox could not be stopped")

    def stop_was_proved(self, counters: tuple[int, int]) -> None:
        """Store the counters of a proved stop, and freeze the stopped processes.

        Args:
            counters: sums over all threads: (processor time in ns, time slices).

        Raises:
            FreezeError: the sandbox cannot be frozen, so a thread in it is not stopped.
        """
        self._proof = counters
        if self.freezer is not None and not self.freezer.freeze(_FREEZE_S):
            raise FreezeError("the sandbox could not be frozen")

    def check_still_stopped(self) -> None:
        """Check that no thread of the sandbox has run since its stop was proved.

        The number of time slices shows it: the scheduler counts one whenever a thread is given a processor, and nothing
        else changes the number.

        Raises:
            EndedWhileStopped: a process has ended. Only SIGKILL ends a stopped process, for example when the machine is
                out of memory.
            FreezeError: a thread was given a processor, or a process was started.
        """
        if self._proof is None:
            return
        before = set(self._processes)
        current = self._up_to_date()
        inspections = [process.inspect() for process in self._processes.values()]
        if (True, None) in inspections or not before <= set(self._processes):
            raise EndedWhileStopped(_KILLED)
        cpu_ns, slices = (new - old for new, old in zip(_counters(inspections), self._proof, strict=True))
        if not current:
            raise FreezeError("started a process while it was stopped")
        # Processor time alone is no evidence: after a stop, the scheduler adds the time that a thread used before it.
        if slices or not all(stopped for stopped, _ in inspections):
            if self._is_ending():  # a process that is killed is given processors in order to end
                raise EndedWhileStopped(_KILLED)
            raise FreezeError(f"ran for {cpu_ns / 1e3:.0f} us while it was stopped ({slices} time slices)")

    def _is_ending(self) -> bool:
        """Return true if the runner or pid 1 is ending, or begins to end within `_BEGIN_TO_END_S`."""
        end = time.monotonic() + _BEGIN_TO_END_S
        while time.monotonic() < end:
            if any(self._processes[pid].is_ending() for pid in {self.first, self.runner}):
                return True
        return False

    @property
    def proved_slices(self) -> int | None:
        """Time slices of all threads when the last stop was proved; None while the sandbox runs."""
        return None if self._proof is None else self._proof[1]

    def discard_proof(self) -> None:
        """Discard the proof of the last stop. The caller thaws the sandbox and resumes its processes."""
        self._proof = None

    def resume(self) -> None:
        """Resume every process of the sandbox."""
        self.discard_proof()
        if self.freezer is not None:
            self.freezer.thaw()
        for process in self._processes.values():
            process.send(signal.SIGCONT)

    def pin(self, processors: frozenset[int]) -> None:
        """Restrict every present and future thread to these processors."""
        for pid in self._processes:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), processors)

    def pin_main_thread(self, processors: frozenset[int]) -> None:
        """Restrict the runner's main thread, and threads that it starts later, to these processors."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self.runner, processors)

    def descriptors(self) -> tuple[ctypes.Array[Process], int, int]:
        """Return arguments of the native exchange.

        Returns:
            The descriptors of the processes, pid 1 of the sandbox first; the descriptor of its /proc, or -1; the
            descriptor of the freezer, or -1.
        """
        processes = sorted(self._processes.values(), key=lambda process: process.pid != self.first)
        array = (Process * len(processes))(
            *[Process(process.pidfd, process.directory, process.stat, process.schedstat) for process in processes]
        )
        return array, self._listing, self.freezer.switch if self.freezer is not None else -1

    def set_realtime(self, *, on: bool) -> None:
        """Give the runner priority over every ordinary process on its processor, if this process may do so.

        Use it for the duration of a timed batch only. Processes that are started meanwhile do not inherit it. The
        sandbox's pid 1 gets the same priority, because a stop waits until pid 1 has been given the processor and has
        stopped.
        """
        if on == self._is_realtime:
            return
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK if on else os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
        with contextlib.suppress(OSError):
            for pid in {self.first, self.runner}:
                os.sched_setscheduler(pid, policy, os.sched_param(1 if on else 0))
            self._is_realtime = on

    def run_delay_ns(self) -> tuple[int, int, int]:
        """Return processor times so far, in nanoseconds.

        Returns:
            The time that the runner's main thread has run; the time that it has waited for a processor; the time that
            all processes have run, from their CPU clocks, which include threads that have ended.
        """
        process = self._processes.get(self.runner)
        if process is None:
            return 0, 0, 0
        running, waiting, _ = os.pread(process.schedstat, 128, 0).split()
        total = 0
        for pid in self._processes:
            with contextlib.suppress(OSError):
                total += time.clock_gettime_ns((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process
        return int(running), int(waiting), total

    def close(self) -> None:
        """Close the descriptors."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        if self.freezer is not None:
            self.freezer.close()
            self.freezer = None
        if self._listing >= 0:
            os.close(self._listing)
            self._listing = -1
