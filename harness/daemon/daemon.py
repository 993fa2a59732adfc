"""The daemon: sees candidates, has them judged, enters the outcomes. One loop in one thread owns all of its state.

Everything it holds in memory can be derived again from git and the ledger, so it may be killed at any instant. Other
threads (the watcher of refs, one reader a judge) only put news into its inbox; one commits the ledger (`Recorder`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from harness.daemon.after_entry import AfterEntry
from harness.daemon.attempts import Attempts, Loss
from harness.daemon.check_orders import CheckOrders
from harness.daemon.device_judges import DeviceJudges
from harness.daemon.disk_watch import DiskWatch
from harness.daemon.dispatch import (
    Decided,
    JobPlanner,
    Outdated,
    Work,
    baseline_identity_of,
    job_identity,
)
from harness.daemon.drafts import baseline_draft, judged_draft
from harness.daemon.due_work import DueWork
from harness.daemon.lost_work import LostWork
from harness.daemon.metrics import DaemonMetrics
from harness.daemon.postponed import PostponedWork
from harness.daemon.profiles import Profiles
from harness.daemon.queue import EvaluationQueue, Job
from harness.daemon.recorder import Recorder
from harness.daemon.snapshots import Snapshots
from harness.daemon.status_writer import StatusWriter
from harness.errors import ConfigurationError, HarnessError, LedgerError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.config import Config
from harness.model.judging import JudgeReady
from harness.model.verdict import Verdict
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import RefWatch
from harness.workspace.judge_client import (
    CheckAnswered,
    JudgeClient,
    JudgeLost,
    JudgeNotice,
    RequestAnswered,
)

logger = logging.getLogger(__name__)

RECONCILE_S = 30.0
"""How often refs and ledger are compared without a reason."""
_LOOK_AGAIN_S = 2.0
"""After something refused (the disk, git, the index), and where the kernel gives no watches."""
_LONGEST_WAIT_S = 0.25
"""A stop is seen within so long."""
LONGEST_FAULT_S = 300.0
"""With `once`, the daemon ends when a fault of this machine has let no judge answer for so long."""
_REFS_MOVED = "refs"

_Inbox = queue.SimpleQueue[JudgeNotice | str]


class Daemon:
    """The state of one invocation. All methods are for one thread."""

    def __init__(
        self,
        workspace: Workspace,
        config: Config,
        repo: Repo,
        ledger: Ledger,
        index: Index,
        *,
        devices: Sequence[str],
        max_evaluations: int | None = None,
        evaluations_done: int = 0,
        metrics: DaemonMetrics | None = None,
    ) -> None:
        self._workspace, self._config, self._repo, self._ledger = workspace, config, repo, ledger
        self._max_evaluations = max_evaluations
        self._metrics = metrics or DaemonMetrics()
        self._disk = DiskWatch((workspace.state, workspace.derived))
        self._inbox: _Inbox = queue.SimpleQueue()
        self._queue = EvaluationQueue()
        self._status = StatusWriter(workspace)
        self._recorder = Recorder(workspace, ledger, self._status)
        self._snapshots = Snapshots(workspace, repo, data_root_of(workspace, config))
        self._attempts = Attempts(workspace.state / "attempts")
        self._postponed = PostponedWork()
        self._lost_work = LostWork(self._queue, self._attempts, self._postponed)
        self._planner = JobPlanner(config, self._snapshots, index, self._attempts)
        self._profiles = Profiles(workspace, self._snapshots, lambda: repo.tip(config.coordination_branch))
        self._after_entry = AfterEntry(self._recorder, self._queue, self._attempts, self._note_entry, evaluations_done)
        record_champion = self._after_entry.record_champion
        self._due_work = DueWork(config, repo, index, self._snapshots, self._queue, self._status, record_champion)
        self._watcher = RefWatch(workspace.git_common_dir, lambda: self._inbox.put(_REFS_MOVED))
        self._watching = False
        self._judges = DeviceJudges(workspace, config, devices, self._inbox.put)
        self._checks = CheckOrders(workspace, config, repo, self._snapshots)
        self._work: dict[str, Work] = {}
        self._scan_at = 0.0
        self._dispatch_at = 0.0
        self._answered_at = time.monotonic()
        self._recoveries_said = 0

    # --- the loop ---

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Work until told to stop, or with `once` until nothing is left to do; then commit the ledger."""
        self._start()
        while not stop.is_set():
            self._hear()
            self._judges.tick()
            self._recorder.retry()
            self._follow_up()
            if time.monotonic() >= self._scan_at:
                self._attempt(self._scan, "comparing refs with the ledger")
                self._report()  # what was found is seen before it is handed out, which takes longer
            if time.monotonic() >= self._dispatch_at:
                self._attempt(self._dispatch, "handing out work")
            self._attempt(lambda: self._checks.hand_out(self._judges), "handing out checks")
            self._attempt(self._measure_ahead, "measuring baselines ahead")
            self._follow_up()
            self._recorder.flush()
            self._report()
            if once:
                self._refuse_to_wait_for_ever()
                if self._is_idle() and self._is_idle_still():
                    break
        self._finish()

    def close(self) -> None:
        """End the judges, at once and all together, the watcher, and a commit of the ledger that is under way."""
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
            self._status.say(
                f"the kernel gives no watches on refs ({error}): commits are looked for every {_LOOK_AGAIN_S:.0f} s. "
                "More: `sysctl fs.inotify.max_user_watches fs.inotify.max_user_instances`"
            )
        self._judges.start()

    def _finish(self) -> None:
        """Nothing half: what is judged and not entered is entered now, or said to be judged again."""
        self.close()
        self._recorder.retry(force=True)
        self._follow_up()
        self._report(force=True)
        failpoint("daemon.before_last_flush")
        self._recorder.flush(force=True)
        if self._recorder.held:
            raise LedgerError(
                f"{self._recorder.held} answers of the judge could not be entered and are given up; their candidates "
                "will be judged again",
                where=str(self._workspace.spool),
                remedy="see the messages above for what kept the ledger from being written",
            )

    def _hear(self) -> None:
        """Wait for news, not longer than until something is due, and act on all there is."""
        try:
            news: JudgeNotice | str | None = self._inbox.get(timeout=max(self._next_due() - time.monotonic(), 0.0))
        except queue.Empty:
            return
        while news is not None:
            if isinstance(news, str):
                self._scan_at = 0.0
            else:
                self._hear_judge(news)
            try:
                news = self._inbox.get_nowait()
            except queue.Empty:
                news = None

    def _next_due(self) -> float:
        now = time.monotonic()
        due = [self._scan_at, now + _LONGEST_WAIT_S, *self._judges.next_ticks()]
        if (retry := self._recorder.next_retry()) is not None:
            due.append(retry)
        return max(min(due), now)

    def _attempt(self, step: Callable[[], None], what: str) -> None:
        """A step that the repository, the index or the disk may refuse: said, and tried again."""
        failed = f"{what} failed"
        try:
            step()
        except (HarnessError, OSError) as error:
            self._status.trouble(failed, error)
            self._scan_at = max(self._scan_at, time.monotonic() + _LOOK_AGAIN_S)
            self._dispatch_at = time.monotonic() + _LOOK_AGAIN_S
        else:
            self._status.over(failed)

    def _scan(self) -> None:
        """Compare refs with the ledger, once it is known which targets and judge versions candidates are judged for."""
        self._scan_at = time.monotonic() + (RECONCILE_S if self._watching else _LOOK_AGAIN_S)
        self._recorder.refresh_checkout()  # what a kill or a busy checkout put off
        if judges := self._judges.ready():
            self._due_work.scan(judges)
            if self._due_work.is_incomplete:
                self._scan_at = 0.0

    def _refuse_to_wait_for_ever(self) -> None:
        """End an invocation that is to end by itself, and cannot because of a fault of this machine.

        Raises:
            ConfigurationError: no judge has answered anything for long.
        """
        fault = self._judges.pausing_fault() or self._disk.fault()
        if fault is not None and time.monotonic() - self._answered_at > LONGEST_FAULT_S:
            raise ConfigurationError(f"this machine lets no judge work: {fault}", remedy="fix it, then start again")

    # --- handing out and taking in ---

    def _dispatch(self) -> None:
        """Give every free judge something to do."""
        if self._due_work.waits_for_room:
            self._scan_at = 0.0
        if self._disk.fault() is not None:
            return
        for judge in self._judges:
            while len(self._queue) and judge.state == "idle" and not self._recorder.held and self._give(judge):
                pass
            if judge.state == "idle" and not self._recorder.held and not self._waits_for(judge):
                self._profiles.give(judge)

    def _waits_for(self, judge: JudgeClient) -> bool:
        """Return true if a candidate waits that this judge may be handed soon."""
        target = judge.ready.target if judge.ready is not None else None
        return any(job.key.target == target for job in self._queue.waiting())

    def _give(self, judge: JudgeClient) -> bool:
        """Take one job and do something about it; False when there is none for this judge."""
        ready = judge.ready
        job = self._queue.take(ready.target, self._allowed(ready)) if ready else None
        if ready is None or job is None:
            return False
        failpoint("daemon.after_take")
        try:
            if self._due_work.is_behind:  # what has an entry would be measured again
                self._due_work.refresh()
            plan = self._planner.plan(job, self._repo.tip(self._config.coordination_branch), ready)
        except (HarnessError, OSError):
            self._queue.put_back(job)
            raise
        if isinstance(plan, Outdated):
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
        """Measure baselines that workers wait for before their first session, on judges that have nothing to do."""
        for order in self._checks.wanted_baselines():
            measuring = {work.ask.problem.key for work in self._work.values() if work.is_baseline}
            free = (judge for judge in self._judges if judge.state == "idle" and judge.ready is not None)
            judge = next((each for each in free if each.ready and each.ready.target == order.target), None)
            if judge is None or judge.ready is None or self._recorder.held or order.problem in measuring:
                continue
            problem = self._snapshots.problem(self._repo.tip(self._config.coordination_branch), order.problem)
            self._due_work.refresh()
            work = self._planner.plan_ahead(problem, order.worker, judge.ready)
            if not isinstance(work, Work):
                self._checks.baseline_is_known(order, work)
            elif not self._postponed.waits(work.identity):
                self._ask(judge, work)

    def _allowed(self, ready: JudgeReady) -> Callable[[Job], bool]:
        """Which jobs may be handed out now: within the limit, and not waiting for a baseline that is being measured."""
        measuring = {work.ask.problem.key for work in self._work.values() if work.is_baseline}
        within_limit = self._remaining() > 0

        def allowed(job: Job) -> bool:
            if job.key.judge != ready.environment.judge or job.key.problem in measuring:
                return False
            if self._postponed.waits(job_identity(job)) or self._postponed.waits(baseline_identity_of(job)):
                return False
            return job.kind == "confirmation" or within_limit

        return allowed

    def _hear_judge(self, news: JudgeNotice) -> None:
        judge = self._judges.of(news.device)
        heard = judge.handle(news)
        if isinstance(heard, JudgeReady):
            self._judges.became_ready(judge.device, heard)
            self._status.over(f"the judge of {judge.device} ")
            self._scan_at = 0.0
        elif isinstance(heard, RequestAnswered) and heard.request.kind == "profile":
            self._profiles.answered(judge.device, heard)
        elif isinstance(heard, RequestAnswered):
            self._answered(self._work.pop(judge.device), heard)
        elif isinstance(heard, CheckAnswered):
            self._checks.answered(heard)
        elif isinstance(heard, JudgeLost):
            self._profiles.lost(judge.device)
            self._checks.lost(heard.checks)
            self._lost(judge, self._work.pop(judge.device, None), heard)

    def _answered(self, work: Work, answered: RequestAnswered) -> None:
        failpoint("daemon.after_answer")
        answer, job, run = answered.answer, work.job, self._config.run
        self._postponed.answered(work.identity)
        self._answered_at = time.monotonic()
        if answer.environment.judge != job.key.judge:
            self._lost_work.put_back(
                work, Loss(how="ended", reason="the judge answered as another version than it began as")
            )
        elif work.is_baseline:
            if answer.verdict is not Verdict.PASSED and self._lost_work.baseline_failed(work, answer):
                return
            draft = baseline_draft(run, job.key.problem, answered.request.problem_digest, job.key.target, answer)
            self._recorder.enter(draft, self._after_entry.baseline_entered)
        else:
            draft = judged_draft(run, job, work.ask.language, answer, work.ask.baseline)
            self._recorder.enter(draft, lambda entry: self._after_entry.judged(job, entry))

    def _lost(self, judge: JudgeClient, work: Work | None, lost: JudgeLost) -> None:
        """Count a loss against what was being judged. The job waits for the judge's next process, or for its verdict.

        Raises:
            ConfigurationError: the judge speaks another protocol, or every judge is given up.
        """
        self._status.say(f"{lost.reason}; see {judge.log_file}")
        if lost.cause == "protocol":
            raise ConfigurationError(lost.reason, where=str(judge.log_file), remedy=lost.fix)
        if work is not None:
            self._lost_work.judge_lost(work, lost)
        if not self._judges.must_be_given_up(judge):
            return
        self._give_up(judge)
        times = f"it failed {judge.failed_starts} times in a row and"
        failed = f"{times} did not become ready again" if judge.became_ready else f"{times} never became ready"
        self._status.say(f"the judge of {judge.device} is given up: {failed}")
        if self._judges.are_given_up:
            raise ConfigurationError(
                f"{lost.reason}: {failed}", where=str(judge.log_file), remedy="see that file, and `harness doctor`"
            )

    def _give_up(self, judge: JudgeClient) -> None:
        """Go on without a judge. What only it could judge leaves the queue: nothing would take it."""
        target = self._judges.give_up(judge)
        if target is not None:
            self._queue.drop(lambda job: job.key.target == target)
            self._due_work.forget()

    # --- after an entry ---

    def _note_entry(self) -> None:
        self._due_work.is_behind = True

    def _follow_up(self) -> None:
        """Queue and record what is due after the last entries; when that fails, the next scan does it."""
        while self._after_entry.is_due:
            try:
                self._due_work.follow_up(self._after_entry.take_due(), self._judges.ready())
            except (HarnessError, OSError) as error:
                logger.warning("seeing what follows from an entry failed: %s", error)
                self._scan_at = min(self._scan_at, time.monotonic() + _LOOK_AGAIN_S)

    # --- limits and reports ---

    def _remaining(self) -> float:
        """Evaluations that may still be handed out."""
        if self._max_evaluations is None:
            return float("inf")
        return self._max_evaluations - self._after_entry.evaluations_done - len(self._queue.in_flight("evaluation"))

    def _limit_reached(self) -> bool:
        """The limit's evaluations are entered, and so are the confirmations that they called for."""
        if self._max_evaluations is None or self._after_entry.evaluations_done < self._max_evaluations:
            return False
        return not (self._recorder.held or self._work or any(self._queue.waiting("confirmation")))

    def _is_idle(self) -> bool:
        """Nothing waits that may be handed out, and nothing is on its way."""
        if self._work or self._recorder.held or self._after_entry.is_due or not self._judges.are_idle:
            return False
        left = len(self._queue) or self._due_work.waits_for_room or self._due_work.is_incomplete
        return self._limit_reached() or not left

    def _is_idle_still(self) -> bool:
        """Look once more, at everything."""
        self._attempt(self._scan, "comparing refs with the ledger")
        return self._is_idle()

    def _report(self, *, force: bool = False) -> None:
        for sentence in self._ledger.recovered[self._recoveries_said :]:
            self._status.say(sentence)
        self._recoveries_said = len(self._ledger.recovered)
        written = self._status.write(
            self._queue,
            list(self._judges),
            {device: work.job.worker for device, work in self._work.items()},
            evaluations_done=self._after_entry.evaluations_done,
            limit_reached=self._limit_reached(),
            fault=self._disk.fault(),
            force=force,
        )
        self._metrics.status = written or self._metrics.status
        self._metrics.disk_free_bytes = self._disk.free_bytes
        self._metrics.entries = self._recorder.entered
        self._metrics.ledger_commits, self._metrics.ledger_commit_s = self._ledger.commits, self._ledger.commit_s
