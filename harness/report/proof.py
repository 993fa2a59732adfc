"""Does a pull request that merges a kernel say nothing but what the base side's ledger proves? Needs git, no device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.errors import HarnessError, RepositoryError
from harness.formats.ledger_documents import Document, parse_entry
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
from harness.model.printable import printable
from harness.model.verdict import EntryKind, Verdict
from harness.model.weaknesses import weakness_lines
from harness.report.merge_branches import changed_paths, text_of
from harness.report.proof_text import ENTRY_TRAILER, proof_text

_LISTED = 5
_OURS = {
    f"{LEDGER}/": "the ledger: only the daemon writes it, and a proof is looked up in the base's",
    "harness/judge/": "the judge that measures every solution",
    "harness/runner/": "the runner that every solution is measured in",
    ".github/": "the checks themselves",
    "COORDINATION.md": "the protocol that agents work by",
    "harness.yaml": "how this workspace runs and judges",
}
"""What a change of such a path would change, for the sentence that refuses it."""


@dataclass
class Proof:
    """What was found about one range of commits."""

    base: str
    head: str
    problem: str | None = None
    """null: the range touches no solution."""
    target: str | None = None
    tree: str | None = None
    found: MeasuredCandidate | None = None
    """The ledger's word on the tree."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the merge."""
        return not self.faults


def check_proof(repo: Repo, base: str, head: str, *, ledger: str | None = None) -> Proof:
    """Check the commits of `head` that `base` does not have.

    Args:
        repo: holds both.
        base: where the pull request goes: its ledger is believed, once it is seen to be whole.
        head: what would be merged.
        ledger: the commit or branch whose ledger counts, where that is not the base's.

    Raises:
        RepositoryError: one of them is no commit here, or they have no commit in common.
    """
    base_commit, head_commit = _commit(repo, base), _commit(repo, head)
    ledger_commit = _commit(repo, ledger) if ledger else base_commit
    _, paths = changed_paths(repo, base_commit, head_commit)
    proof = Proof(base_commit, head_commit)
    places = sorted({(found.problem, found.target) for path in paths if (found := _solution_of(path))})
    if len(places) > 1:
        names = ", ".join(f"{problem} for {target}" for problem, target in places[:_LISTED])
        proof.faults.append(f"it changes {len(places)} solutions ({names}): one pull request proves one")
    place = f"{solution_path(*places[0])}/" if places else None
    proof.faults += _strangers(paths, place)
    if place is None:
        proof.notes.append("it touches no solution: there is nothing to prove")
        return proof
    proof.problem, proof.target = places[0]
    chains = read_chains(repo, ledger_commit)
    proof.faults += _ledger_faults(chains, ledger_commit, proof.problem)
    proof.tree = repo.tree_of(head_commit, place.rstrip("/"))
    if proof.tree is None:
        proof.faults.append(f"it removes {place}: a removal has no measurement")
        return proof
    digest = digest_at(repo, base_commit, proof.problem)
    if digest is None:
        proof.faults.append(f"the base has no problem {proof.problem}: add the problem first, then have it judged")
        return proof
    _look_up(proof, chains, digest)
    if proof.found is not None:
        proof.faults += _word_faults(repo, proof, proof.found)
        proof.notes += weakness_lines(proof.found.weaknesses)
        proof.notes += _newer(chains, proof, proof.found)
    return proof


def _commit(repo: Repo, name: str) -> str:
    found = resolve(repo.git, name)
    if found is None:
        raise RepositoryError(f"`{name}` is no commit of this repository", remedy="fetch it first: `git fetch`")
    return found


def _solution_of(path: str) -> SolutionPath | None:
    """The solution that a file belongs to."""
    found = parse_solution_path(path)
    return found if found and found.inside else None


def _strangers(paths: frozenset[str], place: str | None) -> Iterator[str]:
    """Everything changed outside the one solution directory, in words that say what it would do."""
    outside = sorted(path for path in paths if place is None or not path.startswith(place))
    if place is None:
        outside = [
            path for path in outside if path.startswith(f"{LEDGER}/")
        ]  # other pull requests are people's business
    named: set[str] = set()
    for prefix, what in _OURS.items():
        group = [path for path in outside if path.startswith(prefix)]
        named.update(group)
        if group:
            yield f"it changes {what}: {_list(group)}"
    for path in outside:
        file = parse_problem_path(path)
        if file and file.inside and path not in named and affects_judging(file.inside):
            named.add(path)
            yield f"it changes how {file.problem} is judged: {printable(path)} takes part in the problem's digest"
    others = [path for path in outside if path not in named and not _solution_of(path)]
    if others:
        yield f"it changes files outside {place}: {_list(others)}"


def _list(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    return ", ".join(map(printable, paths[:_LISTED])) + more


def _ledger_faults(chains: Chains, commit: str, problem: str) -> Iterator[str]:
    """The ledger that is to be believed must be whole, and the problem's own entries must follow from their parts."""
    for found in chains.breaks[:_LISTED]:
        at = f" seq {found.seq}" if found.seq is not None else ""
        yield f"the ledger at {commit[:12]} is broken: {found.file}{at}: {found.message}"
    if len(chains.breaks) > _LISTED:
        yield f"and {len(chains.breaks) - _LISTED} more breaks: `harness audit` names them all"
    try:
        entries = _entries(chains, problem)
    except HarnessError as error:
        yield f"the ledger at {commit[:12]} cannot be read: {error}"
        return
    for seq, what, _, _ in list(entry_faults(problem, entries))[:_LISTED]:
        yield f"{ledger_file(problem)} seq {seq} does not follow from its parts: {what}"


def _entries(chains: Chains, problem: str) -> list[Entry]:
    file = ledger_file(problem)
    return [parse_entry(document.raw, f"{file} seq {document.seq}") for document in chains.documents.get(file, [])]


def _look_up(proof: Proof, chains: Chains, digest: str) -> None:
    """Find the confirmed entry of the tree, or say in one sentence why there is none."""
    problem, target, tree = proof.problem or "", proof.target or "", proof.tree or ""
    try:
        entries = _entries(chains, problem)
    except HarnessError:
        return  # said already
    about = f"{problem} for {target}, tree {tree[:12]}"
    same = [one for one in entries if one.candidate and one.candidate.tree == tree and one.target == target]
    judged = [one for one in same if one.kind is EntryKind.EVALUATION]
    if not judged:
        proof.faults.append(f"the ledger has no entry of {about}: {_elsewhere(chains, tree)}")
        return
    current = [one for one in judged if one.problem_digest == digest]
    if not current:
        proof.faults.append(
            f"the entry of {about} is stale: seq {judged[-1].seq} judged a form of the problem with digest "
            f"{judged[-1].problem_digest[:23]}…, and the base has {digest[:23]}…"
        )
        return
    passed = [one for one in current if one.verdict is Verdict.PASSED]
    if not passed:
        last = current[-1]
        proof.faults.append(f"{about} did not pass: seq {last.seq} is {last.verdict}: {last.reason}")
        return
    seqs = {one.seq: one for one in passed}
    confirmations = [one for one in same if one.kind is EntryKind.CONFIRMATION and one.cites in seqs]
    if not confirmations:
        proof.faults.append(f"{about} has no confirmation: seq {passed[-1].seq} is its only measurement")
        return
    best = max(confirmations, key=rank)
    if not counts(best) or not is_new_champion(best, None):
        proof.faults.append(f"the confirmation of {about} {_why_it_proves_nothing(best)}")
        return
    documents = {document.seq: document for document in chains.documents[ledger_file(problem)]}
    evaluation = seqs[best.cites or 0]
    baseline = next((entry for entry in entries if entry.seq == evaluation.cites), None)
    proof.found = MeasuredCandidate(evaluation, best, documents[best.seq].hash, baseline)


def _why_it_proves_nothing(confirmation: Entry) -> str:
    """The rest of a sentence about a confirmation that does not make a champion."""
    if not counts(confirmation):
        doubt = protocol_doubt(confirmation.judge_protocol)
        return f"is {doubt}: seq {confirmation.seq}; have it measured again: `harness start`"
    low = confirmation.speedup_ci95_low
    said = f"a lower bound of {low:.3f}x" if low is not None else f"{confirmation.verdict}: {confirmation.reason}"
    return f"shows no speed-up: seq {confirmation.seq} has {said}"


def _elsewhere(chains: Chains, tree: str) -> str:
    """Where a tree that was not judged for this problem was judged, if anywhere."""
    wanted = f'tree: "{tree}"'.encode()

    def places() -> Iterator[tuple[str, Document]]:
        for file, documents in chains.documents.items():
            if parse_ledger_file(file):
                yield from ((file, document) for document in documents if wanted in document.raw)

    found = next(places(), None)
    if found is None:
        return "this exact solution was never judged; was it edited after its measurement?"
    entry = parse_entry(found[1].raw, found[0])
    return f"it was judged for {entry.problem} on {entry.target} (seq {entry.seq}), not here"


def _word_faults(repo: Repo, proof: Proof, found: MeasuredCandidate) -> Iterator[str]:
    """A commit that cites the ledger must say exactly what the ledger says."""
    log = repo.git.run("rev-list", "--no-merges", f"{proof.base}..{proof.head}", "--").text.split()
    citing = {commit: text for commit in log if f"{ENTRY_TRAILER}:" in (text := text_of(repo, commit))}
    if not citing:
        proof.notes.append("no commit message carries the proof: the ledger's table below is what counts")
    wanted = _lines(proof_text(found))
    for commit, text in citing.items():
        said = _lines(text)
        start = next((at for at in range(len(said)) if said[at : at + 1] == wanted[:1]), None)
        if start is not None and said[start : start + len(wanted)] == wanted:
            continue
        missing = next(line for line in wanted if line not in said) if set(wanted) - set(said) else wanted[0]
        yield (
            f"commit {commit[:12]} says something else than the ledger (seq {found.counts.seq}), which has: {missing}"
        )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _newer(chains: Chains, proof: Proof, found: MeasuredCandidate) -> Iterator[str]:
    """A better champion of the same problem, which a person may want instead."""
    entries = [one for one in _entries(chains, proof.problem or "") if one.target == proof.target]
    rivals = [
        one
        for one in entries
        if one.kind is EntryKind.CONFIRMATION
        and one.problem_digest == found.counts.problem_digest
        and one.candidate
        and one.candidate.tree != proof.tree
        and counts(one)
        and is_new_champion(one, found.counts)
    ]
    if rivals:
        best = max(rivals, key=rank)
        speedup = best.summary.speedup if best.summary else None
        yield f"a newer champion exists: seq {best.seq}, {speedup:.3f}x (`harness pr {proof.problem}`)"
