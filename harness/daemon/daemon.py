"""The daemon: finds candidates, sends them to judges, enters the outcomes. One loop in one thread owns its state.

Its state in memory can be derived again from git and the ledger, so that it may be killed at any instant. Other threads
(the watcher of refs, one reader for each judge) only put notices into its inbox; one thread commits the ledger
(`Recorder`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from harness.daemon.attempts import Attempts, Loss
from harness.daemon.check_orders import CheckOrders
from harness.daemon.device_judges import DeviceJudges
from harness.daemon.disk_watch import DiskWatch
from harness.daemon.dispatch import Decided, JobPlanner, Work, baseline_identity, job_identity
from harness.daemon.drafts import baseline_draft
from harness.daemon.due_work import DueWork
from harness.daemon.lost_work import LostWork, PostponedWork
from harness.daemon.metrics import DaemonMetrics
from harness.daemon.profiles import Profiles
from harness.daemon.queue import EvaluationQueue, Job
from harness.daemon.recorder import AfterEntry, Recorder
from harness.daemon.snapshots import Snapshots
from harness.daemon.status_writer import StatusWriter, judge_status
from harness.errors import ConfigurationError, HarnessError, LedgerError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.config import Config
from harness.model.judging import CheckReply, JudgeReady
from harness.model.printable import count_of
from harness.model.process_status import DaemonStatus
from harness.model.verdict import Verdict
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import RefWatch
from harness.workspace.judge_client import CheckAnswered, JudgeClient, JudgeLost, RequestAnswered
from harness.workspace.judge_endpoint import JudgeNotice
from harness.workspace.judge_source import OpenJudges

logger = logging.getLogger(__name__)

RECONCILE_S = 30.0
"""Interval at which refs and ledger are compared without an event."""
_LOOK_AGAIN_S = 2.0
"""Pause after a failure (of the disk, git or the index), and interval of scans without watches."""
_LONGEST_WAIT_S = 0.25
"""Longest time until a stop takes effect, in seconds."""
LONGEST_FAULT_S = 300.0
"""With `once`, the daemon ends if a fault of this machine has prevented all answers for this time."""


def _judge_subject(judge: JudgeClient) -> str:
    """Return the subject of messages about a judge, which it removes when it is ready again."""
    return f"judge of {judge.device}"


class Daemon:
    """The state of one invocation. Not thread-safe."""

    def __init__(
        self,
        workspace: Workspace,
        config: Config,
        repo: Repo,
        ledger: Ledger,
        index: Index,
        *,
        open_judges: OpenJudges,
        max_evaluations: int | None = None,
        evaluations_done: int = 0,
        metrics: DaemonMetrics | None = None,
    ) -> None:
        self._workspace, self._config, self._repo, self._ledger = workspace, config, repo, ledger
        self._max_evaluations = max_evaluations
        self._metrics = metrics or DaemonMetrics()
        self._disk = DiskWatch((workspace.state, workspace.derived))
        self._inbox: queue.SimpleQueue[JudgeNotice | str] = queue.SimpleQueue()
        self._queue = EvaluationQueue()
        self._status = StatusWriter(workspace)
        self._recorder = Recorder(workspace, ledger, self._status)
        self._snapshots = Snapshots(workspace, repo, data_root_of(workspace, config))
        self._attempts = Attempts(workspace.state / "attempts")
        self._postponed = PostponedWork()
        self._lost_work = LostWork(self._queue, self._attempts, self._postponed)
        self._planner = JobPlanner(config, self._snapshots, index, self._attempts)
        self._profiles = Profiles(workspace, self._snapshots, lambda: repo.tip(config.coordination_branch))
        self._after_entry = AfterEntry(self._recorder, self._queue, self._attempts, evaluations_done)
        record_champion = self._after_entry.record_champion
        self._due_work = DueWork(config, repo, index, self._snapshots, self._queue, self._status, record_champion)
        self._watcher = RefWatch(workspace.git_common_dir, lambda: self._inbox.put("refs have moved"))
        self._watching = False
        self._judges = DeviceJudges(open_judges(self._inbox.put))
        self._checks = CheckOrders(workspace, config, repo, self._snapshots)
        self._work: dict[str, Work] = {}
        self._scan_at = 0.0
        self._dispatch_at = 0.0
        self._last_answer_at = time.monotonic()

    # --- the loop ---

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Work until `stop` is set, or with `once` until no work is left; then commit the ledger."""
        self._start()
        while not stop.is_set():
            self._receive()
            self._judges.tick()
            self._recorder.retry()
            self._follow_up()
            if time.monotonic() >= self._scan_at:
                self._attempt(self._scan, "comparing refs with the ledger")
                self._report()  # the candidates are reported before they are handed out, which takes longer
            if time.monotonic() >= self._dispatch_at:
                self._attempt(self._dispatch, "handing out work")
            self._attempt(lambda: self._checks.hand_out(list(self._judges)), "handing out checks")
            self._attempt(self._measure_ahead, "measuring baselines ahead")
            self._follow_up()
            self._recorder.flush()
            self._report()
            if once:
                self._end_after_long_fault()
                if self._is_idle():
                    self._attempt(self._scan, "comparing refs with the ledger")
                    if self._is_idle():
                        break
        self._finish()

    def close(self) -> None:
        """End all judges simultaneously, the watcher, and a commit of the ledger that is in progress."""
        self._judges.close()
        self._watcher.close()
        self._recorder.close()
        failpoint("daemon.after_close")

    def _start(self) -> None:
        failpoint("daemon.before_watch")
        try:
            self._watcher.start()
            self._watching = True
        except OSError as error:
            self._status.add_message(
                f"the kernel gives no watches on refs ({error}): refs are scanned every {_LOOK_AGAIN_S:.0f} s. "
                "More: `sysctl fs.inotify.max_user_watches fs.inotify.max_user_instances`"
            )
        self._judges.tick()

    def _finish(self) -> None:
        """Enter the answers that are not entered yet, or report that their candidates will be judged again."""
        self.close()
        self._recorder.retry(force=True)
        self._follow_up()
        self._report(force=True)
        failpoint("daemon.before_last_flush")
        self._recorder.flush(force=True)
        if self._recorder.unwritten:
            raise LedgerError(
                f"the daemon drops {count_of(self._recorder.unwritten, 'answer')} of the judge that could not be "
                "entered; each candidate without an entry will be judged again",
                where=str(self._workspace.spool),
                remedy="see the messages above for the cause",
            )

    def _receive(self) -> None:
        """Wait for notices, at most until an action is due, and process all of them."""
        timeout_s = max(self._next_due() - time.monotonic(), 0.0)
        with suppress(queue.Empty):
            while True:
                notice = self._inbox.get(timeout=timeout_s)
                if isinstance(notice, str):
                    self._scan_at = 0.0
                else:
                    self._receive_notice(notice)
                timeout_s = 0.0

    def _next_due(self) -> float:
        now_s = time.monotonic()
        due = [self._scan_at, now_s + _LONGEST_WAIT_S, *self._judges.next_ticks()]
        if (retry := self._recorder.next_retry()) is not None:
            due.append(retry)
        return max(min(due), now_s)

    def _attempt(self, step: Callable[[], None], description: str) -> None:
        """Run a step in which the repository, the index or the disk may fail: report it, and try again later."""
        failed = f"{description} failed"
        try:
            step()
        except (HarnessError, OSError) as error:
            self._status.add_failure(failed, error)
            self._scan_at = max(self._scan_at, time.monotonic() + _LOOK_AGAIN_S)
            self._dispatch_at = time.monotonic() + _LOOK_AGAIN_S
        else:
            self._status.remove_messages(failed)

    def _scan(self) -> None:
        """Compare refs with the ledger, once a judge is ready: its target and version are part of the comparison."""
        self._scan_at = time.monotonic() + (RECONCILE_S if self._watching else _LOOK_AGAIN_S)
        self._recorder.refresh_checkout()  # a kill or a locked index may have postponed it
        if judges := self._judges.ready():
            self._due_work.scan(judges)
            if self._due_work.is_incomplete:
                self._scan_at = 0.0

    def _end_after_long_fault(self) -> None:
        """End an invocation with `once` that a fault of this machine would keep waiting.

        Raises:
            ConfigurationError: no judge has answered for `LONGEST_FAULT_S`.
        """
        fault = self._judges.pausing_fault() or self._disk.fault()
        if fault is not None and time.monotonic() - self._last_answer_at > LONGEST_FAULT_S:
            raise ConfigurationError(f"this machine lets no judge work: {fault}", remedy="fix it, then restart")

    # --- handing out and taking in ---

    def _dispatch(self) -> None:
        """Hand out work to every free judge."""
        if self._due_work.waits_for_room:
            self._scan_at = 0.0
        if self._disk.fault() is not None:
            return
        for judge in self._judges:
            while len(self._queue) and judge.state == "idle" and not self._recorder.unwritten and self._give(judge):
                pass
            is_free = judge.state == "idle" and not self._recorder.unwritten
            if is_free and all(job.key.target != judge.target for job in self._queue.waiting()):
                self._profiles.give(judge)

    def _give(self, judge: JudgeClient) -> bool:
        """Take one job and hand it out or decide it; return False if there is none for this judge."""
        ready = judge.ready
        job = self._queue.take(ready.target, self._allowed(ready)) if ready else None
        if ready is None or job is None:
            return False
        failpoint("daemon.after_take")
        try:
            if self._after_entry.index_is_behind:  # candidates with a new entry would be measured again
                self._due_work.refresh()
                self._after_entry.index_is_behind = False
            plan = self._planner.plan(job, self._repo.tip(self._config.coordination_branch), ready)
        except (HarnessError, OSError):
            self._queue.put_back(job)
            raise
        if plan is None:  # the next scan of the refs queues the candidate again, if the problem can be judged
            self._queue.finish(job)
            self._due_work.forget()
            self._scan_at = 0.0
        elif isinstance(plan, Decided) and plan.of_baseline:
            self._queue.put_back(job)
            self._recorder.enter(plan.draft, self._after_entry.baseline_entered)
        elif isinstance(plan, Decided):
            self._recorder.enter(plan.draft, lambda entry: self._after_entry.judged(job, entry))
        else:
            self._ask(judge, Work(job, plan))
        return True

    def _ask(self, judge: JudgeClient, work: Work) -> None:
        self._work[judge.device] = work
        if not work.is_baseline:
            self._metrics.waited(self._queue.waited_s(work.job))
        elif not work.ahead:
            self._queue.put_back(work.job)
        failpoint("daemon.before_dispatch")
        judge.ask(work.ask.request)
        failpoint("daemon.after_dispatch")

    def _measure_ahead(self) -> None:
        """Measure baselines that workers wait for before their first session, on idle judges."""
        for order in self._checks.ordered_baselines():
            measuring = {work.ask.problem.key for work in self._work.values() if work.is_baseline}
            free = (judge for judge in self._judges if judge.state == "idle" and judge.target == order.target)
            judge = next(free, None)
            if judge is None or judge.ready is None or self._recorder.unwritten or order.problem in measuring:
                continue
            problem = self._checks.problem_of(order)
            if problem is None:
                continue
            self._due_work.refresh()
            work = self._planner.plan_ahead(problem, order.worker, judge.ready)
            if not isinstance(work, Work):
                self._checks.reply(order.id, CheckReply(error=work))
            elif not self._postponed.waits(work.identity):
                self._ask(judge, work)

    def _allowed(self, ready: JudgeReady) -> Callable[[Job], bool]:
        """Return the test of whether a job may be handed out: within the limit, not while its baseline is measured."""
        measuring = {work.ask.problem.key for work in self._work.values() if work.is_baseline}
        within_limit = self._remaining() > 0

        def allowed(job: Job) -> bool:
            if job.key.judge != ready.environment.judge or job.key.problem in measuring:
                return False
            if self._postponed.waits(job_identity(job)) or self._postponed.waits(baseline_identity(job.key)):
                return False
            return job.kind == "confirmation" or within_limit

        return allowed

    def _receive_notice(self, notice: JudgeNotice) -> None:
        judge = self._judges.of(notice.device)
        if judge is None:
            return  # the host has left the cluster
        event = judge.handle(notice)
        if isinstance(event, JudgeReady):
            self._judges.became_ready(judge.device, event)
            self._status.remove_messages(_judge_subject(judge))
            self._scan_at = 0.0
        elif isinstance(event, RequestAnswered) and event.request.kind == "profile":
            self._profiles.pass_on(judge.device, event)
        elif isinstance(event, RequestAnswered):
            self._record_answer(self._work.pop(judge.device), event)
        elif isinstance(event, CheckAnswered):
            self._checks.pass_on(event)
        elif isinstance(event, JudgeLost):
            self._profiles.lost(judge.device)
            self._checks.lost(event.checks)
            self._lost(judge, self._work.pop(judge.device, None), event)

    def _record_answer(self, work: Work, request_answered: RequestAnswered) -> None:
        failpoint("daemon.after_answer")
        answer, job, run = request_answered.answer, work.job, self._config.run
        self._postponed.count_answer(work.identity)
        self._last_answer_at = time.monotonic()
        if answer.environment.judge != job.key.judge:
            self._lost_work.put_back(
                work, Loss(cause="ended", reason="the judge's answer has another version than its start")
            )
        elif work.is_baseline:
            if answer.verdict is not Verdict.PASSED and self._lost_work.baseline_failed(work, answer):
                return
            self._recorder.enter(baseline_draft(run, job.key, answer), self._after_entry.baseline_entered)
        elif (judged := self._planner.draft(work, answer)) is None:
            self._lost_work.put_back(
                work, Loss(cause="ended", reason="the judge repeated a measurement that is missing")
            )
        else:
            self._recorder.enter(judged, lambda entry: self._after_entry.judged(job, entry))

    def _lost(self, judge: JudgeClient, work: Work | None, lost: JudgeLost) -> None:
        """Count a loss against the measurement. The job waits for the judge's next process, or for its verdict.

        Raises:
            ConfigurationError: the judge has another protocol version, or every judge is given up.
        """
        self._status.add_message(f"{lost.reason}; see {judge.log_file}", subject=_judge_subject(judge))
        if lost.cause == "protocol":
            raise ConfigurationError(lost.reason, where=str(judge.log_file), remedy=lost.fix)
        if work is not None:
            self._lost_work.judge_lost(work, lost)
        if not self._judges.must_be_given_up(judge):
            return
        target = self._judges.give_up(judge)
        if target is not None:  # jobs that only this judge could take leave the queue
            self._queue.drop(lambda job: job.key.target == target)
            self._due_work.forget()
        times = f"it failed {judge.failed_starts} times in a row and"
        failed = f"{times} did not become ready again" if judge.became_ready else f"{times} never became ready"
        self._status.add_message(f"the judge of {judge.device} is given up: {failed}", subject=_judge_subject(judge))
        if self._judges.are_given_up:
            raise ConfigurationError(
                f"{lost.reason}: {failed}", where=str(judge.log_file), remedy="see that file, and `harness doctor`"
            )

    # --- after an entry ---

    def _follow_up(self) -> None:
        """Queue and record the due steps after the last entries; after a failure, the next scan does it."""
        while self._after_entry.is_due:
            try:
                self._due_work.follow_up(self._after_entry.take_due(), self._judges.ready())
            except (HarnessError, OSError) as error:
                logger.warning("the steps after an entry failed: %s", error)
                self._scan_at = min(self._scan_at, time.monotonic() + _LOOK_AGAIN_S)

    # --- limits and reports ---

    def _remaining(self) -> float:
        """Return the number of evaluations that may still be handed out."""
        if self._max_evaluations is None:
            return float("inf")
        return self._max_evaluations - self._after_entry.evaluations_done - len(self._queue.in_flight("evaluation"))

    def _limit_reached(self) -> bool:
        """Return whether the evaluations of the limit and their confirmations are entered."""
        if self._max_evaluations is None or self._after_entry.evaluations_done < self._max_evaluations:
            return False
        return not (self._recorder.unwritten or self._work or any(self._queue.waiting("confirmation")))

    def _is_idle(self) -> bool:
        """Return whether no job may be handed out and no work is in progress."""
        if self._work or self._recorder.unwritten or self._after_entry.is_due or not self._judges.are_idle:
            return False
        remaining = len(self._queue) or self._due_work.waits_for_room or self._due_work.is_incomplete
        return self._limit_reached() or not remaining

    def _report(self, *, force: bool = False) -> None:
        while self._ledger.recovered:
            self._status.add_message(self._ledger.recovered.pop(0))
        workers = {device: work.job.worker for device, work in self._work.items()}
        status = DaemonStatus(
            queued=len(self._queue),
            judges=tuple(judge_status(judge, workers.get(judge.device)) for judge in self._judges),
            hosts=self._judges.hosts(),
            evaluations_done=self._after_entry.evaluations_done,
            limit_reached=self._limit_reached(),
            paused=self._judges.pausing_fault() or self._disk.fault(),
        )
        self._metrics.status = self._status.write(status, force=force) or self._metrics.status
        self._metrics.disk_free_bytes = self._disk.free_bytes
        self._metrics.entries = self._recorder.entered
        self._metrics.ledger_commits, self._metrics.ledger_commit_s = self._ledger.commits, self._ledger.commit_s
