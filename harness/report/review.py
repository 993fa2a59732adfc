"""The facts for a review of one candidate, from the ledger, git and the lessons."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.errors import AnswerIsNo, ConfigurationError
from harness.formats.bounded import PROBLEM_BYTES, load_json
from harness.formats.problems import DEFINITION_NAME, WORKLOADS_NAME
from harness.formats.source_lines import numbered_lines
from harness.git.branch_commits import resolve
from harness.git.problem_digests import digest_at
from harness.git.repo import Commit, Repo
from harness.ledger.champions import MeasuredCandidate, champion, doubts, measured, measured_by, unconfirmed_better
from harness.ledger.index import Index
from harness.ledger.ledger import read_records
from harness.ledger.standings import standings
from harness.model.champions import counts
from harness.model.paths import (
    AGENT_BRANCH_FORM,
    lessons_file,
    parse_agent_branch,
    parse_merge_branch,
    problem_path,
    solution_path,
)
from harness.model.verdict import EntryKind
from harness.report.merge_branches import diff

_COMPARED = re.compile(r"(?:==|!=|<=|>=|<|>|\bcase)\s*\(?(\d{2,})\b|\b(\d{2,})\s*(?:==|!=)")
_MAX_ATTEMPTS = 12
_SHOWN_DECREASE = 0.03
"""A confirmation that is lower than its evaluation by more than this share gets a warning: selection of the best of
many evaluations favours high noise."""


@dataclass(frozen=True)
class Attempt:
    """One earlier candidate."""

    seq: int
    at: str
    worker: str | None
    verdict: str | None
    speedup: float | None
    description: str
    """The subject of its commit, or the reason why it failed."""

    def row(self) -> dict[str, object]:
        """Return the attempt as `harness review --json` prints it."""
        fields = {name: value for name, value in vars(self).items() if name != "description"}
        return {**fields, "what": self.description}


@dataclass
class Review:
    """A candidate and the present solution on the main branch."""

    problem: str
    target: str
    commit: str
    tree: str
    branch: str | None
    digest: str
    base: str
    """The commit with the present solution."""
    present_tree: str | None
    measured: MeasuredCandidate | None
    present: MeasuredCandidate | None
    """The ledger's entries of the present solution."""
    diff: str
    provenance: dict[str, str]
    warnings: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    lessons: list[str] = field(default_factory=list)


def review(repo: Repo, index: Index, problem_or_branch: str, *, base: str, target: str, run: str) -> Review:
    """Collect the facts about a candidate.

    Args:
        index: index of the ledger, refreshed by the caller.
        problem_or_branch: a problem (for its champion, or else its best evaluation), an agent's branch, or `win/…`.
        base: the branch to merge into.
        run: the run of the champion, if a problem is named.

    Raises:
        ConfigurationError: the name is neither a problem nor such a branch.
        AnswerIsNo: the problem has no candidate that passed.
    """
    tip = repo.tip(base)
    definition = f"{problem_path(problem_or_branch)}/{DEFINITION_NAME}"
    is_branch = resolve(repo.git, f"refs/heads/{problem_or_branch}") is not None
    branch = problem_or_branch if is_branch and repo.read(tip, definition) is None else None
    problem = _problem_of(branch) if branch else problem_or_branch
    digest = digest_at(repo, tip, problem)
    if digest is None:
        raise ConfigurationError(
            f"`{problem_or_branch}` is neither a problem on {base} nor a local branch", remedy="harness problems list"
        )
    path = solution_path(problem, target)
    if branch:
        commit = repo.tip(branch)
        tree = repo.tree_of(commit, path)
        if tree is None:
            raise AnswerIsNo(f"{branch} has no solution for {target}", remedy="select the target with --target")
        candidate = measured(index, problem, tree, target)
    else:
        candidate = champion(index, problem, digest, target, run) or _best(index, problem, digest, target, run)
        candidate = candidate or _outdated(index, problem, digest, target, run)
        if candidate is None or candidate.evaluation.candidate is None:
            raise AnswerIsNo(
                f"{problem} has no candidate for {target} that passed in run {run}",
                remedy=f"`harness log {problem}` shows its attempts",
            )
        commit, tree = candidate.evaluation.candidate.commit, candidate.tree
    present_tree = repo.tree_of(tip, path)
    commit_info = repo.commit(commit) if repo.has_object(commit) else None
    result = Review(
        problem=problem,
        target=target,
        commit=commit,
        tree=tree,
        branch=branch
        or (candidate.evaluation.candidate.branch if candidate and candidate.evaluation.candidate else None),
        digest=digest,
        base=tip,
        present_tree=present_tree,
        measured=candidate,
        present=measured(index, problem, present_tree, target) if present_tree else None,
        diff=diff(repo, present_tree, tree) if repo.has_object(tree) and tree != present_tree else "",
        provenance=_provenance(candidate, commit_info),
    )
    result.warnings = list(_warnings(repo, index, result))
    result.attempts = list(_attempts(repo, index, result))
    result.lessons = _lessons(repo, index.branch, problem)
    return result


def _problem_of(branch: str) -> str:
    parts = parse_agent_branch(branch) or parse_merge_branch(branch)
    if parts is None:
        raise ConfigurationError(
            f"`{branch}` is neither an agent's branch nor a win branch, so its problem is not known",
            remedy=f"name the problem, or a branch {AGENT_BRANCH_FORM}",
        )
    return parts.problem


def _best(index: Index, problem: str, digest: str, target: str, run: str) -> MeasuredCandidate | None:
    """Return the fastest candidate that passed, confirmed or not."""
    rows = index.rows(problem, target=target, run=run, kind=str(EntryKind.EVALUATION))
    passed = [row for row in rows if row.problem_digest == digest and row.verdict == "PASSED" and counts(row)]
    best = max((row for row in passed if row.speedup), key=lambda row: row.speedup or 0.0, default=None)
    return measured_by(index, best) if best else None


def _outdated(index: Index, problem: str, digest: str, target: str, run: str) -> MeasuredCandidate | None:
    """Return the best candidate by an older judge protocol, which must be measured again."""
    (standing,) = standings(index, [problem], target, run)
    rows = [row for row in standing.outdated if row.problem_digest == digest]
    return measured_by(index, rows[0]) if rows else None


def _provenance(candidate: MeasuredCandidate | None, commit: Commit | None) -> dict[str, str]:
    """Return worker, run, model and cost of a candidate, from its entry and the trailers of its commit."""
    origin = {}
    if candidate and candidate.evaluation.candidate:
        origin = {"Worker": candidate.evaluation.candidate.worker, "Run": candidate.evaluation.run}
    trailers = {name: value for name, value in (commit.trailers if commit else {}).items() if value not in {"", "none"}}
    cost = candidate.evaluation.cost if candidate else None
    judged = {"Judged in": f"{cost.build_s + cost.judge_s:.1f} s"} if cost else {}
    return {**origin, **trailers, **judged, **({"Subject": commit.subject} if commit else {})}


def _warnings(repo: Repo, index: Index, reviewed: Review) -> Iterator[str]:
    candidate = reviewed.measured
    if candidate is None:
        yield "the ledger has no entry of this tree: it was not judged"
    else:
        yield from doubts(candidate)
        if candidate.counts.problem_digest != reviewed.digest:
            yield "the entry is stale: the problem has changed since it was judged"
        if candidate.confirmation is None:
            yield "not confirmed: this is its only measurement, and the best of many measurements is partly noise"
        elif (decrease := _decrease(candidate)) > _SHOWN_DECREASE:
            yield f"the confirmation is {decrease:.1%} below the evaluation: the evaluation had favourable noise"
        rival = unconfirmed_better(index, candidate) if candidate.confirmation else None
        if rival is not None:
            yield f"seq {rival.seq} by {rival.worker} measured {rival.speedup:.3f}x and awaits its confirmation"
    if reviewed.tree == reviewed.present_tree:
        yield "the main branch already has this solution"
    if not repo.has_object(reviewed.tree):
        yield "the candidate's tree is not in this repository: no diff is available"
        return
    yield from _special_cases(repo, reviewed)


def _decrease(candidate: MeasuredCandidate) -> float:
    """Return the decrease from the evaluation's speed-up to the confirmation's, as a share."""
    first, second = candidate.evaluation.summary, candidate.confirmation.summary if candidate.confirmation else None
    if not first or not second or not first.speedup or not second.speedup:
        return 0.0
    return 1 - second.speedup / first.speedup


def _special_cases(repo: Repo, reviewed: Review) -> Iterator[str]:
    """Yield a warning for each source that compares with sizes of the workloads: it may special-case them."""
    sizes = _sizes(repo, reviewed)
    for name, content in repo.read_many(reviewed.tree, repo.files(reviewed.tree)).items():
        text = content.decode(errors="replace")
        compared = sizes & {int(right or left) for right, left in _COMPARED.findall(text)}
        if compared:
            shown = ", ".join(map(str, sorted(compared)))
            yield f"{name} compares with {shown}, sizes of the workloads: shapes may be special-cased"


def _sizes(repo: Repo, reviewed: Review) -> set[int]:
    file = f"{problem_path(reviewed.problem)}/{WORKLOADS_NAME}"
    text = (repo.read(reviewed.base, file) or b"").decode(errors="replace")
    sizes = set()
    for number, line in numbered_lines(text):
        value = load_json(line, where=file, max_bytes=PROBLEM_BYTES, first_line=number)
        axes = value.get("axes") if isinstance(value, dict) else None
        if isinstance(axes, dict):
            sizes |= {size for size in axes.values() if isinstance(size, int) and size > 9}
    return sizes


def _attempts(repo: Repo, index: Index, reviewed: Review) -> Iterator[Attempt]:
    """Yield the evaluations before the reviewed one, the newest first."""
    until = reviewed.measured.evaluation.seq if reviewed.measured else math.inf
    rows = index.rows(reviewed.problem, target=reviewed.target, kind=str(EntryKind.EVALUATION))
    for row in reversed([row for row in rows if row.seq < until][-_MAX_ATTEMPTS:]):
        description = row.reason or ""
        if not description and row.commit and repo.has_object(row.commit):
            description = repo.commit(row.commit).subject
        if not counts(row):
            description = f"(judge protocol {row.judge_protocol}) {description}"
        yield Attempt(row.seq, row.at, row.worker, row.verdict, row.speedup, description)


def _lessons(repo: Repo, branch: str, problem: str) -> list[str]:
    """Return the workers' notes on the problem, the newest first."""
    records = read_records(repo.workspace, repo, lessons_file(problem), branch=branch)
    lines = [f"{record.get('worker', '?')}: {record.get('text', '')}" for record in reversed(records)]
    return list(dict.fromkeys(lines))[:_MAX_ATTEMPTS]
