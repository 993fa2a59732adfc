"""Names and paths inside the repository; no other module contains them as literals (tests/test_architecture.py).

Paths are relative to the repository's root and use `/`. Every `parse_*` function is the inverse of the function that
forms the path, and returns None for a path of another form.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.errors import LedgerError

PROBLEMS = "problems"
SOLUTIONS = "solutions"
"""Directory of a problem that holds one solution per target."""
WORKTREES = "workspaces"
LEDGER = "ledger"
HEADS = f"{LEDGER}/heads.yaml"
DECISIONS = f"{LEDGER}/decisions.yaml"
ACCOUNTS = f"{LEDGER}/accounts.yaml"
_LESSONS_SUITE = "lessons"
LESSONS = f"{LEDGER}/{_LESSONS_SUITE}"
AGENT_BRANCHES = "agents"
MERGE_BRANCHES = "win"
BRANCH_NAMESPACES = (AGENT_BRANCHES, MERGE_BRANCHES)
"""First components of the branches that the harness creates."""

AGENT_BRANCH_FORM = f"{AGENT_BRANCHES}/<run>/<worker>/<suite>/<name>"
WORKTREE_FORM = f"{WORKTREES}/<worker>/<suite>/<name>/"
NAME_FORM = "letters, digits, `_`, `-` and single dots"
"""Characters of names, for messages."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_MAX_NAME_LENGTH, _MAX_RUN_LENGTH, _MAX_WORKER_LENGTH = 100, 64, 32
RUN_FORM = f"at most {_MAX_RUN_LENGTH} {NAME_FORM}"
WORKER_FORM = f"at most {_MAX_WORKER_LENGTH} letters, digits, `_` and `-`"


class AgentBranch(NamedTuple):
    """The parts of `agents/<run>/<worker>/<suite>/<name>`."""

    run: str
    worker: str
    problem: str


class MergeBranch(NamedTuple):
    """The parts of `win/<run>/<suite>/<name>`; `target` is null where the run has one target only."""

    run: str
    problem: str
    target: str | None


class SolutionPath(NamedTuple):
    """The parts of `problems/<suite>/<name>/solutions/<target>/<inside>`."""

    problem: str
    target: str
    inside: str
    """Path relative to the solution directory; empty for the directory itself."""


class ProblemPath(NamedTuple):
    """The parts of `problems/<suite>/<name>/<inside>`."""

    problem: str
    inside: str
    """Path relative to the problem's directory; empty for the directory itself."""


def is_name(text: str, *, max_length: int = _MAX_NAME_LENGTH) -> bool:
    """Return whether a text can be one component of a file path and of a git ref.

    Git forbids `..`, and a trailing `.` or `.lock`, in a component of a ref (git-check-ref-format(1)).

    Args:
        max_length: upper bound of the characters.
    """
    return len(text) <= max_length and _NAME.fullmatch(text) is not None and not text.endswith(".lock")


def is_run(text: str) -> bool:
    """Return whether a text can name a run."""
    return is_name(text, max_length=_MAX_RUN_LENGTH)


def is_worker(text: str) -> bool:
    """Return whether a text can name a worker. Workers' names have no dot: they also name sections and live files."""
    return is_name(text, max_length=_MAX_WORKER_LENGTH) and "." not in text


def is_target(text: str) -> bool:
    """Return whether a text can name a target. Targets' names have no dot: they also name outcome files."""
    return is_worker(text)


def is_problem(key: str) -> bool:
    """Return whether a text is a problem's key: `suite/name`, whose suite is not the ledger's directory of lessons."""
    suite, _, name = key.partition("/")
    return is_name(suite) and is_name(name) and suite != _LESSONS_SUITE


def name_from(text: str) -> str:
    """Return a valid name that is similar to a text, such as the name of a problem of another benchmark."""
    name = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "_", text))
    return name.lstrip("._-").rstrip(".").removesuffix(".lock") or "problem"


def problem_path(problem: str) -> str:
    """Return `problems/<suite>/<name>`."""
    return f"{PROBLEMS}/{problem}"


def parse_problem_path(path: str) -> ProblemPath | None:
    """Return the problem that a path belongs to, and the path inside it."""
    parts = path.split("/", 3)
    if len(parts) < 3 or parts[0] != PROBLEMS or not parts[1] or not parts[2]:
        return None
    return ProblemPath(f"{parts[1]}/{parts[2]}", "".join(parts[3:]))


def solution_path(problem: str, target: str) -> str:
    """Return `problems/<suite>/<name>/solutions/<target>`.

    Args:
        target: device class that the solution is tuned for.
    """
    return f"{problem_path(problem)}/{SOLUTIONS}/{target}"


def parse_solution_path(path: str) -> SolutionPath | None:
    """Return the solution that a path belongs to, and the path inside it."""
    in_problem = parse_problem_path(path)
    parts = in_problem.inside.split("/", 2) if in_problem else []
    if in_problem is None or len(parts) < 2 or parts[0] != SOLUTIONS or not parts[1]:
        return None
    return SolutionPath(in_problem.problem, parts[1], "".join(parts[2:]))


def run_branches(run: str) -> str:
    """Return the prefix of the branches of a run's workers."""
    return f"{AGENT_BRANCHES}/{run}/"


def agent_branch(run: str, worker: str, problem: str) -> str:
    """Return `agents/<run>/<worker>/<suite>/<name>`."""
    return f"{run_branches(run)}{worker}/{problem}"


def parse_agent_branch(branch: str) -> AgentBranch | None:
    """Return the parts of a worker's branch."""
    parts = branch.split("/")
    if len(parts) != 5 or parts[0] != AGENT_BRANCHES or not all(parts):
        return None
    return AgentBranch(parts[1], parts[2], f"{parts[3]}/{parts[4]}")


def run_merge_branches(run: str) -> str:
    """Return the prefix of the merge branches of a run."""
    return f"{MERGE_BRANCHES}/{run}/"


def merge_branch(run: str, problem: str, target: str | None) -> str:
    """Return `win/<run>/<suite>/<name>`, followed by `@<target>` where the run has several targets.

    Args:
        target: null where the run has one target only.
    """
    return f"{run_merge_branches(run)}{problem}{'' if target is None else f'@{target}'}"


def parse_merge_branch(branch: str) -> MergeBranch | None:
    """Return the parts of a merge branch."""
    parts = branch.split("/")
    if len(parts) != 4 or parts[0] != MERGE_BRANCHES or not all(parts):
        return None
    name, at, target = parts[3].partition("@")
    if not name or bool(at) != bool(target):
        return None
    return MergeBranch(parts[1], f"{parts[2]}/{name}", target or None)


def ledger_file(problem: str) -> str:
    """Return the ledger file of a problem, `ledger/<suite>/<name>.yaml`.

    Raises:
        LedgerError: the key is not `suite/name`, or its suite is the directory of lessons.
    """
    if not is_problem(problem):
        raise LedgerError(f"`{problem}` cannot have a ledger file: a problem's key is `suite/name`")
    return f"{LEDGER}/{problem}.yaml"


def parse_ledger_file(file: str) -> str | None:
    """Return the problem whose entries a ledger file contains; None for the planner's files and heads.yaml."""
    key = file.removeprefix(f"{LEDGER}/").removesuffix(".yaml")
    return key if file == f"{LEDGER}/{key}.yaml" and is_problem(key) else None


def lessons_file(problem: str) -> str:
    """Return the path of the lessons about a problem, `ledger/lessons/<suite>/<name>.yaml`."""
    return f"{LESSONS}/{problem}.yaml"


def is_lessons_file(file: str) -> bool:
    """Return whether a ledger file contains lessons: its path below `ledger/lessons/` consists of names."""
    stem = file.removeprefix(f"{LESSONS}/").removesuffix(".yaml")
    return file == f"{LESSONS}/{stem}.yaml" and all(is_name(part) for part in stem.split("/"))


def is_planner_file(file: str) -> bool:
    """Return whether the planner owns a ledger file: decisions, accounts or lessons."""
    return file in {DECISIONS, ACCOUNTS} or is_lessons_file(file)


def worktree_path(worker: str, problem: str) -> str:
    """Return `workspaces/<worker>/<suite>/<name>`."""
    return f"{WORKTREES}/{worker}/{problem}"


def parse_worktree_path(path: str) -> tuple[str, str] | None:
    """Return the worker and the problem of a worktree's directory."""
    parts = path.split("/")
    if len(parts) != 4 or parts[0] != WORKTREES or not all(parts):
        return None
    return parts[1], f"{parts[2]}/{parts[3]}"
