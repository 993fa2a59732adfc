"""Evaluation of one candidate: build, recording, correctness, timing, and the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from harness.errors import FormatError
from harness.failpoints import failpoint
from harness.formats.solutions import UnusableSolutionError, usable_solution
from harness.judge.baseline.baseline_runners import COMPILED, Opponents
from harness.judge.baseline.slowdown import slowed_by, time_baseline_alone
from harness.judge.build.builder import BuildFailed
from harness.judge.checks import Tally, WorkloadCheck, WorkloadSets
from harness.judge.devices.interface import Device
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.recording import NotRecorded, RecordableWorkload, Recorded, record
from harness.judge.reference import Reference
from harness.judge.rounds import REPETITIONS, Deadline, Rounds
from harness.judge.runners import BaselineFailed, NoRoom, RunnerFailed
from harness.judge.sides import Side, Staged, load, stage_solution
from harness.judge.timing import TimedBlocks
from harness.judge.verdict import (
    correct,
    failed,
    one_line,
    overall,
    timed,
    weakest_trust,
    with_baseline_alone,
    with_bounds,
)
from harness.model.config import SandboxKind
from harness.model.interval import summarise
from harness.model.judging import (
    Cost,
    EnvironmentRecord,
    JudgeAnswer,
    JudgeProgress,
    JudgeRequest,
    Recording,
    Variant,
    WorkloadResult,
)
from harness.model.problem import Problem, Workload
from harness.model.solution import Solution
from harness.model.verdict import Trust, Verdict
from harness.sol.roofline import Bounds, NoBoundError

Progress = Callable[[JudgeProgress], None]
_TIMING_SHARE = {"evaluation": 0.04, "confirmation": 0.08}
"""Share of max_judge_s for blocks after the first twelve, divided among the workloads. A confirmation has more, because
its speed-up is the one that counts."""


class Resources(Protocol):
    """Parts of the judge that an evaluation uses: devices, directories and caches."""

    device: Device
    environment: EnvironmentRecord
    cache_dir: Path
    sandbox: SandboxKind

    def opponents(self, clock: Device) -> Opponents:
        """Return the runners of baselines on one of the device's clocks."""

    def bounds(self, problem: Problem, workload: Workload) -> Bounds | NoBoundError:
        """Return the bounds of a workload on the device, or the reason why it has none.

        Args:
            problem: the problem.
            workload: one of its workloads.
        """

    def measure_hardware_again(self) -> None:
        """Measure the hardware's rates again, because a busy machine has bounds that are too high."""

    def serve_check(self) -> float:
        """Serve a waiting check if it is due. Return the seconds that it took."""


class Evaluation:
    """Evaluation of one candidate.

    Args:
        judge: the judge's devices, directories and caches.
        request: names the candidate.
        problem: the problem.
        reference: of the problem.
        progress: receives the progress.
    """

    def __init__(
        self, judge: Resources, request: JudgeRequest, problem: Problem, reference: Reference, progress: Progress
    ) -> None:
        self._judge, self._request, self._problem = judge, request, problem
        self._reference, self._progress = reference, progress
        self._device = device = judge.device
        self._opponents = judge.opponents(device)
        self._inputs = InputSource(problem, reference=reference, device=device.memory_on, copy_all=device.copy_all)
        self._candidate: Side | None = None
        self._own_baseline: Side | None = None
        self._deadline = Deadline(0.0)
        self._staged: Staged | None = None
        self._recorded: Recorded | None = None
        self._recording: Recording | None = None
        self._baselines_alone_ns: dict[str, tuple[float, ...]] = {}
        self._slowed: dict[str, tuple[TimedBlocks, Tally]] = {}
        """Times of the workloads whose baseline was slower than before the candidate's process existed, by uuid."""

    def _report(self, stage: str, done: int = 0) -> None:
        self._progress(JudgeProgress(id=self._request.id, stage=stage, done=done, of=len(self._problem.workloads)))

    def run(self) -> JudgeAnswer:
        """Judge the candidate, and return the answer.

        Raises:
            BaselineFailed: the reference or the baseline is wrong or broke.
        """
        begin = time.monotonic()
        self._device.start_standby()
        self._report("build")
        try:
            solution = self._read()
            self._staged = staged = stage_solution(
                self._problem, solution, cache_dir=self._judge.cache_dir, sandbox=self._judge.sandbox
            )
        except (FormatError, BuildFailed) as error:  # the build raises FormatError for a malformed launch plan
            reason = one_line(error) if isinstance(error, FormatError) else error.reason
            results = [failed(workload, UnusableSolutionError.verdict, reason) for workload in self._problem.workloads]
            return self._answer(results, time.monotonic() - begin, 0.0, reason)
        built = time.monotonic()
        if staged.sealed and staged.binary in self._request.known_binaries:
            repeated = {"verdict": self._request.known_binaries[staged.binary], "measured": False}
            return self._answer([], built - begin, 0.0).model_copy(update=repeated)
        failpoint("judge.before_rounds")
        try:
            self._choose_clock(sealed=staged.sealed)
            if solution.spec.language == "triton" and self._judge.device.clock(sealed=True) is not self._judge.device:
                self._record()
            results = self._timed_workloads()
            failure = next((result.reason for result in results if result.verdict is not Verdict.PASSED), None)
            if self._recorded is not None and failure is not None:
                self._time_without_replay(staged, f"replayed, its launches do something else: {failure}")
                results = self._timed_workloads()
        finally:
            self._close_sides()
        failpoint("judge.before_answer")
        return self._answer(results, built - begin, time.monotonic() - built)

    @property
    def sealed(self) -> Staged | None:
        """Files and plans of the candidate for the trusted launcher; None if its own code makes its calls."""
        return self._staged if self._staged is not None and self._staged.sealed else None

    def _choose_clock(self, *, sealed: bool) -> None:
        self._device = self._judge.device.clock(sealed=sealed)
        self._opponents = self._judge.opponents(self._device)
        self._inputs.for_host_code = not sealed

    def _timed_workloads(self) -> list[WorkloadResult]:
        self._prepare_opponents()
        if self._device.calibration.work_outlasts_stop:
            workloads = self._problem.workloads
            self._baselines_alone_ns = {workload.uuid: self._baseline_alone_ns(workload) for workload in workloads}
        self._deadline = Deadline(self._request.max_judge_s)
        results = self._workloads()
        if self._recorded is None:
            return results
        bounded = self._recorded.bounded_us
        return [result.model_copy(update={"bounded_us": bounded.get(result.uuid)}) for result in results]

    def _record(self) -> None:
        """Record the launches of a solution for the sealed clock; without a recording the solution itself is timed."""
        self._report("record")
        self._deadline = Deadline(self._request.max_judge_s)
        try:
            side = self._ready_candidate()
            workloads = map(self._recordable, self._problem.workloads)
            self._recorded = record(side, workloads, lambda most_s: min(most_s, self._deadline.remaining_s()))
        except NotRecorded as outcome:
            self._recording = Recording(reason=str(outcome))
            return
        except (RunnerFailed, torch.OutOfMemoryError) as failure:
            self._recording = Recording(reason=f"a call failed: {one_line(failure)}")
            self._close_sides()
            return
        self._close_sides()
        self._recording = Recording(cubins=self._recorded.digests)
        self._staged = self._recorded.staged()
        self._choose_clock(sealed=True)

    def _recordable(self, workload: Workload) -> RecordableWorkload:
        layout = layout_of(self._problem, workload)
        return RecordableWorkload(workload, layout, self._device.memory(layout), self._check_of(workload))

    def _check_of(self, workload: Workload) -> WorkloadCheck:
        sets = WorkloadSets(self._problem, self._inputs, workload)
        return WorkloadCheck(self._reference, sets, self._device.summed)

    def _time_without_replay(self, staged: Staged, reason: str) -> None:
        """Discard the recording for this reason, and time the solution itself."""
        self._close_sides()
        self._recorded, self._recording, self._staged = None, Recording(reason=reason), staged
        self._choose_clock(sealed=False)

    def _close_sides(self) -> None:
        for side in (self._candidate, self._own_baseline):
            if side is not None:
                side.close()
        self._candidate = self._own_baseline = None

    def _read(self) -> Solution:
        """Return the candidate's solution.

        Raises:
            UnusableSolutionError: it is malformed, or is not for this problem or device.
        """
        directory, runs = Path(str(self._request.solution_dir)), f"the device {self._device.target} runs"
        return usable_solution(directory, self._problem.definition, self._device.languages, runs)

    def _variant(self, workload: Workload) -> Variant:
        """Return the baseline to time against: the fastest by the clock that the candidate is timed with."""
        variant = self._request.baseline.get(workload.uuid, "eager")
        if self._device is self._judge.device:
            return variant
        return self._request.sealed_baseline.get(workload.uuid, variant)

    def _prepare_opponents(self) -> None:
        self._report("baseline")
        variants = {self._variant(workload) for workload in self._problem.workloads}
        for variant in sorted(variants - {"baseline"}):
            self._opponents.trusted(self._problem, variant)
        for variant in COMPILED:
            compiled = [workload for workload in self._problem.workloads if self._variant(workload) == variant]
            if compiled:
                self._opponents.compile_ahead(
                    self._problem, compiled, lambda done: self._report("baseline", done), variant
                )
        if "baseline" in variants:
            self._own_baseline = self._opponents.own(self._problem)

    def _opponent(self, variant: Variant) -> Side:
        own = self._own_baseline if variant == "baseline" else None
        return own or self._opponents.trusted(self._problem, variant)

    def _baseline_alone_ns(self, workload: Workload) -> tuple[float, ...]:
        """Time the baseline of a workload while no process of the candidate exists.

        Raises:
            BaselineFailed: the baseline broke.
        """
        self._device.settle()  # the same conditions as during the candidate's blocks
        variant, layout = self._variant(workload), layout_of(self._problem, workload)
        memory, sets = self._device.memory(layout), WorkloadSets(self._problem, self._inputs, workload)
        try:
            return time_baseline_alone(self._opponent(variant), workload, layout, memory, sets, variant)
        except RunnerFailed as broken:
            raise BaselineFailed(f"the baseline ({variant}) failed: {broken.reason}") from None

    def _workloads(self) -> list[WorkloadResult]:
        """Return the result of every workload. After the first failure the others are checked and not timed."""
        results: list[WorkloadResult] = []
        for number, workload in enumerate(self._problem.workloads):
            verdicts = {result.verdict for result in results}
            if Verdict.REWARD_HACK in verdicts:
                reason = "not run: the candidate cheated on another workload"
                results.append(failed(workload, Verdict.REWARD_HACK, reason))
                continue
            self._report("workload", number)
            results.append(self._workload(workload, timing=verdicts <= {Verdict.PASSED}))
        return self._without_slow_host(results) if self._slowed else results

    def _without_slow_host(self, results: Sequence[WorkloadResult]) -> list[WorkloadResult]:
        """Time slowed baselines again without the candidate's process, and return the results with the new uncertainty.

        A baseline that is as slow without that process was slowed by its host, not by the candidate.

        Raises:
            BaselineFailed: a baseline broke.
        """
        self._end_candidate()
        checked = dict(zip((workload.uuid for workload in self._problem.workloads), results, strict=True))
        for workload in self._problem.workloads:
            result = checked[workload.uuid]
            if workload.uuid not in self._slowed or result.verdict is not Verdict.PASSED:
                continue
            times, tally = self._slowed[workload.uuid]
            slowed = slowed_by(self._baseline_alone_ns(workload), [block.baseline_ns for block in times.blocks])
            times = replace(times, slowdown_uncertainty=min(times.slowdown_uncertainty, slowed))
            corrected = self._timed(workload, times, tally)
            checked[workload.uuid] = corrected.model_copy(update={"note": result.note})
        return list(checked.values())

    def _workload(self, workload: Workload, *, timing: bool) -> WorkloadResult:
        layout = layout_of(self._problem, workload)
        memory = self._device.memory(layout, len(self._problem.workloads))
        variant = self._variant(workload)
        opponent = self._opponent(variant)
        check = self._check_of(workload)
        tally, alone_ns = Tally(), self._baselines_alone_ns.get(workload.uuid, ())
        count = len(self._problem.workloads)
        half_width = self._request.half_width * math.sqrt(count)  # the mean of all workloads has the requested one
        cap_s = _TIMING_SHARE[self._request.kind] * self._request.max_judge_s / count
        try:
            candidate = self._ready_candidate()
            rounds = Rounds(
                memory, check, opponent, candidate, self._deadline, self._serve_check, alone_ns, tally, count
            )
            try:
                opponent.prepare(workload, layout, memory.capacity, variant)
                rounds.warm_up_baseline()
            except NoRoom:
                raise
            except RunnerFailed as broken:
                raise BaselineFailed(f"the baseline ({variant}) failed: {broken.reason}") from None
            candidate.prepare(workload, layout, memory.capacity)
            rounds.correctness()
            if not timing:
                return correct(workload, tally)
            self._device.settle()
            failpoint("judge.before_timing")
            for _ in range(REPETITIONS):  # a time below the hardware's bound accuses the candidate, so it is confirmed
                times = rounds.time(half_width, cap_s)
                result = self._timed(workload, times, tally)
                if result.verdict is not Verdict.SUSPECT:
                    break
                begin = time.monotonic()
                self._judge.measure_hardware_again()
                self._deadline.extend(time.monotonic() - begin)
            if times.slowdown_uncertainty and self._device.calibration.work_outlasts_stop:
                self._slowed[workload.uuid] = times, tally
            notes = [note for note in (check.note, result.note) if note]
            return result.model_copy(update={"note": "; ".join(notes) or None})
        except (torch.OutOfMemoryError, RunnerFailed) as error:
            failure = error if isinstance(error, RunnerFailed) else NoRoom(one_line(error))
            self._end_candidate()
            return failed(workload, failure.verdict, failure.reason, tally)

    def _timed(self, workload: Workload, times: TimedBlocks, tally: Tally) -> WorkloadResult:
        """Return a workload's times with bound, floor and score, or with a note of the reason why it has none."""
        bounds = self._judge.bounds(self._problem, workload)
        sol_us = None if isinstance(bounds, NoBoundError) else bounds.sol_us
        result = timed(workload, times, tally, self._variant(workload), self._device, sol_us)
        result = with_baseline_alone(result, self._baselines_alone_ns.get(workload.uuid, ()))
        return self._bounded(bounds, result)

    def _bounded(self, bounds: Bounds | NoBoundError, result: WorkloadResult) -> WorkloadResult:
        if isinstance(bounds, NoBoundError):
            reason = bounds.message.removeprefix("no bound: ")
            fix = f" ({bounds.remedy})" if bounds.remedy else ""
            return result.model_copy(update={"note": f"no bound: {reason}{fix}"})
        return with_bounds(result, bounds.sol_us, bounds.floor_us, "measured" if bounds.is_measured else "listed")

    def _serve_check(self) -> float:
        """Serve a waiting check, and extend the deadline by the seconds that it took, which are returned."""
        spent_s = self._judge.serve_check()
        self._deadline.extend(spent_s)
        return spent_s

    def _ready_candidate(self) -> Side:
        """Return the candidate's runner: the present one, or a fresh one after it broke.

        Raises:
            RunnerFailed: loading the candidate fails.
        """
        if self._candidate is None:
            assert self._staged is not None  # noqa: S101 - run() built it
            begin = time.monotonic()
            runner = self._device.runner(needs_torch=self._staged.needs_torch)
            self._deadline.extend(time.monotonic() - begin)  # the start of a runner does not count as judging time
            self._candidate = load(self._device, runner, self._staged, trusted=False)
        return self._candidate

    def _end_candidate(self) -> None:
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None

    def _answer(
        self, results: Sequence[WorkloadResult], build_s: float, judge_s: float, reason: str | None = None
    ) -> JudgeAnswer:
        verdict, workload_reason = overall(results)
        trust = weakest_trust(results, self._device)
        return JudgeAnswer(
            id=self._request.id,
            verdict=verdict,
            reason=reason or workload_reason,
            trust=Trust.RECORDED if self._recorded is not None and trust.by_events else trust,
            recording=self._recording,
            resources=self._staged.report.kernels if self._staged is not None else (),
            binary=self._staged.binary if self._staged is not None else None,
            workloads=tuple(results),
            summary=summarise(results),
            device=self._device.record(),
            environment=self._judge.environment,
            cost=Cost(build_s=round(build_s, 3), judge_s=round(judge_s, 3)),
        )
