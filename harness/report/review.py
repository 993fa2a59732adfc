"""What a person needs to judge one candidate: collected from the ledger, git and the lessons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.errors import AnswerIsNo, ConfigurationError
from harness.formats.bounded import PROBLEM_BYTES, load_json
from harness.formats.problems import DEFINITION_NAME, WORKLOADS_NAME
from harness.git.branch_commits import resolve
from harness.git.problem_digests import digest_at
from harness.git.repo import Commit, Repo
from harness.ledger.champions import (
    MeasuredCandidate,
    champion,
    doubts,
    measured,
    measured_by,
    unconfirmed_better,
)
from harness.ledger.entry_rows import Row
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
_TRIED = 12
_CURSE = 0.03
"""A confirmation so much below its evaluation is worth a word: the evaluation was lucky."""


@dataclass(frozen=True)
class Attempt:
    """One earlier candidate."""

    seq: int
    at: str
    worker: str | None
    verdict: str | None
    speedup: float | None
    what: str
    """Its commit's subject, or why it failed."""


@dataclass
class Review:
    """One candidate against the solution that stands on the main branch."""

    problem: str
    target: str
    commit: str
    tree: str
    branch: str | None
    digest: str
    base: str
    """The commit that it is compared with."""
    present_tree: str | None
    measured: MeasuredCandidate | None
    present: MeasuredCandidate | None
    """What the ledger says of the solution that stands now."""
    diff: str
    provenance: dict[str, str]
    warnings: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    lessons: list[str] = field(default_factory=list)


def review(repo: Repo, index: Index, what: str, *, base: str, target: str, run: str) -> Review:
    """Collect everything about a candidate.

    Args:
        repo: the workspace's repository.
        index: refreshed.
        what: a problem (its champion, or else its best evaluation), a branch of an agent or `win/…`.
        base: the branch that it would be merged into.
        target: whose solution.
        run: whose champion, where a problem is named.

    Raises:
        ConfigurationError: neither a problem nor such a branch.
        AnswerIsNo: the problem has no candidate that passed.
    """
    tip = repo.tip(base)
    branch = what if resolve(repo.git, f"refs/heads/{what}") and repo.read(tip, _definition(what)) is None else None
    problem = _problem_of(branch) if branch else what
    digest = digest_at(repo, tip, problem)
    if digest is None:
        raise ConfigurationError(
            f"`{what}` is neither a problem on {base} nor a branch here", remedy="harness problems list"
        )
    place = solution_path(problem, target)
    if branch:
        commit = repo.tip(branch)
        tree = repo.tree_of(commit, place)
        if tree is None:
            raise AnswerIsNo(f"{branch} has no solution for {target}", remedy="say which target with --target")
        found = measured(index, problem, tree, target)
    else:
        found = champion(index, problem, digest, target, run) or _best(index, problem, digest, target, run)
        found = found or _history(index, problem, digest, target, run)
        if found is None or found.evaluation.candidate is None:
            raise AnswerIsNo(
                f"{problem} has no candidate for {target} that passed in run {run}",
                remedy=f"`harness log {problem}` shows what was tried",
            )
        commit, tree = found.evaluation.candidate.commit, found.tree
    present_tree = repo.tree_of(tip, place)
    made = repo.commit(commit) if repo.has_object(commit) else None
    result = Review(
        problem=problem,
        target=target,
        commit=commit,
        tree=tree,
        branch=branch or (found.evaluation.candidate.branch if found and found.evaluation.candidate else None),
        digest=digest,
        base=tip,
        present_tree=present_tree,
        measured=found,
        present=measured(index, problem, present_tree, target) if present_tree else None,
        diff=diff(repo, present_tree, tree) if repo.has_object(tree) and tree != present_tree else "",
        provenance=_provenance(found, made),
    )
    result.warnings = list(_warnings(repo, index, result))
    result.attempts = _attempts(repo, index, result)
    result.lessons = _lessons(repo, problem)
    return result


def _definition(problem: str) -> str:
    return f"{problem_path(problem)}/{DEFINITION_NAME}"


def _problem_of(branch: str) -> str:
    parts = parse_agent_branch(branch) or parse_merge_branch(branch)
    if parts is None:
        raise ConfigurationError(
            f"`{branch}` is no branch of an agent and no win branch: which problem is meant?",
            remedy=f"name the problem, or a branch {AGENT_BRANCH_FORM}",
        )
    return parts.problem


def _best(index: Index, problem: str, digest: str, target: str, run: str) -> MeasuredCandidate | None:
    """The fastest that passed and was not confirmed."""
    rows = index.rows(problem, target=target, run=run, kind=str(EntryKind.EVALUATION))
    passed = [row for row in rows if row.problem_digest == digest and row.verdict == "PASSED" and row.speedup]
    passed = [row for row in passed if counts(row)]
    best = max(passed, key=lambda row: row.speedup or 0.0, default=None)
    return measured_by(index, best) if best else None


def _history(index: Index, problem: str, digest: str, target: str, run: str) -> MeasuredCandidate | None:
    """The best by an older judge protocol, which is still to be measured again."""
    (standing,) = standings(index, [problem], target, run)
    rows = [row for row in standing.outdated if row.problem_digest == digest]
    return measured_by(index, rows[0]) if rows else None


def _provenance(found: MeasuredCandidate | None, made: Commit | None) -> dict[str, str]:
    """Who made it, with which model, at what cost: the entry's word and the commit's trailers."""
    known = {}
    if found and found.evaluation.candidate:
        known = {"Worker": found.evaluation.candidate.worker, "Run": found.evaluation.run}
    trailers = {name: value for name, value in (made.trailers if made else {}).items() if value not in {"", "none"}}
    spent = found.evaluation.cost if found else None
    judged = {"Judged in": f"{spent.build_s + spent.judge_s:.1f} s"} if spent else {}
    return {**known, **trailers, **judged, **({"Subject": made.subject} if made else {})}


def _warnings(repo: Repo, index: Index, this: Review) -> Iterator[str]:
    found = this.measured
    if found is None:
        yield "the ledger has no entry of this tree: it was never judged"
    else:
        yield from doubts(found)
        if found.counts.problem_digest != this.digest:
            yield "the entry is stale: the problem has changed since it was judged"
        if found.confirmation is None:
            yield "not confirmed: this is its only measurement, and the best of many is partly luck"
        elif _below(found) > _CURSE:
            yield f"the confirmation came out {_below(found):.1%} below the evaluation: the evaluation was lucky"
        rival = unconfirmed_better(index, found) if found.confirmation else None
        if rival is not None:
            yield f"seq {rival.seq} by {rival.worker} measured {rival.speedup:.3f}x and awaits its confirmation"
    if this.tree == this.present_tree:
        yield "this is the solution that stands on the main branch already"
    if not repo.has_object(this.tree):
        yield "the candidate's tree is not in this repository: no diff can be shown"
        return
    yield from _special_cases(repo, this)


def _below(found: MeasuredCandidate) -> float:
    """How much lower the confirmation is than the evaluation, as a share."""
    first, second = found.evaluation.summary, found.confirmation.summary if found.confirmation else None
    if not first or not second or not first.speedup or not second.speedup:
        return 0.0
    return 1 - second.speedup / first.speedup


def _special_cases(repo: Repo, this: Review) -> Iterator[str]:
    """Comparisons of the sources with sizes that only the workloads name: fast paths for what is measured."""
    sizes = _sizes(repo, this)
    hits: dict[str, list[int]] = {}
    listing = repo.git.run("ls-tree", "-r", "-z", "--name-only", this.tree).text.split("\0")
    for name in filter(None, listing):
        text = repo.git.run("cat-file", "blob", f"{this.tree}:{name}").stdout.decode(errors="replace")
        literals = {int(one or other) for one, other in _COMPARED.findall(text)}
        if literals & sizes:
            hits[name] = sorted(literals & sizes)
    for name, numbers in hits.items():
        shown = ", ".join(map(str, numbers))
        yield f"{name} compares with {shown}, sizes of the workloads: shapes may be special-cased"


def _sizes(repo: Repo, this: Review) -> set[int]:
    file = f"{problem_path(this.problem)}/{WORKLOADS_NAME}"
    text = (repo.read(this.base, file) or b"").decode(errors="replace")
    sizes = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        value = load_json(line, where=file, max_bytes=PROBLEM_BYTES, first_line=number)
        axes = value.get("axes") if isinstance(value, dict) else None
        if not isinstance(axes, dict):
            continue
        sizes |= {size for size in axes.values() if isinstance(size, int) and size > 9}
    return sizes


def _attempts(repo: Repo, index: Index, this: Review) -> list[Attempt]:
    """The evaluations before this one, the newest first."""
    until = this.measured.evaluation.seq if this.measured else 10**12
    rows = index.rows(this.problem, target=this.target, kind=str(EntryKind.EVALUATION))
    before = [row for row in rows if row.seq < until][-_TRIED:]
    return [_attempt(repo, row) for row in reversed(before)]


def _attempt(repo: Repo, row: Row) -> Attempt:
    what = row.reason or ""
    if not what and row.commit and repo.has_object(row.commit):
        what = repo.commit(row.commit).subject
    if not counts(row):
        what = f"(judge protocol {row.judge_protocol}) {what}"
    return Attempt(row.seq, row.at, row.worker, row.verdict, row.speedup, what)


def _lessons(repo: Repo, problem: str) -> list[str]:
    """What workers noted about the problem, the newest first."""
    file = lessons_file(problem)
    records = read_records(repo.workspace, repo, file)
    lines = [f"{record.get('worker', '?')}: {record.get('text', '')}" for record in reversed(records)]
    return list(dict.fromkeys(lines))[:_TRIED]
