"""Runner processes: pre-started in their sandbox, handed one solution, stopped and continued, killed.

A candidate gets a fresh process that has only imported torch. Failures come out as `RunnerFailed`, which carries the
verdict: what untrusted code does is data, never an error of the judge.
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
from typing import IO, Any

import harness
from harness.errors import ConfigurationError
from harness.failpoints import failpoint
from harness.judge.channel import Channel, ChannelClosed, ChannelTimeout, MalformedRecord, RunnerRecord
from harness.judge.isolation.cgroup_freezer import GroupFreezer
from harness.judge.isolation.process_freezer import EndedWhileStopped, FreezeError, Herd
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import RUNNER_HOME, Binds, Sandboxed, launch
from harness.model.config import SandboxKind
from harness.model.verdict import Verdict
from harness.runner import wire

STAGE = "/stage"
_HELLO_S = 120.0
_EXIT_S = 5.0
_SAID_BYTES = 16384
_REASON_CHARACTERS = 300
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from runner.main import main; sys.path.pop(0); main(int(sys.argv[2]))"
)


_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)\b")
"""The line of a traceback that says what was raised."""


_FAULT = re.compile(r"^fault: signal \d+ code (-?\d{1,4}) address 0x([0-9a-f]{1,16})$", re.MULTILINE)
"""Line of `harness.runner.fault_report`."""
# Codes of SIGSEGV in sigaction(2): SEGV_MAPERR, SEGV_ACCERR, SI_KERNEL; the last is x86's general protection fault, as
# for an aligned vector instruction on another address.
_NOT_MAPPED, _WRITE_REFUSED, _NO_ADDRESS = 1, 2, 128
_NULL_PAGES = 1 << 16


def _printable(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable())[:_REASON_CHARACTERS]


class RunnerFailed(Exception):  # noqa: N818 - an outcome
    """A runner's failure, as a verdict and one line."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class NoRoom(RunnerFailed):
    """A candidate holds so much of the device's memory that a batch finds none, whosever turn it is."""

    def __init__(self, why: object) -> None:
        super().__init__(Verdict.RUNTIME_ERROR, f"left no memory on the device ({why})")


@dataclass(frozen=True)
class RunnerPlan:
    """Configuration of all runners of one device."""

    sandbox: SandboxKind
    limits: SandboxLimits
    scratch: Path
    """Host directory for stages and what runners print."""
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    pinned: frozenset[int] | None = None
    """The processors it runs on from when it is ready; its start-up may use all that the limits allow."""
    warms: bool = False
    """Its start has a second part that uses the device; `Runner.begin_warming`."""
    imports_apart: bool = False
    """Its imports have processors of their own, so they may run while something is timed."""
    freezes: bool = False
    """Stopped runners are frozen as well: the kernel's freezer works here."""


class Runner:
    """One runner process. Between calls of the judge it is stopped or waits for a message."""

    def __init__(self, plan: RunnerPlan, writable: Mapping[Path, str] | None = None) -> None:
        self.plan = plan
        self.directory = Path(tempfile.mkdtemp(prefix="runner-", dir=plan.scratch))
        self.stage = self.directory / "stage"
        self.stage.mkdir()
        self._said: IO[bytes] = (self.directory / "stderr").open("a+b")
        self.channel = Channel()
        self._herd: Herd | None = None
        self._warming = self._is_warm = False
        self.extra: dict[str, Any] = {}
        binds = Binds(read_only={self.stage: STAGE}, writable=dict(writable or {}), devices=plan.devices)
        home = RUNNER_HOME if plan.sandbox == "bubblewrap" else str(self._home_without_sandbox())
        env = dict(plan.env)
        if plan.pinned is not None:
            env["OMP_NUM_THREADS"] = str(len(plan.pinned))
        if plan.sandbox == "none":
            env["TMPDIR"] = str(self.directory)
        self._process: Sandboxed = launch(
            plan.sandbox,
            [sys.executable, "-I", "-B", "-c", _START, home, str(self.channel.runner_end)],
            binds=binds,
            limits=plan.limits,
            env=env,
            stderr=self._said,
            inherit=[self.channel.runner_end],
            cwd=self.directory,
        )
        self.channel.started()
        failpoint("judge.runner_started")

    def _home_without_sandbox(self) -> Path:
        home = self.directory / "home"
        home.mkdir()
        (home / "runner").symlink_to(Path(harness.__file__).resolve().parent / "runner")
        return home

    def inside(self, path: Path) -> str:
        """Path of a file of the stage as the runner sees it."""
        return f"{STAGE}/{path.relative_to(self.stage)}" if self.plan.sandbox == "bubblewrap" else str(path)

    def has_imported(self) -> bool:
        """Return true if the first part of its start has ended, in success or failure."""
        return self._herd is not None or self.channel.has_message()

    def begin_warming(self) -> None:
        """Have it make its context on the device, where there is one. It has done so when `wait_ready` returns."""
        if self.plan.warms and not self._warming:
            self._warming = True
            with contextlib.suppress(ChannelClosed):  # `wait_ready` reports it
                self.channel.send({"op": "warm"})

    def settle(self) -> None:
        """Wait until its start disturbs no timing.

        Raises:
            ConfigurationError: as of `wait_ready`.
        """
        if self._warming or not self.plan.imports_apart:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until torch is imported and the device is prepared.

        Raises:
            ConfigurationError: the runner, which has run nothing of anybody's yet, does not start.
        """
        if self._herd is None:
            self._wait_imported()
        if self.plan.warms and not self._is_warm:
            self.begin_warming()
            self._expect_at_start(wire.Code.READY)
            self._is_warm = True

    def _wait_imported(self) -> None:
        self._expect_at_start(wire.Code.HELLO)
        try:
            freezer = GroupFreezer.of(self._process.groups) if self.plan.freezes else None
            self._herd = Herd.of(self._process.first, isolated=self.plan.sandbox == "bubblewrap", freezer=freezer)
            if self.plan.pinned is not None:
                self._herd.pin(self.plan.pinned)
        except (FreezeError, OSError) as error:
            raise self._not_started(error) from error

    def _expect_at_start(self, code: wire.Code) -> None:
        try:
            if self.channel.expect(code, time.monotonic() + _HELLO_S).code is not code:
                raise self._not_started(None)
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise self._not_started(error) from error

    def _not_started(self, error: Exception | None) -> ConfigurationError:
        """End it; the error to raise."""
        said = self.said() or str(error or "") or "it printed nothing"
        self.kill()
        return ConfigurationError(
            f"the runner does not start in its sandbox: {said}", remedy="harness doctor says what is missing"
        )

    @property
    def herd(self) -> Herd:
        """The processes behind the sandbox's wall, once it is ready."""
        self.wait_ready()
        assert self._herd is not None  # noqa: S101 - wait_ready made it
        return self._herd

    def ask(
        self, message: Mapping[str, Any], expected: wire.Code, within_s: float, fds: Sequence[int] = ()
    ) -> RunnerRecord:
        """Send a message to a running runner and wait for its answer, which is returned.

        Raises:
            RunnerFailed: it crashed, raised, or did not answer in time.
        """
        herd = self.herd
        self.check_still_stopped()
        try:
            herd.go()
            self.channel.send(message, fds)
            record = self.accept(self.channel.expect(expected, time.monotonic() + within_s))
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise self.failure(error, within_s) from None
        self.stop()
        return record

    def stop(self) -> None:
        """Stop everything in the sandbox.

        Raises:
            RunnerFailed: it cannot be stopped, as with a fork bomb.
        """
        try:
            self.herd.stop()
        except FreezeError as error:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, error.reason) from None

    def stop_was_proved(self, counters: tuple[int, int]) -> None:
        """See `Herd.stop_was_proved`.

        Raises:
            RunnerFailed: it cannot be frozen.
        """
        try:
            self.herd.stop_was_proved(counters)
        except FreezeError as error:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, error.reason) from None

    def check_still_stopped(self) -> None:
        """Check that nothing of the candidate has run since it was stopped.

        Raises:
            RunnerFailed: something has: it could have read inputs before the clock, or written outputs after it.
        """
        try:
            self.herd.check_still_stopped()
        except EndedWhileStopped as error:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, error.reason) from None
        except FreezeError as error:
            raise RunnerFailed(Verdict.REWARD_HACK, error.reason) from None

    def accept(self, record: RunnerRecord) -> RunnerRecord:
        """Turn a runner's report of failure into the verdict it is."""
        if record.code is wire.Code.FAILED:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, self.said() or "raised an exception without a message")
        if record.code in (wire.Code.SHAPE, wire.Code.DTYPE):
            what = "shape" if record.code is wire.Code.SHAPE else "dtype"
            verdict = Verdict.INCORRECT_SHAPE if what == "shape" else Verdict.INCORRECT_DTYPE
            raise RunnerFailed(verdict, f"output number {record.detail} came back with another {what} than declared")
        return record

    def failure(self, error: Exception, within_s: float = 0.0) -> RunnerFailed:
        """The verdict for a broken channel.

        Raises:
            MemoryError: this machine ran out of memory, and the runner is not to blame.
        """
        if isinstance(error, ChannelTimeout):
            return RunnerFailed(Verdict.TIMEOUT, f"no answer within {within_s:.3g} s")
        if isinstance(error, MalformedRecord):
            return RunnerFailed(Verdict.REWARD_HACK, f"forged an answer: {error}")
        code = self._process.exit_signal_or_code(_EXIT_S)
        if code is None:
            return RunnerFailed(Verdict.REWARD_HACK, "closed its line to the judge and went on running")
        if code == -signal.SIGKILL and self._process.was_killed_for_others():
            raise MemoryError("the kernel ended a candidate's process, which was within its limit of memory")
        if code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            hint = f" ({self._fault()})" if -code in (signal.SIGSEGV, signal.SIGBUS) else ""
            return RunnerFailed(Verdict.RUNTIME_ERROR, f"killed by {name}{hint}")
        return RunnerFailed(Verdict.RUNTIME_ERROR, f"exited with code {code} instead of answering")

    def _fault(self) -> str:
        """Name the probable cause of a memory fault, by the kernel's code as the process reported it."""
        reports = _FAULT.findall(self._printed())
        code, address = (int(reports[-1][0]), int(reports[-1][1], 16)) if reports else (_WRITE_REFUSED, 0)
        if code == _NO_ADDRESS:
            return "a misaligned vector load or store, or a pointer that is no address"
        if code == _NOT_MAPPED:
            where = "a null pointer" if address < _NULL_PAGES else "out of bounds: no memory is there"
            return f"at the address {address:#x}: {where}"
        return "inputs can only be read: writing to one ends so"

    def _printed(self) -> str:
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace")

    def said(self) -> str:
        """Last line that the process printed on stderr, or the exception if there is one. Untrusted text, cut."""
        text = self._printed()
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        raised = [line for line in lines if _EXCEPTION.match(line)]
        return _printable((raised or lines or [""])[-1])

    def kill(self) -> None:
        """End the process and everything it started, and remove its files."""
        self._process.kill()
        if self._herd is not None:
            self._herd.close()
            self._herd = None
        self.channel.close()
        self._said.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory)


class Standby:
    """Keeps runners started ahead, one by default, so that a fresh process costs no start-up."""

    def __init__(self, make: Callable[[], Runner], ahead: int = 1) -> None:
        self._make = make
        self._ahead = ahead
        self._ready: list[Runner] = []

    def start(self) -> None:
        """Start as many as are missing, and warm those that have imported. Never call this while a batch is timed."""
        for runner in self._ready:
            if runner.has_imported():
                runner.begin_warming()
        while len(self._ready) < self._ahead:
            self._ready.append(self._make())

    def take(self) -> Runner:
        """A fresh runner, ready to load."""
        failpoint("judge.standby_taken")
        while self._ready:
            runner = self._ready.pop(0)
            if _starts(runner.wait_ready):
                return runner
        runner = self._make()
        runner.wait_ready()
        return runner

    def settle(self) -> None:
        """Wait until no start-up work of those on their way disturbs a timing."""
        self._ready = [runner for runner in self._ready if _starts(runner.settle)]

    def close(self) -> None:
        """End the waiting ones."""
        for runner in self._ready:
            runner.kill()
        self._ready.clear()


def _starts(wait: Callable[[], None]) -> bool:
    """Return true if a runner that was started ahead did start; beside a candidate that takes all memory it may not."""
    try:
        wait()
    except ConfigurationError:
        return False
    return True
