"""Answers to requests: evaluations of candidates, measurements of baselines, and profiles.

An outcome of judging is data in the answer. An exception is a fault of the judge or of this machine.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch

import harness
from harness.errors import ConfigurationError, FormatError
from harness.failpoints import failpoint
from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge.baseline.baseline_runners import Opponents
from harness.judge.baseline.baselines import measure
from harness.judge.counters.profiling import ProfileTarget, cold_and_warm_us, find_profiled, profile_replay
from harness.judge.counters.replays import replay_key, store_replay
from harness.judge.devices.interface import Clock, Device
from harness.judge.evaluation import evaluate
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_planner import MemoryPlanner
from harness.judge.reference import Reference, load_reference
from harness.judge.resources import Progress
from harness.judge.runners import BaselineFailed
from harness.judge.sides import Staged
from harness.judge.solution_check import WaitingChecks
from harness.judge.stages import not_recorded, recording, timed_as
from harness.judge.verdict import failed, one_line
from harness.judge.version import judge_version
from harness.judge.workload_race import Task
from harness.model.config import SandboxKind
from harness.model.counters import CounterReport
from harness.model.judging import Cost, EnvironmentRecord, JudgeAnswer, JudgeRequest, JudgeStage, Summary
from harness.model.problem import Problem, Workload
from harness.model.verdict import Verdict
from harness.sol.cpu import measured_cpu
from harness.sol.hardware import CPU
from harness.sol.roofline import Bounds, NoBoundError, bounds
from harness.sol.targets import hardware


class Judge:
    """Answers requests on one device, one after the other.

    Args:
        device: the device, which this judge closes.
        cache_dir: directory for builds, calibrations and replays.
        sandbox: kind of sandbox for builders and runners.
        checks: serves checks between the batches of an evaluation; None: no checks are served.
    """

    def __init__(
        self, device: Device, *, cache_dir: Path, sandbox: SandboxKind, checks: WaitingChecks | None = None
    ) -> None:
        self.device = device
        self.environment = EnvironmentRecord(
            harness=harness.__version__,
            judge=judge_version(),
            python=platform.python_version(),
            torch=torch.__version__,
            sandbox=sandbox,
        )
        self.cache_dir = cache_dir
        self.sandbox: SandboxKind = sandbox
        self._opponents = tuple((clock, Opponents(clock, cache_dir, sandbox)) for clock in device.clocks)
        self._bounds: dict[tuple[str, str], Bounds | NoBoundError] = {}
        self._tried_references: set[str] = set()
        self._checks = checks
        device.runners.start_standby()

    def opponents(self, clock: Clock) -> Opponents:
        """Return the runners of baselines on one of the device's clocks."""
        return next(opponents for timed_by, opponents in self._opponents if timed_by is clock)

    def memory_planner(self, problem: Problem) -> MemoryPlanner:
        """Return the planner of the device's memory for a request about a problem."""
        return MemoryPlanner(self.device, problem, self._end_opponents)

    def answer(self, request: JudgeRequest, progress: Progress) -> JudgeAnswer:
        """Return the answer to a request. Failures of a problem or a solution are in the answer.

        Args:
            request: names the problem and the solution.
            progress: receives the progress while the request is served.

        Raises:
            ConfigurationError: a part of this machine that the judge needs is missing.
        """
        failpoint("judge.request")
        with recording() as times:
            answer = self._answer(request, progress)
        return answer.model_copy(update={"cost": times.cost(answer.cost.build_s)})

    def _answer(self, request: JudgeRequest, progress: Progress) -> JudgeAnswer:
        """Return the answer; of its cost, only `build_s` is set."""
        try:
            data_root = Path(request.data_root) if request.data_root else None
            problem = load_problem(Path(request.problem_dir), key=request.problem, data_root=data_root)
            reference = load_reference(problem)
        except FormatError as error:
            return self._refused(request, Verdict.INVALID_REFERENCE, one_line(error))
        layouts = [layout_of(problem, workload) for workload in problem.workloads]
        replaced = [clock.reserve(layouts) for clock in self.device.clocks]
        if any(replaced):
            self._end_opponents(None)
        try:
            self._try_reference(problem, reference)
            if request.solution_dir is None:
                return measure(self, request, problem, reference, progress)
            if request.kind == "profile":
                return self._profiled(request, problem, reference)
            return self._evaluated(request, problem, reference, progress)
        except (FormatError, BaselineFailed) as error:
            for _, runners in self._opponents:
                runners.drop(problem)
            return self._refused(request, Verdict.INVALID_REFERENCE, one_line(error), problem)
        finally:
            self.device.runners.start_standby()

    def _evaluated(
        self, request: JudgeRequest, problem: Problem, reference: Reference, progress: Progress
    ) -> JudgeAnswer:
        inputs, planner = self._inputs(problem, reference), self.memory_planner(problem)
        evaluated = evaluate(Task(self, request, problem, reference, inputs, planner, progress))
        answer = evaluated.answer
        if self.device.hardware.target != CPU and answer.verdict is Verdict.PASSED and evaluated.sealed is not None:
            self._keep_replay(request, problem, evaluated.sealed, answer.device.name)
        return answer

    def _inputs(self, problem: Problem, reference: Reference) -> InputSource:
        hardware = self.device.hardware
        return InputSource(problem, reference=reference, device=hardware.memory_on, copy_all=hardware.copy_all)

    def _keep_replay(self, request: JudgeRequest, problem: Problem, sealed: Staged, device_name: str) -> None:
        """Store a solution that passed, for later profiles. A failure to store it affects nothing else."""
        try:
            solution = load_solution(Path(str(request.solution_dir)))
            store_replay(self.cache_dir, replay_key(problem, solution, device_name), sealed)
        except (FormatError, OSError) as error:
            sys.stderr.write(f"harness judge: a solution that passed cannot be stored for profiles: {error}\n")

    def _profiled(self, request: JudgeRequest, problem: Problem, reference: Reference) -> JudgeAnswer:
        """Return an answer with the counters of a solution that passed, or the reason why there are none.

        The verdict of this answer has no meaning.
        """
        device = self.device.record()
        solution = load_solution(Path(str(request.solution_dir)))
        source = self._inputs(problem, reference)
        target = ProfileTarget(self.device.hardware.target, device.name, device.id, self.sandbox, self.cache_dir)
        profiled = find_profiled(problem, solution, request.workload, target)
        if isinstance(profiled, CounterReport):
            report = profiled
        else:
            report = profile_replay(problem, *profiled, source, target)
            latency = cold_and_warm_us(self.device, problem, *profiled, source)
            if latency is not None:
                report = report.model_copy(update={"cold_us": latency[0], "warm_us": latency[1]})
        answer = self._refused(request, Verdict.PASSED, "a profile has no verdict")
        return answer.model_copy(update={"counters": report, "device": device})

    @timed_as(JudgeStage.REFERENCE)
    def _try_reference(self, problem: Problem, reference: Reference) -> None:
        """Run a reference once, on the problem's smallest workload, before other work on the problem.

        Raises:
            InvalidReferenceError: the reference fails, or does something that the judge cannot handle.
        """
        if problem.digest in self._tried_references:
            return
        smallest = min(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
        source = self._inputs(problem, reference)
        reference.outputs(list(source.draw(smallest).values()))
        self._tried_references.add(problem.digest)

    def bounds(self, problem: Problem, workload: Workload) -> Bounds | NoBoundError:
        """Return the bounds of a workload on this device, or the reason why it has none; computed once.

        Args:
            problem: the problem.
            workload: one of its workloads.
        """
        key = problem.digest, workload.uuid
        if key not in self._bounds:
            try:
                machine = hardware(self.device.hardware.target, cache_dir=self.cache_dir)
            except ConfigurationError as error:  # not cached, because the hardware may be measured later
                return NoBoundError(error.message, where=error.where, remedy=error.remedy)
            try:
                self._bounds[key] = bounds(problem, workload, machine)
            except NoBoundError as error:
                self._bounds[key] = error
        return self._bounds[key]

    def measure_hardware_again(self) -> None:
        """Measure a CPU's rates again, because they are too low if the CPU was busy. A GPU's rates are constants."""
        if self.device.hardware.target == CPU:
            measured_cpu(self.cache_dir, remeasure=True)
            self._bounds.clear()

    @not_recorded()
    def serve_check(self) -> float:
        """Serve a waiting check if it is due. Return the seconds that it took, which are not a cost of the request."""
        return self._checks.serve_next() if self._checks is not None else 0.0

    def _refused(
        self, request: JudgeRequest, verdict: Verdict, reason: str, problem: Problem | None = None
    ) -> JudgeAnswer:
        workloads = [failed(workload, verdict, reason) for workload in problem.workloads] if problem else []
        return JudgeAnswer(
            id=request.id,
            verdict=verdict,
            reason=reason,
            workloads=tuple(workloads),
            summary=Summary(passed=0, of=len(workloads)),
            device=self.device.record(),
            environment=self.environment,
            cost=Cost(),
        )

    def _end_opponents(self, keep: Problem | None) -> None:
        """End the runners of baselines, except those of a problem."""
        for _, runners in self._opponents:
            runners.close(keep)

    def close(self) -> None:
        """End every runner and close the device."""
        self._end_opponents(None)
        self.device.close()
