"""Which measurement speaks for a candidate: the confirmed champion of a problem, or what there is of one tree."""

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
    """A candidate's evaluation and, where there is one, the confirmation that counts in its place."""

    evaluation: Entry
    confirmation: Entry | None
    hash: str
    """Of the ledger document that counts: what the next document of its file has as `prev`."""
    baseline: Entry | None = None
    """The baseline entry that the evaluation cites; null where it is unknown."""

    @property
    def counts(self) -> Entry:
        """The entry whose numbers count."""
        return self.confirmation or self.evaluation

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Reasons why the numbers that count mean less."""
        return weaknesses(facts_of(self.counts), facts_of(self.baseline) if self.baseline else None)

    @property
    def tree(self) -> str:
        """The candidate's tree."""
        return self.evaluation.candidate.tree if self.evaluation.candidate else ""


def champion(index: Index, problem: str, digest: str, target: str, run: str | None = None) -> MeasuredCandidate | None:
    """The confirmed champion of a problem as it is now; of a run, or of all runs together."""
    rows = index.rows(problem, target=target, run=run, kind=str(EntryKind.CONFIRMATION))
    found = champion_of(row for row in rows if row.problem_digest == digest)
    return None if found is None else measured_by(index, found)


def measured(index: Index, problem: str, tree: str, target: str) -> MeasuredCandidate | None:
    """Measurement of one tree by the newest judge protocol: its best confirmation, else its latest evaluation."""
    rows = [row for row in index.rows(problem, target=target) if row.tree == tree]
    newest = max((row.judge_protocol or 0 for row in rows), default=0)
    rows = [row for row in rows if row.judge_protocol == newest]
    confirmed = [row for row in rows if row.kind == EntryKind.CONFIRMATION and row.verdict == Verdict.PASSED]
    if confirmed:
        return measured_by(index, max(confirmed, key=lambda row: (rank(row), row.seq)))
    evaluations = [row for row in rows if row.kind == EntryKind.EVALUATION]
    return measured_by(index, evaluations[-1]) if evaluations else None


def unconfirmed_better(index: Index, than: MeasuredCandidate) -> Row | None:
    """An evaluation that says more than the champion's confirmation and has none of its own yet."""
    entry = than.counts
    rows = index.rows(entry.problem, target=entry.target, kind=str(EntryKind.EVALUATION))
    cited = {row.cites for row in index.rows(entry.problem, target=entry.target, kind=str(EntryKind.CONFIRMATION))}
    better = [
        row
        for row in rows
        if row.problem_digest == entry.problem_digest
        and row.judge_protocol == entry.judge_protocol
        and row.verdict == Verdict.PASSED
        and row.seq not in cited
        and rank(row) > rank(entry)
    ]
    return max(better, key=rank, default=None)


def why_none(index: Index, problem: str, digest: str, target: str, run: str | None) -> AnswerIsNo:
    """Why a problem has no champion to show, in one sentence, as the error to raise."""
    rows = index.rows(problem, target=target, run=run)
    about = f"{problem} for {target}" + (f" in run {run}" if run else "")
    judged = [row for row in rows if row.kind == EntryKind.EVALUATION]
    current = [row for row in judged if row.problem_digest == digest]
    confirmations = [row for row in rows if row.kind == EntryKind.CONFIRMATION and row.problem_digest == digest]
    if not judged:
        return AnswerIsNo(f"{about} has no evaluation in the ledger", remedy=f"harness start --problem {problem}")
    if not current:
        return AnswerIsNo(
            f"every entry of {about} is about an earlier form of the problem: its digest is {digest[:23]}… now, "
            f"the latest entry's {judged[-1].problem_digest[:23]}…",
            remedy=f"judge it again as it is: `harness start --problem {problem}`",
        )
    if not any(row.verdict == Verdict.PASSED for row in current):
        last = current[-1]
        return AnswerIsNo(f"nothing of {about} has passed; the last was {last.verdict}: {last.reason}")
    if not confirmations:
        return AnswerIsNo(
            f"{about} has no confirmed entry: no evaluation was surely faster than the baseline, or its second "
            "measurement has not been made yet",
            remedy=f"see `harness log {problem}`; a running `harness start` confirms what is faster",
        )
    best = max(confirmations, key=rank)
    if not counts(best):
        return AnswerIsNo(
            f"every confirmation of {about} is {protocol_doubt(best.judge_protocol)}",
            remedy="have it measured again: `harness start` measures the champion first",
        )
    low = best.speedup_ci95_low
    said = f"{best.verdict}, lower bound {low:.3f}x" if low is not None else str(best.verdict)
    return AnswerIsNo(f"no confirmation of {about} shows a speed-up: the best is seq {best.seq}, {said}")


def measured_by(index: Index, row: Row) -> MeasuredCandidate | None:
    """Result of an evaluation or confirmation for its candidate."""
    entry = index.entry(row.problem, row.seq)
    if entry is None:
        return None
    confirmation = entry if entry.kind is EntryKind.CONFIRMATION else None
    evaluation = index.entry(row.problem, entry.cites) if confirmation and entry.cites else entry
    if evaluation is None:
        return None
    baseline = index.entry(row.problem, evaluation.cites) if evaluation.cites else None
    return MeasuredCandidate(evaluation, confirmation, hash_in(index, row.problem, row.seq), baseline)


def hash_in(index: Index, problem: str, seq: int) -> str:
    """The hash of one ledger document; empty where there is no such document."""
    found = index.query("SELECT hash FROM entries WHERE problem = ? AND seq = ?", (problem, seq))
    return str(found[0][0]) if found else ""


def protocol_doubt(protocol: int | None) -> str:
    """Why an entry of another judge protocol than the present one does not count, as the rest of a sentence."""
    return (
        f"of judge protocol {protocol} and does not count: numbers of different judge protocols are not compared, and "
        f"the present one is {JUDGE_PROTOCOL}"
    )


def doubts(candidate: MeasuredCandidate) -> list[str]:
    """Facts about the entry that counts that a person should know before believing it, a sentence each."""
    entry = candidate.counts
    found = [] if counts(entry) else [f"history: this entry is {protocol_doubt(entry.judge_protocol)}"]
    if entry.verdict is Verdict.SUSPECT:
        found.append(f"SUSPECT, held for a person: {entry.reason}")
    elif entry.verdict is not Verdict.PASSED:
        found.append(f"{entry.verdict}: {entry.reason}")
    found += weakness_lines(candidate.weaknesses)
    slower = [one for one in entry.workloads if one.speedup_ci95 is not None and one.speedup_ci95[1] < 1.0]
    if slower:
        worst = min(slower, key=lambda one: one.speedup or 1.0)
        found.append(
            f"slower than the baseline on {len(slower)} of {len(entry.workloads)} workloads, at worst "
            f"{worst.speedup:.3f}x (workload {worst.uuid})"
        )
    notes = dict.fromkeys(one.note for one in entry.workloads if one.note)
    return found + [f"the judge's note: {note}" for note in notes]
