"""The parts of the live page, from the ledger's index, git and the status records; only changed parts are read."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import harness
from harness.formats.problems import list_problems
from harness.git.repo import Repo
from harness.ledger.candidates import CommittedCandidate, committed_candidates
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.config import Config
from harness.model.entry import stamp
from harness.model.paths import DECISIONS, parse_agent_branch, run_branches, solution_path
from harness.model.process_status import DaemonStatus, PlannerStatus, ProcessStatus, StartStatus, WorkerStatus
from harness.model.weaknesses import SYMBOL
from harness.report.collect import decided_problems, headline
from harness.report.live.problem_parts import ProblemParts, as_json
from harness.report.live.spending import RecordedAccounts, spending
from harness.report.page import Json
from harness.report.problem_summary import RunSpan, interval, short
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from harness.workspace.status import is_alive, read_run_result, read_status, recorded_processes, result_of

PROBLEM = "problem:"
"""Prefix of the names of the parts that are problems."""
_RECENT = 40
_OF_ENTRIES = ("problem", "seq", "at", "kind", "worker", "verdict", "reason")
_OF_SUBMISSIONS = ("problem", "worker", "at", "commit", "subject")
_OF_JUDGES = {"device", "state", "failure", "problem", "kind", "worker", "stage", "done", "of"}
_LIST_EVERY_S = 5.0
"""Interval at which the directory of problems is read again."""
_SPENT_EVERY_S = 1.0
_SUBJECTS = 4096
_MAX_SUBMISSIONS = 30
_LEDGER_KEY = "SELECT value FROM meta WHERE name IN ('tip', 'spool') ORDER BY name"
# A plus sign before a column prevents SQLite from using its index: the index over time finds the newest entries faster.
_NEWEST = (
    "WHERE +run = ? AND +target = ? AND kind IN ('evaluation', 'confirmation') "
    "ORDER BY at DESC, problem DESC, seq DESC LIMIT ?"
)


class Collector:
    """Collects the parts of the page. Not thread-safe.

    Args:
        run: the run to show; None for the run of the last `harness start`, else harness.yaml's.
        target: None for the target of the last `harness start`, else harness.yaml's, else that of the run's last entry.
    """

    def __init__(
        self, workspace: Workspace, repo: Repo, index: Index, *, run: str | None = None, target: str | None = None
    ) -> None:
        self._workspace, self._repo, self._index = workspace, repo, index
        self._run, self._target = run, target
        self._view: _RunView | None = None
        self._last_target = "", ""
        self.messages: list[str] = []
        """Messages of the last refresh of the index: that it was built again, and entries that cannot be read."""

    def collect(self, progress: Callable[[int, int], None] | None = None) -> dict[str, str]:
        """Return name -> JSON text of all parts.

        Raises:
            HarnessError: the ledger or the configuration cannot be read.
        """
        config = load_config(self._workspace)
        self.messages = self._index.refresh(self._repo, progress)
        start = read_status(self._workspace, StartStatus)
        run = self._run or (start.run if start and start.run and is_alive(start) else None) or config.run
        target = self._target or self._target_of(config, run, start)
        view = self._view
        if view is None or view.subject != (run, target, config.coordination_branch):
            view = self._view = _RunView(self._workspace, self._repo, self._index, config, run, target)
        return view.collect(config, start if start is not None and start.run == run else None)

    def close(self) -> None:
        """Close the repository and the index."""
        self._index.close()
        self._repo.close()

    def _target_of(self, config: Config, run: str, start: StartStatus | None) -> str:
        if start is not None and start.target and start.run == run and is_alive(start):
            return start.target
        if config.target:
            return config.target
        key = repr((run, self._index.query(_LEDGER_KEY)))
        if key != self._last_target[0]:
            last = self._index.query("SELECT target FROM entries WHERE +run = ? ORDER BY at DESC LIMIT 1", (run,))
            self._last_target = key, str(last[0][0]) if last else "cpu"
        return self._last_target[1]


class _RunView:
    """The parts of one run and target."""

    def __init__(self, workspace: Workspace, repo: Repo, index: Index, config: Config, run: str, target: str) -> None:
        branch = config.coordination_branch
        self._workspace, self._repo, self._index = workspace, repo, index
        self.subject = run, target, branch
        self._problems = ProblemParts(repo, index, RunSpan(branch, run, target, None))
        self._waiting = _WaitingSubmissions(repo, index, branch=branch, run=run, target=target)
        self._accounts = RecordedAccounts(workspace, repo, branch)
        self._subject_of = lru_cache(maxsize=_SUBJECTS)(self._read_subject)
        self._ledger_key = ""
        self._texts: dict[str, str] = {}
        self._listed: tuple[float, tuple[str, ...], list[str]] = (float("-inf"), (), [])
        self._decided: tuple[str | None, set[str]] = "", set()
        """Id of the file of decisions, and the problems of the planner's last decision."""
        self._last_start: StartStatus | None = None
        self._last_daemon: DaemonStatus | None = None
        self._last_workers: list[Json] = []
        """Records that `harness start` removes when it ends; the page shows them until the next start."""
        self._spending_at = float("-inf")

    def collect(self, config: Config, start: StartStatus | None) -> dict[str, str]:
        """Return name -> JSON text of all parts.

        Args:
            start: the record of the last `harness start`; None if its run was another one.
        """
        processes = self._with_last_workers(_read_processes(self._workspace))
        self._texts["now"] = as_json(processes)
        if start is not None:
            self._last_start, self._last_daemon = start, read_status(self._workspace, DaemonStatus)
        problems = self._run_problems(config)
        key = repr((self._index.query(_LEDGER_KEY), problems))
        if key != self._ledger_key:
            self._collect_ledger(problems)
            self._ledger_key = key
        if processes["running"] or "waiting" not in self._texts:
            submissions = self._waiting.submissions()
            rows = [{name: getattr(submission, name) for name in _OF_SUBMISSIONS} for submission in submissions]
            self._texts["waiting"] = as_json({"submissions": rows})
        if time.monotonic() - self._spending_at >= _SPENT_EVERY_S:
            spent = self._accounts.spent(self.subject[0])
            self._texts["spending"] = as_json(spending(config, self._last_start, self._last_daemon, spent))
            summaries = list(self._problems.summaries.values())
            self._texts["headline"] = as_json(headline(summaries, spent[0].usd if spent else None))
            self._spending_at = time.monotonic()
        return {**self._texts, **{f"{PROBLEM}{name}": text for name, text in self._problems.texts.items()}}

    def _collect_ledger(self, problems: list[str]) -> None:
        run, target, branch = self.subject
        sql = "SELECT DISTINCT problem FROM entries WHERE run = ? AND target = ?"
        tried = [str(name) for (name,) in self._index.query(sql, (run, target))]
        self._problems.update(sorted({*problems, *tried}))
        begin = self._problems.span.begin
        meta = {
            "run": run,
            "target": target,
            "branch": branch,
            "begin": stamp(begin) if begin else None,
            "version": harness.__version__,
            "workspace": self._workspace.root.name,
            "symbol": SYMBOL,
            **self._problems.notes(),
        }
        self._texts["meta"] = as_json(meta)
        recent = self._index.select(_NEWEST, (run, target, _RECENT))
        self._texts["recent"] = as_json({"entries": [self._recent(row) for row in recent]})
        self._spending_at = float("-inf")

    def _with_last_workers(self, processes: Json) -> Json:
        if processes["workers"] or processes["running"]:
            self._last_workers = processes["workers"]
            return processes
        return processes | {"workers": [worker | {"state": "ended"} for worker in self._last_workers]}

    def _run_problems(self, config: Config) -> list[str]:
        """Return the problems of the last start; without a record of it, those of the planner's last decision."""
        if self._last_start is not None and self._last_start.problems:
            return self._listed_problems(self._last_start.problems)
        run, target, branch = self.subject
        file = self._repo.tree_of(branch, DECISIONS)
        if file != self._decided[0]:
            self._decided = file, decided_problems(self._repo, branch, run, target)
        listed = self._listed_problems(config.problems)
        return [name for name in listed if name in self._decided[1]] if self._decided[1] else listed

    def _listed_problems(self, globs: tuple[str, ...]) -> list[str]:
        at, listed_globs, names = self._listed
        if globs != listed_globs or time.monotonic() - at >= _LIST_EVERY_S:
            names = [str(name) for name in list_problems(self._workspace.problems, globs)]
            self._listed = time.monotonic(), globs, names
        return names

    def _recent(self, row: Row) -> Json:
        return {
            **{name: getattr(row, name) for name in _OF_ENTRIES},
            **interval(row),
            "latency_us": short(row.latency_us),
            "weaknesses": [weakness.sentence for weakness in row.weaknesses],
            "commit": row.commit,
            "subject": self._subject_of(row.commit) if row.commit else None,
        }

    def _read_subject(self, commit: str) -> str | None:
        return self._repo.commit(commit).subject if self._repo.has_object(commit) else None


class _WaitingSubmissions:
    """Finds the submissions without an evaluation; a branch is read again only if its tip has changed.

    Args:
        index: index of the ledger, refreshed by the caller.
        branch: the coordination branch.
    """

    def __init__(self, repo: Repo, index: Index, *, branch: str, run: str, target: str) -> None:
        self._repo, self._index = repo, index
        self._branch, self._run, self._target = branch, run, target
        self._tips: dict[str, str] = {}
        self._unjudged: dict[str, CommittedCandidate | None] = {}
        """Branch -> its newest candidate."""

    def submissions(self) -> list[CommittedCandidate]:
        """Return at most 30 waiting submissions, oldest first."""
        tips = self._repo.branches(run_branches(self._run))
        for branch, tip in tips.items():
            if self._tips.get(branch) != tip:
                self._unjudged[branch] = self._candidate(branch, tip)
        self._tips = tips
        self._unjudged = {
            branch: candidate
            for branch, candidate in self._unjudged.items()
            if branch in tips and candidate and not self._is_judged(candidate.problem, candidate.tree)
        }
        submissions = filter(None, self._unjudged.values())
        return sorted(submissions, key=lambda candidate: candidate.at)[:_MAX_SUBMISSIONS]

    def _candidate(self, branch: str, tip: str) -> CommittedCandidate | None:
        agent_branch = parse_agent_branch(branch)
        tree = self._repo.tree_of(tip, solution_path(agent_branch.problem, self._target)) if agent_branch else None
        if agent_branch is None or tree is None or self._is_judged(agent_branch.problem, tree):
            return None
        base = self._tips.get(branch) or self._repo.tip(self._branch)
        candidates = committed_candidates(self._repo, branch, tip, base, self._target)
        return next((candidate for candidate in reversed(candidates) if candidate.tree == tree), None)

    def _is_judged(self, problem: str, tree: str) -> bool:
        where = "tree = ? AND problem = ? AND target = ? AND kind = 'evaluation'"
        return bool(self._index.query(f"SELECT 1 FROM entries WHERE {where} LIMIT 1", (tree, problem, self._target)))  # noqa: S608


def _read_processes(workspace: Workspace) -> Json:
    """Return the running processes and the records of ended processes as JSON."""
    records = recorded_processes(workspace)
    alive = {name: status for name, status in records.items() if is_alive(status)}
    status, planner, start = alive.get("daemon"), alive.get("planner"), records.get("start")
    daemon = status if isinstance(status, DaemonStatus) else None
    workers = {name: status for name, status in records.items() if isinstance(status, WorkerStatus)}
    return {
        "running": sorted(alive),
        "started_at": start.started_at if isinstance(start, StartStatus) else None,
        "ended": None if alive else _result(workspace, start),
        "queued": daemon.queued if daemon else None,
        "paused": daemon.paused if daemon else None,
        "messages": _messages(daemon, planner),
        "judges": [judge.model_dump(mode="json", include=_OF_JUDGES) for judge in daemon.judges] if daemon else [],
        "workers": [_worker(status, alive=name in alive) for name, status in workers.items()],
    }


def _messages(*statuses: ProcessStatus | None) -> list[str]:
    texts = (status.messages for status in statuses if isinstance(status, DaemonStatus | PlannerStatus))
    return list(dict.fromkeys(message for messages in texts for message in messages))


def _result(workspace: Workspace, start: ProcessStatus | None) -> Json | None:
    """Return the result of the last `harness start`; None without a record of it."""
    result = result_of(workspace, start) if isinstance(start, StartStatus) else read_run_result(workspace)
    if result is not None:
        return {"why": result.ended, "exit_code": result.exit_code}
    return {"why": "it was killed", "exit_code": None} if start is not None else None


def _worker(status: WorkerStatus, *, alive: bool) -> Json:
    return {
        "worker": status.worker,
        "agent": status.agent,
        "state": status.state if alive else "ended",
        "problem": status.problem,
        "message": status.last_message,
        "failure": status.last_failure,
        "evaluations": status.evaluations,
        "usd": round(status.usd, 4),
    }
