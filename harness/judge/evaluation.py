"""Evaluation of one candidate: build, recording, correctness, timing, and the answer.

Each step returns a value that the next one takes: a build, a candidate for a clock, the results of its workloads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import FormatError
from harness.failpoints import failpoint
from harness.formats.solutions import UnusableSolutionError, usable_solution
from harness.judge.build.builder import BuildFailed
from harness.judge.deadline import Deadline
from harness.judge.devices.interface import Clock
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_planner import LACK
from harness.judge.recording import NotRecorded, RecordableWorkload, Recorded, record
from harness.judge.runners import RunnerFailed
from harness.judge.sides import CandidateRunner, Staged, stage_solution
from harness.judge.verdict import failed, one_line, overall
from harness.judge.workload_race import RaceOutcome, Task, WorkloadRace
from harness.model.interval import summarise
from harness.model.judging import Cost, JudgeAnswer, Recording
from harness.model.solution import Solution
from harness.model.verdict import Trust, Verdict


@dataclass(frozen=True)
class JudgedCandidate:
    """A built candidate in the form in which it is judged."""

    staged: Staged
    recorded: Recorded | None = None
    """Its recorded launches, which are judged in place of its host code."""
    recording: Recording | None = None
    """For the answer, of a Triton solution."""

    def without_replay(self, solution: Staged, reason: str) -> JudgedCandidate:
        """Return the candidate with its host code.

        Args:
            solution: as it was built.
            reason: why its recorded launches do not count.
        """
        return JudgedCandidate(solution, recording=Recording(reason=reason))


@dataclass(frozen=True)
class Evaluated:
    """The answer to a request, and the candidate as it was judged."""

    answer: JudgeAnswer
    sealed: Staged | None
    """Files and plans for the trusted launcher; None if the candidate's own code makes its calls."""


def evaluate(task: Task) -> Evaluated:
    """Judge the candidate of a request.

    Args:
        task: the request.

    Raises:
        BaselineFailed: the reference or the baseline is wrong or broke.
        OutOfMachineMemoryError: other programs use the memory that is missing.
    """
    begin, device = time.monotonic(), task.judge.device
    device.runners.start_standby()
    task.report("build")
    try:
        solution = _read(task)
        staged = stage_solution(task.problem, solution, cache_dir=task.judge.cache_dir, sandbox=task.judge.sandbox)
    except (FormatError, BuildFailed) as error:  # the build raises FormatError for a malformed launch plan
        reason = one_line(error) if isinstance(error, FormatError) else error.reason
        results = [failed(workload, UnusableSolutionError.verdict, reason) for workload in task.problem.workloads]
        answer = _answer(task, None, RaceOutcome(tuple(results)), time.monotonic() - begin)
        return Evaluated(answer.model_copy(update={"reason": reason}), None)
    build_s = time.monotonic() - begin
    if staged.sealed and staged.binary in task.request.known_binaries:
        repeated = {"verdict": task.request.known_binaries[staged.binary], "measured": False}
        answer = _answer(task, JudgedCandidate(staged), RaceOutcome(), build_s)
        return Evaluated(answer.model_copy(update=repeated), staged)
    failpoint("judge.before_rounds")
    candidate = JudgedCandidate(staged)
    if solution.spec.language == "triton" and len(device.clocks) > 1:
        candidate = _recorded(task, staged)
    outcome = _outcome(task, candidate)
    failure = next((result.reason for result in outcome.results if result.verdict is not Verdict.PASSED), None)
    if candidate.recorded is not None and failure is not None:
        candidate = candidate.without_replay(staged, f"replayed, its launches do something else: {failure}")
        outcome = _outcome(task, candidate)
    failpoint("judge.before_answer")
    answer = _answer(task, candidate, outcome, build_s)
    return Evaluated(answer, candidate.staged if candidate.staged.sealed else None)


def _read(task: Task) -> Solution:
    """Return the candidate's solution.

    Raises:
        UnusableSolutionError: it is malformed, or is not for this problem or device.
    """
    hardware = task.judge.device.hardware
    directory, runs = Path(str(task.request.solution_dir)), f"the device {hardware.target} runs"
    return usable_solution(directory, task.problem.definition, hardware.languages, runs)


def _recorded(task: Task, staged: Staged) -> JudgedCandidate:
    """Record the launches of a solution for the sealed clock; without a recording its host code is judged."""
    task.report("record")
    clock, deadline = task.judge.device.clock, Deadline(task.request.max_judge_s)
    runner = CandidateRunner(clock, staged)
    task.inputs.for_host_code = True
    try:
        workloads = (_recordable(task, clock, number) for number in range(len(task.problem.workloads)))
        recorded = record(runner.side(deadline), workloads, lambda most_s: min(most_s, deadline.remaining_s()))
    except NotRecorded as outcome:
        return JudgedCandidate(staged, recording=Recording(reason=str(outcome)))
    except (RunnerFailed, *LACK) as failure:
        return JudgedCandidate(staged, recording=Recording(reason=f"a call failed: {one_line(failure)}"))
    finally:
        runner.end()
    return JudgedCandidate(recorded.staged(), recorded, Recording(cubins=recorded.digests))


def _recordable(task: Task, clock: Clock, number: int) -> RecordableWorkload:
    workload = task.problem.workloads[number]
    layout, plan = layout_of(task.problem, workload), task.planner.plan(clock, workload)
    memory = clock.memory(layout, 1, replace(plan, sets=1) if plan is not None else None)
    return RecordableWorkload(workload, layout, memory, task.check_of(workload), plan)


def _outcome(task: Task, candidate: JudgedCandidate) -> RaceOutcome:
    """Race the candidate on all workloads."""
    task.inputs.for_host_code = not candidate.staged.sealed
    clock = task.judge.device.clock_for(sealed=candidate.staged.sealed)
    outcome = WorkloadRace(task, candidate.staged, clock).outcome()
    if candidate.recorded is None:
        return outcome
    bounded = candidate.recorded.bounded_us
    results = [result.model_copy(update={"bounded_us": bounded.get(result.uuid)}) for result in outcome.results]
    return RaceOutcome(tuple(results), Trust.RECORDED if outcome.trust.by_events else outcome.trust)


def _answer(task: Task, candidate: JudgedCandidate | None, outcome: RaceOutcome, build_s: float) -> JudgeAnswer:
    verdict, reason = overall(outcome.results)
    staged = candidate.staged if candidate is not None else None
    return JudgeAnswer(
        id=task.request.id,
        verdict=verdict,
        reason=reason,
        trust=outcome.trust,
        recording=candidate.recording if candidate is not None else None,
        resources=staged.report.kernels if staged is not None else (),
        binary=staged.binary if staged is not None else None,
        workloads=outcome.results,
        summary=summarise(outcome.results),
        device=task.judge.device.record(),
        environment=task.judge.environment,
        cost=Cost(build_s=build_s),
    )
