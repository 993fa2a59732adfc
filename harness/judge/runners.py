"""Runner processes: started ahead in their sandbox, loaded with one solution, stopped and continued, and killed.

A candidate gets a fresh process that has only imported torch. Its failures are raised as `RunnerFailed`, which contains
the verdict: a failure of untrusted code is data and not an error of the judge.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness.errors import ConfigurationError
from harness.failpoints import failpoint
from harness.judge.channel import Channel, ChannelClosed, ChannelTimeout, MalformedRecord, RunnerRecord
from harness.judge.isolation.cgroup_freezer import GroupFreezer
from harness.judge.isolation.process_freezer import EndedWhileStopped, FreezeError, SandboxProcesses
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import STAGE, Binds, Sandboxed, launch, path_in_stage, runner_home
from harness.model.config import SandboxKind
from harness.model.verdict import Verdict
from harness.runner import wire
from harness.runner.messages import Message, Warm

_HELLO_S = 120.0
_EXIT_S, _JUST_ENDED_S = 5.0, 2.0
"""Seconds to wait for the exit code of a process that closed its channel, and of one that ended while stopped."""
_STDERR_BYTES = 16384
"""Bytes at the end of a runner's stderr that are read."""
_REASON_CHARACTERS = 300
_KILLED_FOR_OTHERS = "the kernel killed a candidate's process, which was within its memory limit"
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from runner.main import main; sys.path.pop(0); main(int(sys.argv[2]))"
)


_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)\b")
"""Matches the line of a traceback that names the exception."""
_FAULT = re.compile(r"^fault: signal \d+ code (-?\d{1,4}) address 0x([0-9a-f]{1,16})$", re.MULTILINE)
"""Matches the line that `harness.runner.cpp` prints."""
# Codes of SIGSEGV in sigaction(2): SEGV_MAPERR, SEGV_ACCERR, SI_KERNEL. The last is x86's general protection fault, for
# example of an aligned vector instruction on an address that is not aligned.
_NOT_MAPPED, _WRITE_REFUSED, _NO_ADDRESS = 1, 2, 128
_NULL_PAGES = 1 << 16
"""Addresses below this are reported as a null pointer."""


def _printable(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable())[:_REASON_CHARACTERS]


class RunnerFailed(Exception):  # noqa: N818 - an outcome
    """Failure of a runner, with the verdict and a reason of one line."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class RunnerOutOfMemory(RunnerFailed):
    """An allocation of device memory failed in a runner, or so it reports."""

    of_baseline = False
    """The runner is the baseline's."""


class NoDeviceMemory(Exception):  # noqa: N818 - a condition of the machine
    """The judge itself cannot allocate device memory for a workload."""


class BaselineFailed(Exception):  # noqa: N818 - a fault of the problem, not of the candidate
    """A baseline returned wrong outputs or broke.

    Args:
        reason: one line.
        broken: failure of its runner, which cannot be used any more; None if its outputs are wrong.
    """

    def __init__(self, reason: str, *, broken: RunnerFailed | None = None) -> None:
        super().__init__(reason)
        self.broken = broken


@dataclass(frozen=True)
class RunnerPlan:
    """Configuration of all runners of one device."""

    sandbox: SandboxKind
    limits: SandboxLimits
    scratch: Path
    """Host directory for stages and for what runners print."""
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    pinned: frozenset[int] | None = None
    """Processors that a runner uses once it is ready; None: all. Its start may use all that the limits allow."""
    warms: bool = False
    """True if the start has a second part, which uses the device; see `Runner.begin_warming`."""
    imports_apart: bool = False
    """True if imports run on processors of their own, so that they may run while a batch is timed."""
    freezes: bool = False
    """True if stopped runners are frozen too, because the kernel's freezer works on this machine."""


class Runner:
    """One runner process. It is stopped, or waits for a message, except while the judge waits for it.

    Args:
        plan: configuration of the device's runners.
        writable: host paths that the sandbox may write, with their paths inside it.
    """

    def __init__(self, plan: RunnerPlan, writable: Mapping[Path, str] | None = None) -> None:
        self.plan = plan
        self.directory = Path(tempfile.mkdtemp(prefix="runner-", dir=plan.scratch))
        self.stage = self.directory / "stage"
        self.stage.mkdir()
        self._stderr: IO[bytes] = (self.directory / "stderr").open("a+b")
        self.channel = Channel()
        self._processes: SandboxProcesses | None = None
        self._warming = self._is_warm = False
        binds = Binds(read_only={self.stage: STAGE}, writable=dict(writable or {}), devices=plan.devices)
        env, line = dict(plan.env), str(self.channel.runner_end)
        if plan.pinned is not None:
            env["OMP_NUM_THREADS"] = str(len(plan.pinned))
        if plan.sandbox == "none":
            env["TMPDIR"] = str(self.directory)
        self._process: Sandboxed = launch(
            plan.sandbox,
            [sys.executable, "-I", "-B", "-c", _START, runner_home(plan.sandbox, self.directory), line],
            binds=binds,
            limits=plan.limits,
            env=env,
            stderr=self._stderr,
            inherit=[self.channel.runner_end],
            cwd=self.directory,
        )
        self.channel.close_runner_end()
        failpoint("judge.runner_started")

    @property
    def first_process(self) -> int:
        """Id of the sandbox's first process, of which all others in it are descendants."""
        return self._process.first

    def inside(self, path: Path) -> str:
        """Return the path of a file of the stage, as the process in the sandbox sees it."""
        return path_in_stage(self.plan.sandbox, self.stage, path)

    @property
    def is_warm(self) -> bool:
        """True if the runner can load a solution at once."""
        return self._is_warm or (not self.plan.warms and self._processes is not None)

    def has_imported(self) -> bool:
        """Return true if the first part of the start has ended, in success or failure."""
        return self._processes is not None or self.channel.has_message()

    def begin_warming(self) -> None:
        """Let the runner create its context on the device, if it uses one. `wait_ready` waits for the end of this."""
        if self.plan.warms and not self._warming:
            self._warming = True
            with contextlib.suppress(ChannelClosed):  # `wait_ready` reports it
                self.channel.send(Warm())

    def settle(self) -> None:
        """Wait until the runner's start cannot disturb timed batches.

        Raises:
            ConfigurationError: as `wait_ready`.
        """
        if self._warming or not self.plan.imports_apart:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until torch is imported and the device is prepared.

        Raises:
            ConfigurationError: the runner, which has not run a candidate's code yet, does not start.
        """
        if self._processes is None:
            self._wait_imported()
        if self.plan.warms and not self._is_warm:
            self.begin_warming()
            self._expect_at_start(wire.Code.READY)
            self._is_warm = True

    def _wait_imported(self) -> None:
        self._expect_at_start(wire.Code.HELLO)
        try:
            freezer = GroupFreezer.of(self._process.groups) if self.plan.freezes else None
            self._processes = SandboxProcesses.of(
                self._process.first, isolated=self.plan.sandbox == "bubblewrap", freezer=freezer
            )
            if self.plan.pinned is not None:
                self._processes.pin(self.plan.pinned)
        except (FreezeError, OSError) as error:
            raise self._not_started(error) from error

    def _expect_at_start(self, code: wire.Code) -> None:
        try:
            record = self.channel.expect(code, time.monotonic() + _HELLO_S)
            if record.code is wire.Code.NO_MEMORY:
                cause = self.last_message()
                self.kill()
                raise NoDeviceMemory(f"a new runner gets no device memory: {cause}")
            if record.code is not code:
                raise self._not_started(None)
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise self._not_started(error) from error

    def _not_started(self, error: Exception | None) -> ConfigurationError:
        """Kill the runner, and return the error to raise."""
        cause = self.last_message() or str(error or "") or "it printed nothing"
        self.kill()
        return ConfigurationError(
            f"the runner does not start in its sandbox: {cause}",
            remedy="run `harness doctor`: it lists what is missing",
        )

    @property
    def processes(self) -> SandboxProcesses:
        """The processes in the sandbox. Waits until the runner is ready."""
        self.wait_ready()
        assert self._processes is not None  # noqa: S101 - wait_ready made it
        return self._processes

    def ask(self, message: Message, expected: wire.Code, within_s: float, fds: Sequence[int] = ()) -> RunnerRecord:
        """Continue the runner, send a message, stop the runner after its answer, and return the answer.

        Args:
            message: the message.
            expected: code of the answer.
            within_s: seconds to wait for the answer.
            fds: file descriptors that are sent with the message.

        Raises:
            RunnerFailed: the runner crashed, raised, or did not answer in time.
        """
        processes = self.processes
        self.check_still_stopped()
        try:
            processes.resume()
            self.channel.send(message, fds)
            record = self.accept(self.channel.expect(expected, time.monotonic() + within_s))
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise self.failure(error, within_s) from None
        self.stop()
        return record

    def stop(self) -> None:
        """Stop every process in the sandbox.

        Raises:
            RunnerFailed: the processes cannot be stopped, for example because of a fork bomb.
        """
        try:
            self.processes.stop()
        except FreezeError as error:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, error.reason) from None

    def stop_was_proved(self, counters: tuple[int, int]) -> None:
        """See `SandboxProcesses.stop_was_proved`.

        Raises:
            RunnerFailed: the processes cannot be frozen.
        """
        try:
            self.processes.stop_was_proved(counters)
        except FreezeError as error:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, error.reason) from None

    def check_still_stopped(self) -> None:
        """Check that no thread of the candidate has run since the stop.

        Raises:
            RunnerFailed: a thread has run. It could have read inputs before the clock started, or written outputs after
                the clock stopped. Or a process was killed.
            MemoryError: as `failure`.
        """
        try:
            self.processes.check_still_stopped()
        except EndedWhileStopped as error:
            if self._process.was_killed_for_others(while_stopped=True):
                raise MemoryError(_KILLED_FOR_OTHERS) from None
            self.processes.resume()  # the sandbox's pid 1 reports how the runner ended
            cause = f" ({end.reason})" if (end := self._end()) else ""
            raise RunnerFailed(Verdict.RUNTIME_ERROR, f"{error.reason}{cause}") from None
        except FreezeError as error:
            raise RunnerFailed(Verdict.REWARD_HACK, error.reason) from None

    def accept(self, record: RunnerRecord) -> RunnerRecord:
        """Return a record that reports no failure.

        Raises:
            RunnerFailed: the record reports a failure.
        """
        if record.code in (wire.Code.FAILED, wire.Code.NO_MEMORY):
            failure = RunnerOutOfMemory if record.code is wire.Code.NO_MEMORY else RunnerFailed
            raise failure(Verdict.RUNTIME_ERROR, self.last_message() or "raised an exception without a message")
        if record.code is wire.Code.SHAPE:
            reason = f"output number {record.detail} came back with another shape than declared"
            raise RunnerFailed(Verdict.INCORRECT_SHAPE, reason)
        if record.code is wire.Code.DTYPE:
            reason = f"output number {record.detail} came back with another dtype than declared"
            raise RunnerFailed(Verdict.INCORRECT_DTYPE, reason)
        return record

    def failure(self, error: Exception, within_s: float = 0.0) -> RunnerFailed:
        """Return the failure that an exception of the channel means.

        Args:
            error: a `ChannelTimeout`, `MalformedRecord` or `ChannelClosed`.
            within_s: seconds that the judge waited.

        Raises:
            MemoryError: this machine ran out of memory, and the runner is not the cause.
        """
        if isinstance(error, ChannelTimeout):
            return RunnerFailed(Verdict.TIMEOUT, f"no answer within {within_s:.3g} s")
        if isinstance(error, MalformedRecord):
            return RunnerFailed(Verdict.REWARD_HACK, f"forged an answer: {error}")
        code = self._process.exit_signal_or_code(_EXIT_S)
        if code is None:
            return RunnerFailed(Verdict.REWARD_HACK, "closed its channel to the judge and continued to run")
        if code == -signal.SIGKILL and self._process.was_killed_for_others():
            raise MemoryError(_KILLED_FOR_OTHERS)
        if code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            hint = f" ({self._fault()})" if -code in (signal.SIGSEGV, signal.SIGBUS) else ""
            return RunnerFailed(Verdict.RUNTIME_ERROR, f"killed by {name}{hint}")
        return RunnerFailed(Verdict.RUNTIME_ERROR, f"exited with code {code} instead of answering")

    def _end(self) -> RunnerFailed | None:
        """Return how the runner's process ended; None if it has not ended.

        Raises:
            MemoryError: as `failure`.
        """
        return self.failure(ChannelClosed()) if self._process.exit_signal_or_code(_JUST_ENDED_S) is not None else None

    def _fault(self) -> str:
        """Return the probable cause of a memory fault, by the kernel's code in the process's report."""
        reports = _FAULT.findall(self._printed())
        code, address = (int(reports[-1][0]), int(reports[-1][1], 16)) if reports else (_WRITE_REFUSED, 0)
        if code == _NO_ADDRESS:
            return "a misaligned vector load or store, or a pointer that is not an address"
        if code == _NOT_MAPPED:
            cause = "a null pointer" if address < _NULL_PAGES else "out of bounds: no memory is mapped there"
            return f"at the address {address:#x}: {cause}"
        return "inputs are read-only: the candidate may have written to one"

    def _printed(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), _STDERR_BYTES, max(0, size - _STDERR_BYTES)).decode(errors="replace")

    def last_message(self) -> str:
        """Return the last exception in the process's stderr, else its last line. The text is untrusted and cut."""
        text = self._printed()
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        exceptions = [line for line in lines if _EXCEPTION.match(line)]
        return _printable((exceptions or lines or [""])[-1])

    def begin_kill(self) -> None:
        """Kill the process and every process that it started without waiting for their end; `kill` does the rest."""
        self._process.begin_kill()

    def kill(self) -> None:
        """Kill the process and every process that it started, wait for their end, and remove its files."""
        self._process.kill()
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        self.channel.close()
        self._stderr.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory)


class Standby:
    """Runners that are started ahead, so that a fresh runner is available at once.

    Args:
        make: starts a runner.
        ahead: number of runners to keep started.
    """

    def __init__(self, make: Callable[[], Runner], ahead: int = 1) -> None:
        self._make = make
        self._ahead = ahead
        self._ready: list[Runner] = []

    def expect(self, ahead: int) -> None:
        """Keep another number of runners started from now on."""
        self._ahead = ahead

    def start(self) -> None:
        """Start the missing runners, and warm up those that have imported. Not allowed while a batch is timed."""
        for runner in self._ready:
            if runner.has_imported():
                runner.begin_warming()
        self.refill()

    def refill(self) -> None:
        """Start the missing runners."""
        while len(self._ready) < self._ahead:
            self._ready.append(self._make())

    def has_warm_runner(self) -> bool:
        """Return true if a runner can load a solution at once."""
        return any(runner.is_warm for runner in self._ready)

    def take(self) -> Runner:
        """Return a fresh runner that can load a solution."""
        failpoint("judge.standby_taken")
        while self._ready:
            runner = self._ready.pop(0)
            if _starts(runner.wait_ready):
                return runner
        runner = self._make()
        runner.wait_ready()
        return runner

    def settle(self) -> None:
        """Wait until the start of no runner can disturb timed batches."""
        self._ready = [runner for runner in self._ready if _starts(runner.settle)]

    def close(self) -> None:
        """Kill the runners that were not taken; `start` and `take` start new ones."""
        for runner in self._ready:
            runner.kill()
        self._ready.clear()


def _starts(wait: Callable[[], None]) -> bool:
    """Return true if a runner has started. It may fail to start next to a candidate that takes all memory."""
    try:
        wait()
    except (ConfigurationError, NoDeviceMemory):
        return False
    return True
