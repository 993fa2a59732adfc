"""Consistency of a problem's entries: citations, champions, repeated measurements, numbers derived from their parts.

The commits, trees and forms of problems that they name are compared with git.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from harness.git.problem_digests import digest_at
from harness.git.repo import Repo
from harness.model.champions import is_new_champion
from harness.model.entry import Entry
from harness.model.interval import FIRST_BLOCKS, SetupError, summarise, workload_interval
from harness.model.judging import Summary, WorkloadResult
from harness.model.paths import problem_path, solution_path
from harness.model.verdict import EntryKind, Verdict, least_possible_us

Fault = tuple[int, str, object, object]
"""`seq`, message, expected value, actual value."""

_RELATIVE = 1e-6
"""Relative tolerance: far below the noise of measurements, far above rounding of the last digits."""

_NumberFault = tuple[str, object, object]
"""Message, expected value, actual value."""

_ChampionKey = tuple[str, str, str, int | None]
"""Run, target, problem digest, judge protocol."""
_REPEATED = (
    "run", "problem_digest", "target", "cites", "device", "environment", "judge_protocol", "verdict", "reason",
    "trust", "workloads", "summary",
)  # fmt: skip
"""Fields in which an entry equals the one that it was answered from."""
_CITED = {
    EntryKind.EVALUATION: EntryKind.BASELINE,
    EntryKind.CONFIRMATION: EntryKind.EVALUATION,
    EntryKind.CHAMPION: EntryKind.CONFIRMATION,
}


def entry_faults(problem: str, entries: Sequence[Entry]) -> Iterator[Fault]:
    """Yield every fault in a problem's entries."""
    entry_by_seq = {entry.seq: entry for entry in entries}
    measured: dict[tuple[object, ...], int] = {}
    champions: dict[_ChampionKey, Entry] = {}
    for entry in entries:
        if entry.problem != problem:
            yield entry.seq, "an entry of another problem", problem, entry.problem
        for message, expected, actual in _number_faults(entry):
            yield entry.seq, message, expected, actual
        yield from _citation_faults(entry, entry_by_seq)
        yield from _repetition_faults(entry, entry_by_seq)
        key = _measurement(entry)
        if key is not None and key in measured:
            yield entry.seq, "measured twice: the same key already has an entry", "once", f"seq {measured[key]}"
        if key is not None:
            measured.setdefault(key, entry.seq)
        if entry.kind is EntryKind.CHAMPION:
            yield from _champion_faults(entry, entry_by_seq, champions)


def _measurement(entry: Entry) -> tuple[object, ...] | None:
    """Return a key that occurs once: of an evaluation, or of the entry that a confirmation or champion cites."""
    if entry.kind is EntryKind.EVALUATION and entry.candidate and entry.environment:
        return entry.kind, entry.problem_digest, entry.candidate.tree, entry.target, entry.environment.judge
    if entry.kind in {EntryKind.CONFIRMATION, EntryKind.CHAMPION}:
        return entry.kind, entry.cites
    return None


def _citation_faults(entry: Entry, entry_by_seq: Mapping[int, Entry]) -> Iterator[Fault]:
    if entry.cites is None:
        return
    expected_kind = _CITED.get(entry.kind)
    cited = entry_by_seq.get(entry.cites)
    if cited is None or entry.cites >= entry.seq:
        yield entry.seq, "cites an entry that does not precede it", f"a seq below {entry.seq}", entry.cites
        return
    if expected_kind is None or cited.kind is not expected_kind:
        yield entry.seq, f"cites seq {cited.seq}, which is of another kind", expected_kind, cited.kind
        return
    for name in ("problem_digest", "target"):
        if getattr(cited, name) != getattr(entry, name):
            yield entry.seq, f"cites seq {cited.seq} of another {name}", getattr(entry, name), getattr(cited, name)
    if entry.kind is EntryKind.EVALUATION:
        return
    if cited.verdict is not Verdict.PASSED:
        yield entry.seq, f"cites seq {cited.seq}, which did not pass", Verdict.PASSED, cited.verdict
    trees = [item.candidate.tree if item.candidate else None for item in (entry, cited)]
    if trees[0] != trees[1]:
        yield entry.seq, f"cites seq {cited.seq} of another candidate", trees[0], trees[1]


def _repetition_faults(entry: Entry, entry_by_seq: Mapping[int, Entry]) -> Iterator[Fault]:
    """Check that an entry that repeats a measurement names one of the same binary, and has its numbers."""
    if entry.answered_from is None:
        return
    measured = entry_by_seq.get(entry.answered_from)
    if measured is None or entry.answered_from >= entry.seq or measured.kind is not EntryKind.EVALUATION:
        message = "answered from an entry that is not an earlier evaluation"
        yield entry.seq, message, f"a seq below {entry.seq}", entry.answered_from
        return
    if measured.answered_from is not None:
        message = f"answered from seq {measured.seq}, which was not measured itself"
        yield entry.seq, message, "a measurement", f"answered from seq {measured.answered_from}"
    measured_binary, binary = _binary(measured), _binary(entry)
    if measured_binary is None or measured_binary != binary:
        yield entry.seq, f"answered from seq {measured.seq} of another binary", measured_binary, binary
    for name in _REPEATED:
        if getattr(measured, name) != getattr(entry, name):
            message = f"answered from seq {measured.seq}, which has another value of {name}"
            yield entry.seq, message, getattr(measured, name), getattr(entry, name)


def _binary(entry: Entry) -> str | None:
    return entry.fingerprint.binary if entry.fingerprint else None


def _champion_faults(
    entry: Entry, entry_by_seq: Mapping[int, Entry], champions: dict[_ChampionKey, Entry]
) -> Iterator[Fault]:
    """Check that a champion is better than the last (same run, target, form of the problem and judge protocol)."""
    confirmation = entry_by_seq.get(entry.cites or 0)
    if confirmation is None or confirmation.kind is not EntryKind.CONFIRMATION:
        return
    key = (entry.run, entry.target, entry.problem_digest, confirmation.judge_protocol)
    former = champions.get(key)
    if not is_new_champion(confirmation, former):
        bar = former.speedup_ci95_low if former else 1.0
        ci95_low = confirmation.speedup_ci95_low
        yield entry.seq, "a champion that its confirmation does not make", f"a lower bound above {bar}", ci95_low
    champions[key] = confirmation
    if entry.summary is not None and entry.summary != confirmation.summary:
        message = f"the summary is not that of the confirmation it cites (seq {confirmation.seq})"
        yield entry.seq, message, confirmation.summary, entry.summary


def _number_faults(entry: Entry) -> Iterator[_NumberFault]:
    """Yield every number of an entry that does not follow from its parts."""
    uuids: set[str] = set()
    for workload in entry.workloads:
        for message, expected, actual in _workload_faults(workload):
            yield f"workload {workload.uuid}: {message}", expected, actual
        if workload.uuid in uuids:
            yield f"workload {workload.uuid} occurs twice", "once", "twice"
        uuids.add(workload.uuid)
    if entry.kind in {EntryKind.EVALUATION, EntryKind.CONFIRMATION}:
        yield from _summary_faults(entry)


def _workload_faults(workload: WorkloadResult) -> Iterator[_NumberFault]:
    if workload.verdict is not Verdict.PASSED and not workload.reason:
        yield f"the verdict {workload.verdict} needs a reason", "one line", workload.reason
    if workload.log_ratios and workload.blocks != len(workload.log_ratios):
        yield "blocks is not the number of log_ratios", len(workload.log_ratios), workload.blocks
    if workload.verdict is Verdict.PASSED and workload.speedup is not None and workload.blocks < FIRST_BLOCKS:
        yield "too few blocks for a speedup", f"at least {FIRST_BLOCKS}", workload.blocks
    if workload.checked > workload.calls:
        yield "more calls checked than made", f"at most {workload.calls}", workload.checked
    yield from _possibility_faults(workload)
    yield from _speedup_faults(workload)
    yield from _score_faults(workload)


def _possibility_faults(workload: WorkloadResult) -> Iterator[_NumberFault]:
    """Yield values that no hardware and no clock can produce."""
    for name in ("latency_us", "baseline_us", "sol_us", "floor_us"):
        value = getattr(workload, name)
        if value is not None and (value < 0 or not math.isfinite(value) or (value == 0 and name.endswith("y_us"))):
            yield f"{name} is impossible", "a time above 0", value
    latency, floor = workload.latency_us, workload.floor_us
    if workload.verdict is Verdict.PASSED and latency is not None and floor is not None:
        lowest_us = least_possible_us(floor)
        if latency < lowest_us:
            yield "PASSED below the floor that the hardware allows", f"at least {lowest_us:.4g} us", f"{latency:.4g} us"
    if workload.matched is not None and not 0 <= workload.matched <= 1:
        yield "matched is not a share", "0 to 1", workload.matched


def _speedup_faults(workload: WorkloadResult) -> Iterator[_NumberFault]:
    if len(workload.log_ratios) > 1:
        speedup, interval = workload_interval(workload.log_ratios, SetupError.of(workload))
        if not _agree(workload.speedup, speedup):
            yield "speedup is not exp(mean of log_ratios)", speedup, workload.speedup
        if not _agree_as_intervals(workload.speedup_ci95, interval):
            yield "speedup_ci95 does not follow from log_ratios", interval, workload.speedup_ci95
    elif workload.speedup is not None or workload.speedup_ci95 is not None:
        yield "a speedup without the log_ratios that it follows from", None, workload.speedup
    if workload.speedup is not None:
        times = workload.baseline_us, workload.latency_us
        ratio = times[0] / times[1] if times[0] and times[1] else None
        if not _agree(workload.speedup, ratio):
            yield "speedup is not baseline_us / latency_us", ratio, workload.speedup


def _score_faults(workload: WorkloadResult) -> Iterator[_NumberFault]:
    """Check S = 1 / (1 + (T_k - T_sol) / (T_b - T_sol)); undefined if the baseline is at the bound or S is negative."""
    latency, baseline, sol = workload.latency_us, workload.baseline_us, workload.sol_us
    expected = None
    if latency is not None and baseline is not None and sol is not None and baseline > sol > 0:
        share = 1 + (latency - sol) / (baseline - sol)
        expected = 1 / share if share > 0 else None
    if not _agree(workload.score, expected):
        yield "score does not follow from latency_us, baseline_us and sol_us", expected, workload.score


def _summary_faults(entry: Entry) -> Iterator[_NumberFault]:
    summary = entry.summary or Summary(passed=0, of=0)
    expected = summarise(entry.workloads)
    if entry.workloads and (summary.passed, summary.of) != (expected.passed, expected.of):
        yield "summary counts", f"{expected.passed} of {expected.of}", f"{summary.passed} of {summary.of}"
    if not _agree(summary.speedup, expected.speedup):
        yield "summary.speedup is not the geometric mean of the workloads'", expected.speedup, summary.speedup
    if not _agree_as_intervals(summary.speedup_ci95, expected.speedup_ci95):
        yield "summary.speedup_ci95 does not follow from log_ratios", expected.speedup_ci95, summary.speedup_ci95
    if not _agree(summary.score, expected.score):
        yield "summary.score is not the mean of the workloads'", expected.score, summary.score
    if entry.verdict is Verdict.PASSED and (summary.passed < summary.of or not entry.workloads):
        yield "PASSED, but not every workload passed", f"{summary.of} of {summary.of}", f"{summary.passed}"


def _agree(recorded: float | None, derived: float | None) -> bool:
    if recorded is None or derived is None:
        return recorded is derived
    return math.isclose(recorded, derived, rel_tol=_RELATIVE)


def _agree_as_intervals(recorded: tuple[float, float] | None, derived: tuple[float, float] | None) -> bool:
    return all(map(_agree, recorded or (None, None), derived or (None, None)))


class Origins:
    """Objects of one repository, each read once.

    Args:
        tip: the coordination branch's commit.
        shallow: the repository is a shallow clone, so that missing objects are no faults.
    """

    def __init__(self, repo: Repo, tip: str, *, shallow: bool = False) -> None:
        self._repo, self._tip, self._shallow = repo, tip, shallow
        self.unchecked: set[tuple[str, int]] = set()
        """Problem and seq of entries that a shallow clone cannot check."""
        self._trees: dict[tuple[str, str], str | None] = {}

    def faults(self, problem: str, entries: Sequence[Entry]) -> Iterator[Fault]:
        """Yield the parts of a problem's entries that git does not confirm."""
        digests = self._digests(problem) if entries else set()
        for entry in entries:
            yield from self._candidate_faults(problem, entry)
            if entry.problem_digest not in digests and self._shallow:
                self.unchecked.add((problem, entry.seq))
            elif entry.problem_digest not in digests:
                path = problem_path(problem)
                message = f"no version of {path} in the history of the coordination branch has this digest"
                yield entry.seq, message, f"one of {len(digests)} versions", entry.problem_digest

    def _candidate_faults(self, problem: str, entry: Entry) -> Iterator[Fault]:
        candidate = entry.candidate
        if candidate is None:
            return
        path = solution_path(problem, entry.target)
        key = (candidate.commit, path)
        if key not in self._trees:
            self._trees[key] = self._repo.tree_of(*key)
        tree = self._trees[key]
        if tree == candidate.tree:
            return
        if self._shallow and not self._repo.has_object(candidate.commit):
            self.unchecked.add((problem, entry.seq))
        elif not self._repo.has_object(candidate.commit):
            yield entry.seq, "the candidate's commit is not in the repository", candidate.commit, None
        else:
            yield entry.seq, f"commit {candidate.commit[:12]} has another tree at {path}", candidate.tree, tree

    def _digests(self, problem: str) -> set[str]:
        """Return the digests of every form that a problem ever had on the coordination branch."""
        directory = problem_path(problem)
        digest_by_tree: dict[str, str] = {}
        for commit in self._repo.history(self._tip, directory):
            tree = self._repo.tree_of(commit, directory)
            if tree is None or tree in digest_by_tree:
                continue
            digest_by_tree[tree] = digest_at(self._repo, commit, problem) or ""
        return set(digest_by_tree.values())
