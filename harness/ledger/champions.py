"""The measurement that counts for a candidate: the confirmed champion of a problem, or the measurements of one tree."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import AnswerIsNo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.champions import champion_of, counts, rank
from harness.model.entry import Entry
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import EntryKind, Verdict
from harness.model.weaknesses import Weakness, facts_of, weakness_lines, weaknesses


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate's evaluation and, if it exists, the confirmation that counts in its place."""

    evaluation: Entry
    confirmation: Entry | None
    hash: str
    """Hash of the ledger document that counts, which the next document of its file has as `prev`."""
    baseline: Entry | None = None
    """The baseline entry that the evaluation cites, or null."""

    @property
    def counts(self) -> Entry:
        """The entry whose numbers count."""
        return self.confirmation or self.evaluation

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Reasons that weaken the numbers that count."""
        return weaknesses(facts_of(self.counts), facts_of(self.baseline) if self.baseline else None)

    @property
    def tree(self) -> str:
        """The candidate's tree."""
        return self.evaluation.candidate.tree if self.evaluation.candidate else ""


def champion(index: Index, problem: str, digest: str, target: str, run: str | None = None) -> MeasuredCandidate | None:
    """Return the confirmed champion of a problem's present form, or None.

    Args:
        index: the ledger's index, refreshed by the caller.
        run: the run's name; None for all runs together.
    """
    rows = index.rows(problem, target=target, run=run, kind=str(EntryKind.CONFIRMATION))
    confirmation = champion_of(row for row in rows if row.problem_digest == digest)
    return None if confirmation is None else measured_by(index, confirmation)


def measured(index: Index, problem: str, tree: str, target: str) -> MeasuredCandidate | None:
    """Return the measurement of one tree by the newest judge protocol.

    That is its best confirmation, or its latest evaluation if there is none.

    Args:
        index: the ledger's index, refreshed by the caller.
        tree: git tree id of the solution directory.
    """
    rows = [row for row in index.rows(problem, target=target) if row.tree == tree]
    newest = max((row.judge_protocol or 0 for row in rows), default=0)
    rows = [row for row in rows if row.judge_protocol == newest]
    confirmed = [row for row in rows if row.kind == EntryKind.CONFIRMATION and row.verdict == Verdict.PASSED]
    if confirmed:
        return measured_by(index, max(confirmed, key=lambda row: (rank(row), row.seq)))
    evaluations = [row for row in rows if row.kind == EntryKind.EVALUATION]
    return measured_by(index, evaluations[-1]) if evaluations else None


def unconfirmed_better(index: Index, than: MeasuredCandidate) -> Row | None:
    """Return the best evaluation without a confirmation that ranks above a champion's confirmation, or None.

    Args:
        index: the ledger's index, refreshed by the caller.
        than: the champion.
    """
    entry = than.counts
    rows = index.rows(entry.problem, target=entry.target, kind=str(EntryKind.EVALUATION))
    cited = {row.cites for row in index.rows(entry.problem, target=entry.target, kind=str(EntryKind.CONFIRMATION))}
    key = (entry.problem_digest, entry.judge_protocol, Verdict.PASSED)
    unconfirmed = [row for row in rows if row.seq not in cited]
    passed = [row for row in unconfirmed if (row.problem_digest, row.judge_protocol, row.verdict) == key]
    return max((row for row in passed if rank(row) > rank(entry)), key=rank, default=None)


def why_none(index: Index, problem: str, digest: str, target: str, run: str | None) -> AnswerIsNo:
    """Return the error that explains in one sentence why a problem has no champion.

    Args:
        index: the ledger's index, refreshed by the caller.
        run: the run's name; None for all runs together.
    """
    rows = index.rows(problem, target=target, run=run)
    about = f"{problem} for {target}" + (f" in run {run}" if run else "")
    judged = [row for row in rows if row.kind == EntryKind.EVALUATION]
    current = [row for row in judged if row.problem_digest == digest]
    confirmations = [row for row in rows if row.kind == EntryKind.CONFIRMATION and row.problem_digest == digest]
    if not judged:
        return AnswerIsNo(f"{about} has no evaluation in the ledger", remedy=f"harness start --problem {problem}")
    if not current:
        return AnswerIsNo(
            f"every entry of {about} is of an earlier form of the problem: the digest is {digest[:23]}… now, "
            f"the latest entry's {judged[-1].problem_digest[:23]}…",
            remedy=f"judge it again as it is: `harness start --problem {problem}`",
        )
    if not any(row.verdict == Verdict.PASSED for row in current):
        last = current[-1]
        return AnswerIsNo(f"no evaluation of {about} has passed; the last was {last.verdict}: {last.reason}")
    if not confirmations:
        return AnswerIsNo(
            f"{about} has no confirmed entry: no evaluation was surely faster than the baseline, or its second "
            "measurement has not been made yet",
            remedy=f"see `harness log {problem}`; a running `harness start` confirms faster candidates",
        )
    best = max(confirmations, key=rank)
    if not counts(best):
        return AnswerIsNo(
            f"every confirmation of {about} is {protocol_doubt(best.judge_protocol)}",
            remedy="have it measured again: `harness start` measures the champion first",
        )
    outcome = str(best.verdict)
    if best.speedup_ci95_low is not None:
        outcome += f", lower bound {best.speedup_ci95_low:.3f}x"
    return AnswerIsNo(f"no confirmation of {about} shows a speed-up: the best is seq {best.seq}, {outcome}")


def measured_by(index: Index, row: Row) -> MeasuredCandidate | None:
    """Return the measured candidate of an evaluation or confirmation; None if an entry is missing.

    Args:
        index: the ledger's index, refreshed by the caller.
    """
    entry = index.entry(row.problem, row.seq)
    if entry is None:
        return None
    confirmation = entry if entry.kind is EntryKind.CONFIRMATION else None
    evaluation = index.entry(row.problem, entry.cites) if confirmation and entry.cites else entry
    if evaluation is None:
        return None
    baseline = index.entry(row.problem, evaluation.cites) if evaluation.cites else None
    hashes = index.query("SELECT hash FROM entries WHERE problem = ? AND seq = ?", (row.problem, row.seq))
    return MeasuredCandidate(evaluation, confirmation, str(hashes[0][0]) if hashes else "", baseline)


def protocol_doubt(protocol: int | None) -> str:
    """Return the end of a sentence: an entry of an older judge protocol does not count, with the reason."""
    return (
        f"of judge protocol {protocol} and does not count: numbers of different judge protocols are not compared, and "
        f"the present one is {JUDGE_PROTOCOL}"
    )


def doubts(candidate: MeasuredCandidate) -> list[str]:
    """Return facts that weaken the entry that counts, one sentence each."""
    entry = candidate.counts
    sentences = [] if counts(entry) else [f"history: this entry is {protocol_doubt(entry.judge_protocol)}"]
    if entry.verdict is Verdict.SUSPECT:
        sentences.append(f"SUSPECT, held for a person: {entry.reason}")
    elif entry.verdict is not Verdict.PASSED:
        sentences.append(f"{entry.verdict}: {entry.reason}")
    sentences += weakness_lines(candidate.weaknesses)
    slower = [workload for workload in entry.workloads if workload.speedup_ci95 and workload.speedup_ci95[1] < 1.0]
    if slower:
        worst = min(slower, key=lambda workload: workload.speedup or 1.0)
        sentences.append(
            f"slower than the baseline on {len(slower)} of {len(entry.workloads)} workloads, at worst "
            f"{worst.speedup:.3f}x (workload {worst.uuid})"
        )
    notes = dict.fromkeys(workload.note for workload in entry.workloads if workload.note)
    return sentences + [f"the judge's note: {note}" for note in notes]
