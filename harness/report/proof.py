"""The check that the ledger on the base branch proves a pull request. It needs git, but no device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from harness.errors import HarnessError, RepositoryError
from harness.formats.ledger_documents import parse_entry
from harness.formats.problems import affects_judging
from harness.git.branch_commits import resolve
from harness.git.problem_digests import digest_at
from harness.git.repo import Repo
from harness.ledger.audit.audit import Chains, read_chains
from harness.ledger.audit.entries import entry_faults
from harness.ledger.champions import MeasuredCandidate, protocol_doubt
from harness.model.champions import counts, is_new_champion, rank
from harness.model.entry import Entry
from harness.model.paths import (
    LEDGER,
    SolutionPath,
    ledger_file,
    parse_ledger_file,
    parse_problem_path,
    parse_solution_path,
    solution_path,
)
from harness.model.printable import count_of, first_names, printable
from harness.model.verdict import EntryKind, Verdict
from harness.model.weaknesses import weakness_lines
from harness.report.merge_branches import changed_paths, text_of
from harness.report.proof_text import ENTRY_TRAILER, proof_text

_MAX_LISTED = 5
_PROTECTED_PATHS = {
    f"{LEDGER}/": "the ledger: only the daemon writes it, and a proof uses the ledger of the base",
    "harness/judge/": "the judge that measures every solution",
    "harness/runner/": "the runner that executes every solution",
    ".github/": "the checks of pull requests",
    "COORDINATION.md": "the instructions of agents",
    "harness.yaml": "the configuration of runs and of the judge",
}
"""Path -> description of its content, for the error that refuses a change."""


@dataclass
class Proof:
    """The result of the check of a range of commits."""

    base: str
    head: str
    problem: str | None = None
    """None if the range changes no solution."""
    target: str | None = None
    tree: str | None = None
    measured: MeasuredCandidate | None = None
    """The ledger's entries of the tree."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return True if the check found no fault."""
        return not self.faults


def check_proof(repo: Repo, base: str, head: str, *, ledger: str | None = None) -> Proof:
    """Check the commits of `head` that `base` does not have.

    Args:
        repo: the repository with both commits.
        base: the branch or commit to merge into. Its ledger is used after a check that it is complete.
        ledger: the branch or commit with the ledger; None for `base`.

    Raises:
        RepositoryError: a name is not a commit of the repository, or the commits have no common ancestor.
    """
    base_commit, head_commit = _commit(repo, base), _commit(repo, head)
    ledger_commit = _commit(repo, ledger) if ledger else base_commit
    paths = changed_paths(repo, base_commit, head_commit)
    proof = Proof(base_commit, head_commit)
    solutions = sorted({(solution.problem, solution.target) for path in paths if (solution := _solution_of(path))})
    if len(solutions) > 1:
        names = ", ".join(f"{problem} for {target}" for problem, target in solutions[:_MAX_LISTED])
        proof.faults.append(f"it changes {len(solutions)} solutions ({names}): one pull request proves one solution")
    directory = f"{solution_path(*solutions[0])}/" if solutions else None
    proof.faults += _outside_changes(paths, directory)
    if directory is None:
        proof.notes.append("it changes no solution: there is nothing to prove")
        return proof
    proof.problem, proof.target = solutions[0]
    chains = read_chains(repo, ledger_commit)
    proof.faults += _chain_faults(chains, ledger_commit)
    entries: list[Entry] | None = None
    try:
        entries = _entries(chains, proof.problem)
    except HarnessError as error:
        proof.faults.append(f"the ledger at {ledger_commit[:12]} cannot be read: {error}")
    else:
        proof.faults += _entry_faults(proof.problem, entries)
    proof.tree = repo.tree_of(head_commit, directory.rstrip("/"))
    if proof.tree is None:
        proof.faults.append(f"it removes {directory}: a removal has no measurement")
        return proof
    digest = digest_at(repo, base_commit, proof.problem)
    if digest is None:
        proof.faults.append(f"the base has no problem {proof.problem}: add the problem first, then judge the solution")
        return proof
    if entries is None:
        return proof
    _look_up(proof, chains, entries, digest)
    if proof.measured is not None:
        proof.faults += _message_faults(repo, proof, proof.measured)
        proof.notes += weakness_lines(proof.measured.weaknesses)
        proof.notes += _newer(entries, proof, proof.measured)
    return proof


def _commit(repo: Repo, name: str) -> str:
    commit = resolve(repo.git, name)
    if commit is None:
        raise RepositoryError(f"`{name}` is not a commit of this repository", remedy="fetch it first: `git fetch`")
    return commit


def _solution_of(path: str) -> SolutionPath | None:
    """Return the solution that a file belongs to; None for other files."""
    solution = parse_solution_path(path)
    return solution if solution and solution.inside else None


def _outside_changes(paths: frozenset[str], directory: str | None) -> Iterator[str]:
    """Yield a fault for each kind of change outside the solution directory."""
    outside = sorted(path for path in paths if directory is None or not path.startswith(directory))
    if directory is None:  # a pull request without a solution may change everything but the ledger
        outside = [path for path in outside if path.startswith(f"{LEDGER}/")]
    named: set[str] = set()
    for prefix, description in _PROTECTED_PATHS.items():
        group = [path for path in outside if path.startswith(prefix)]
        named.update(group)
        if group:
            yield f"it changes {description}: {first_names([*map(printable, group)], _MAX_LISTED)}"
    for path in outside:
        file = parse_problem_path(path)
        if file and file.inside and path not in named and affects_judging(file.inside):
            named.add(path)
            yield f"it changes how {file.problem} is judged: {printable(path)} is part of the problem's digest"
    unrelated = [path for path in outside if path not in named and not _solution_of(path)]
    if unrelated:
        yield f"it changes files outside {directory}: {first_names([*map(printable, unrelated)], _MAX_LISTED)}"


def _chain_faults(chains: Chains, commit: str) -> Iterator[str]:
    """Yield the breaks of the ledger's chains."""
    for chain_break in chains.breaks[:_MAX_LISTED]:
        at = f" seq {chain_break.seq}" if chain_break.seq is not None else ""
        yield f"the ledger at {commit[:12]} is broken: {chain_break.file}{at}: {chain_break.message}"
    if len(chains.breaks) > _MAX_LISTED:
        yield f"and {count_of(len(chains.breaks) - _MAX_LISTED, 'more break')}: `harness audit` prints all breaks"


def _entry_faults(problem: str, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the problem's entries that contradict their own parts."""
    for seq, fault, _, _ in islice(entry_faults(problem, entries), _MAX_LISTED):
        yield f"{ledger_file(problem)} seq {seq} does not follow from its parts: {fault}"


def _entries(chains: Chains, problem: str) -> list[Entry]:
    file = ledger_file(problem)
    return [parse_entry(document.raw, f"{file} seq {document.seq}") for document in chains.documents.get(file, [])]


def _look_up(proof: Proof, chains: Chains, entries: Sequence[Entry], digest: str) -> None:
    """Set `proof.measured` to the confirmed entry of the tree, or add the reason why there is none to the faults."""
    problem, target, tree = proof.problem or "", proof.target or "", proof.tree or ""
    about = f"{problem} for {target}, tree {tree[:12]}"
    of_target = [entry for entry in entries if entry.target == target]
    of_tree = [entry for entry in of_target if entry.candidate and entry.candidate.tree == tree]
    judged = [entry for entry in of_tree if entry.kind is EntryKind.EVALUATION]
    if not judged:
        proof.faults.append(f"the ledger has no entry of {about}: {_elsewhere(chains, tree)}")
        return
    current = [entry for entry in judged if entry.problem_digest == digest]
    if not current:
        proof.faults.append(
            f"the entry of {about} is stale: seq {judged[-1].seq} judged a form of the problem with digest "
            f"{judged[-1].problem_digest[:23]}…, and the base has {digest[:23]}…"
        )
        return
    passed = [entry for entry in current if entry.verdict is Verdict.PASSED]
    if not passed:
        last = current[-1]
        proof.faults.append(f"{about} did not pass: seq {last.seq} is {last.verdict}: {last.reason}")
        return
    seqs = {entry.seq: entry for entry in passed}
    confirmations = [entry for entry in of_tree if entry.kind is EntryKind.CONFIRMATION and entry.cites in seqs]
    if not confirmations:
        proof.faults.append(f"{about} has no confirmation: seq {passed[-1].seq} is its only measurement")
        return
    best = max(confirmations, key=rank)
    if not counts(best) or not is_new_champion(best, None):
        proof.faults.append(f"the confirmation of {about} {_insufficiency(best)}")
        return
    documents = {document.seq: document for document in chains.documents[ledger_file(problem)]}
    evaluation = seqs[best.cites or 0]
    baseline = next((entry for entry in entries if entry.seq == evaluation.cites), None)
    proof.measured = MeasuredCandidate(evaluation, best, documents[best.seq].hash, baseline)


def _insufficiency(confirmation: Entry) -> str:
    """Return the predicate of a sentence about a confirmation that does not make a champion."""
    if not counts(confirmation):
        doubt = protocol_doubt(confirmation.judge_protocol)
        return f"is {doubt}: seq {confirmation.seq}; measure it again: `harness start`"
    bound = confirmation.speedup_ci95_low
    result = f"{confirmation.verdict}: {confirmation.reason}" if bound is None else f"a lower bound of {bound:.3f}x"
    return f"shows no speed-up: seq {confirmation.seq} has {result}"


def _elsewhere(chains: Chains, tree: str) -> str:
    """Return the problem and target for which a tree was judged instead."""
    pattern = f'tree: "{tree}"'.encode()
    for file, documents in chains.documents.items():
        document = next((document for document in documents if pattern in document.raw), None)
        if document is not None and parse_ledger_file(file):
            entry = parse_entry(document.raw, file)
            return f"it was judged for {entry.problem} on {entry.target} (seq {entry.seq}) instead"
    return "this exact solution was not judged; it may have been edited after its measurement"


def _message_faults(repo: Repo, proof: Proof, measured: MeasuredCandidate) -> Iterator[str]:
    """Yield a fault for each commit that cites the ledger and whose message differs from the proof."""
    log = repo.git.run("rev-list", "--no-merges", f"{proof.base}..{proof.head}", "--").text.split()
    citing = {commit: text for commit in log if f"{ENTRY_TRAILER}:" in (text := text_of(repo, commit))}
    if not citing:
        proof.notes.append("no commit message contains the proof: the table of the ledger counts")
    proof_lines = _lines(proof_text(measured))
    for commit, text in citing.items():
        lines = _lines(text)
        start = next((at for at in range(len(lines)) if lines[at : at + 1] == proof_lines[:1]), None)
        if start is not None and lines[start : start + len(proof_lines)] == proof_lines:
            continue
        missing = next((line for line in proof_lines if line not in lines), proof_lines[0])
        yield f"commit {commit[:12]} differs from the ledger (seq {measured.counts.seq}), which has: {missing}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _newer(entries: Sequence[Entry], proof: Proof, measured: MeasuredCandidate) -> Iterator[str]:
    """Yield a note on a better champion of the same problem."""
    rivals = [
        entry
        for entry in entries
        if entry.target == proof.target
        and entry.kind is EntryKind.CONFIRMATION
        and entry.problem_digest == measured.counts.problem_digest
        and entry.candidate
        and entry.candidate.tree != proof.tree
        and counts(entry)
        and is_new_champion(entry, measured.counts)
    ]
    if rivals:
        best = max(rivals, key=rank)
        speedup = best.summary.speedup if best.summary else None
        yield f"a newer champion exists: seq {best.seq}, {speedup:.3f}x (`harness pr {proof.problem}`)"
