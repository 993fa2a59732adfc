"""`harness start`: one daemon, one planner and N workers as processes of their own, looked after until done.

All state is on disk, so the supervisor keeps none: it starts the parts, restarts one that dies, looks at what they
say, and ends them. A part dies with its supervisor, also when that is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from harness.agents.governor import Purse
from harness.errors import ConfigurationError, RepositoryError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.ledger.upgrade import upgrade_ledger
from harness.model.config import Config
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock
from harness.workspace.parent_process import PARENT_VARIABLE
from harness.workspace.status import clear_live, read_live, write_live

logger = logging.getLogger(__name__)

TICK_S = 0.25
_ENDS_WITHIN_S = 60.0
"""A part that was told to end and has not by then is killed: the daemon commits the ledger meanwhile."""
_KILLED_WITHIN_S = 5.0
_RESTARTS = 5
"""A part that dies so often in a row, each time soon, will not work."""
_SOON_S = 20.0
_BACK_OFF_S = 0.5
_SETTLED_S = 3.0
"""Nothing to do for so long, by everybody's word, is done."""


@dataclass(frozen=True)
class Limits:
    """Ends of this invocation; null is none."""

    max_evaluations: int | None = None
    max_minutes: float | None = None
    max_usd: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """What the parts say, for the display."""

    daemon: dict[str, Any]
    planner: dict[str, Any]
    workers: dict[str, dict[str, Any]]
    elapsed_s: float
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How an invocation ended."""

    why: str
    interrupted: bool = False


@dataclass
class _Part:
    """One process, and how often it had to be started."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    deaths: int = 0
    not_before: float = 0.0
    messages: list[str] = field(default_factory=list)

    def start(self, workspace: Workspace) -> None:
        workspace.logs.mkdir(parents=True, exist_ok=True)
        with (workspace.logs / f"{self.name}.out").open("ab") as said:
            self.process = subprocess.Popen(
                self.command,
                cwd=workspace.root,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is the supervisor's, which tells the parts
            )
        self.started_at = time.monotonic()

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tell(self, number: int) -> None:
        if self.alive() and self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def run_start(
    workspace: Workspace,
    config: Config,
    *,
    target: str,
    limits: Limits,
    stop: threading.Event,
    show: Callable[[Snapshot], None],
) -> Outcome:
    """Run everything until a limit is reached, nothing is left to do, or `stop` is set.

    Raises:
        ConfigurationError: another harness runs here (its process is named), or a part cannot work.
    """
    with ExitStack() as stack:
        stack.enter_context(file_lock(workspace.start_lock, owner="harness start"))
        clear_live(workspace)
        failpoint("supervisor.before_start")
        with Repo(workspace) as repo:
            notices = _upgrade_ledger(workspace, repo, config.coordination_branch)
            purse = Purse(workspace, repo, config)
        supervisor = _Supervisor(workspace, _parts(config, target, limits), limits, purse, stop, show, notices)
        stack.callback(clear_live, workspace)
        try:
            return supervisor.run()
        finally:
            supervisor.end()


def _upgrade_ledger(workspace: Workspace, repo: Repo, branch: str) -> list[str]:
    """Upgrade a ledger of an earlier format, before a part opens it; a line about it, if there is something to say."""
    try:
        upgrade = upgrade_ledger(workspace, repo, branch)
    except RepositoryError as error:  # a person's rebase, for instance: entries are written in the earlier format
        return [f"the ledger keeps its earlier format for now, since it cannot be upgraded: {error.what}"]
    if not upgrade.needed:
        return []
    formats = f"from format {upgrade.before} to format {upgrade.after} in commit {(upgrade.commit or '')[:12]}"
    return [f"the ledger was upgraded {formats}; harnesses of earlier versions refuse it from now on"]


def worker_names(count: int) -> tuple[str, ...]:
    """w01, w02 ..."""
    return tuple(f"w{number:02d}" for number in range(1, count + 1))


def _parts(config: Config, target: str, limits: Limits) -> list[_Part]:
    python = [sys.executable, "-m", "harness"]
    run = ["--run", config.run]
    devices = [part for device in config.devices for part in ("--device", device)]
    evaluations = ["--max-evaluations", str(limits.max_evaluations)] if limits.max_evaluations else []
    problems = [part for glob in config.problems for part in ("--problem", glob)]
    workers = [part for name in worker_names(config.workers) for part in ("--worker", name)]
    kind = ["--agent", config.agent.kind] if config.agent.kind else []
    return [
        _Part("daemon", [*python, "daemon", *run, *devices, *evaluations]),
        _Part("planner", [*python, "planner", *run, "--target", target, *problems, *workers]),
        *(
            _Part(f"worker-{name}", [*python, "worker", name, *run, "--target", target, *kind])
            for name in worker_names(config.workers)
        ),
    ]


class _Supervisor:
    def __init__(
        self,
        workspace: Workspace,
        parts: Sequence[_Part],
        limits: Limits,
        purse: Purse,
        stop: threading.Event,
        show: Callable[[Snapshot], None],
        notices: Sequence[str] = (),
    ) -> None:
        self._purse, self._usd_before = purse, purse.spent().usd
        self._workspace, self._parts, self._limits, self._stop, self._show = workspace, parts, limits, stop, show
        self._since = time.monotonic()
        self._idle_since: float | None = None
        self._messages: list[str] = list(notices)

    def run(self) -> Outcome:
        write_live(self._workspace, "start", {"parts": [part.name for part in self._parts]})
        for part in self._parts:
            part.start(self._workspace)
            failpoint("supervisor.part_started")
        while True:
            snapshot = self._look()
            self._show(snapshot)
            why = self._why_end(snapshot)
            if why is not None:
                failpoint("supervisor.before_end")
                return why
            self._stop.wait(TICK_S)

    def _look(self) -> Snapshot:
        for part in self._parts:
            self._revive(part)
        workers = {
            part.name.removeprefix("worker-"): read_live(self._workspace, part.name)
            for part in self._parts
            if part.name.startswith("worker-")
        }
        daemon, planner = read_live(self._workspace, "daemon"), read_live(self._workspace, "planner")
        messages = (*self._messages, *_sentences(daemon), *_sentences(planner))
        return Snapshot(daemon, planner, workers, time.monotonic() - self._since, messages)

    def _revive(self, part: _Part) -> None:
        """Start a part again that has died.

        Raises:
            ConfigurationError: it dies again and again, or says itself that it cannot work.
        """
        if part.alive() or part.process is None or self._stop.is_set():
            return
        now, code = time.monotonic(), part.process.returncode
        if not part.not_before:
            part.deaths = part.deaths + 1 if now - part.started_at < _SOON_S else 1
            said = self._last_words(part)
            if code == ConfigurationError.exit_code or part.deaths > _RESTARTS:
                raise ConfigurationError(
                    f"the {part.name} cannot work: {said}", where=str(self._workspace.logs / f"{part.name}.out")
                )
            part.not_before = now + _BACK_OFF_S * 2 ** (part.deaths - 1)
            self._messages.append(f"the {part.name} ended ({_how(code)}) and is started again")
            logger.warning("%s; it said: %s", self._messages[-1], said)
            failpoint("supervisor.part_died")
        if now >= part.not_before:
            part.not_before = 0.0
            part.start(self._workspace)
            failpoint("supervisor.part_restarted")

    def _last_words(self, part: _Part) -> str:
        with suppress(OSError):
            lines = (self._workspace.logs / f"{part.name}.out").read_text(errors="replace").strip().splitlines()
            return "\n  ".join(lines[-3:]) or "it said nothing"
        return "it said nothing"

    def _why_end(self, now: Snapshot) -> Outcome | None:
        if self._stop.is_set():
            return Outcome("stopped", interrupted=True)
        minutes = self._limits.max_minutes
        if minutes is not None and now.elapsed_s >= minutes * 60:
            return Outcome(f"{minutes:g} minutes are over")
        usd = self._limits.max_usd
        if usd is not None and self._purse.spent().usd - self._usd_before >= usd:
            return Outcome(f"{usd:g} USD are spent")
        if now.daemon.get("limit_reached"):
            return Outcome(f"{self._limits.max_evaluations} evaluations are made")
        if not self._nothing_left(now):
            self._idle_since = None
            return None
        if self._idle_since is None:
            self._idle_since = time.monotonic()
        # The parts have to have said so for a while: what a worker submitted last may just be on its way.
        settled = time.monotonic() - self._idle_since >= _SETTLED_S
        return Outcome("nothing is left to try") if settled else None

    def _nothing_left(self, now: Snapshot) -> bool:
        """Whether every worker is idle without a row that it could work on, and the daemon has nothing to do."""
        if not now.daemon.get("judges") or now.daemon.get("queued") or now.daemon.get("current"):
            return False
        if "assignments" not in now.planner:
            return False
        rows = {row["worker"]: row["problem"] for row in now.planner["assignments"] if row["state"] != "paused"}
        return all(
            said.get("state") == "spent"
            or (said.get("state") == "idle" and rows.get(name) in {None, *said.get("finished", {})})
            for name, said in now.workers.items()
        )

    def end(self) -> None:
        """End every part: workers first, so that nothing new comes; the daemon last, it commits the ledger."""
        workers = [part for part in self._parts if part.name.startswith("worker-")]
        others = [part for part in self._parts if part not in workers]
        for group in (workers, [part for part in others if part.name == "planner"], others):
            for part in group:
                part.tell(signal.SIGTERM)
                failpoint("supervisor.told_to_end")
            _wait(group)
        failpoint("supervisor.ended")


def _wait(parts: Sequence[_Part]) -> None:
    until = time.monotonic() + _ENDS_WITHIN_S
    for part in parts:
        if part.process is None:
            continue
        try:
            part.process.wait(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.warning("the %s does not end and is killed", part.name)
            part.tell(signal.SIGKILL)
            part.process.wait(timeout=_KILLED_WITHIN_S)


def _sentences(said: dict[str, Any]) -> list[str]:
    messages = said.get("messages")
    return [str(message) for message in messages] if isinstance(messages, list) else []


def _how(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return (
        signal.Signals(-code).name if code < 0 and -code in {s.value for s in signal.Signals} else f"exit code {code}"
    )


def stop_running(workspace: Workspace, within_s: float) -> bool:
    """End a running `harness start` cleanly and wait for it; False when none runs here.

    Raises:
        ConfigurationError: it has not ended within `within_s`.
    """
    said = read_live(workspace, "start")
    pid = said.get("pid")
    if not isinstance(pid, int) or not _lock_is_held(workspace):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + within_s
    waiter = threading.Event()
    while time.monotonic() < until:
        if not _lock_is_held(workspace):
            return True
        waiter.wait(0.1)
    raise ConfigurationError(
        f"harness start (process {pid}) has not ended within {within_s:.0f} s",
        remedy=f"kill {pid}; nothing is lost by it",
    )


def _lock_is_held(workspace: Workspace) -> bool:
    try:
        with file_lock(workspace.start_lock, owner="harness stop"):
            return False
    except ConfigurationError:
        return True
