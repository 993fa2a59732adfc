"""Checks that workers request: one at a time and at a limited rate for each worker, each with a reply."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.daemon import check_orders
from harness.daemon.check_orders import CheckOrders
from harness.daemon.snapshots import Snapshots
from harness.git.repo import Repo
from harness.model.config import Config
from harness.model.judging import (
    CheckAnswer,
    CheckOrder,
    CheckReply,
    CheckRequest,
    DeviceRecord,
    EnvironmentRecord,
    JudgeReady,
)
from harness.model.verdict import EntryKind, Verdict
from harness.workspace import order_files
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import CheckAnswered, JudgeClient
from harness.workspace.order_files import OrderQueue, order_check
from tests.site import make_site, site_in
from tests.waiting import wait_until

ENVIRONMENT = EnvironmentRecord(harness="0", judge="sha256:0", python="3", torch="2", sandbox="none")


class RecordingClient(JudgeClient):
    """A client of a ready judge that only records its requests."""

    def __init__(self, tmp_path: Path, target: str = "cpu") -> None:
        super().__init__(target, ["true"], tmp_path / "log", lambda _: None)
        self.ready = JudgeReady(target=target, device=DeviceRecord(name="d", id="d"), environment=ENVIRONMENT)

    def ask_check(self, request: CheckRequest) -> None:
        self.checks[request.id] = request


def baseline_order(worker: str, problem: str = "t/one") -> CheckOrder:
    return CheckOrder(worker=worker, problem=problem, target="cpu", kind="baseline")


class Workers:
    """Threads that wait for replies in place of workers."""

    def __init__(self, workspace: Workspace, solution: Path) -> None:
        self.workspace, self.solution = workspace, solution
        self.stop = threading.Event()
        self.replies: dict[str, CheckReply | None] = {}
        self.threads: list[threading.Thread] = []

    def ask(self, name: str, worker: str, problem: str = "t/one") -> None:
        def wait() -> None:
            order = CheckOrder(worker=worker, problem=problem, target="cpu")
            self.replies[name] = order_check(self.workspace, order, self.solution, stop=self.stop, within_s=120)

        thread = threading.Thread(target=wait)
        before = len(OrderQueue(self.workspace, CheckOrder).waiting())
        thread.start()
        self.threads.append(thread)
        wait_until(lambda: len(OrderQueue(self.workspace, CheckOrder).waiting()) > before, event="the order")

    def reply(self, name: str) -> CheckReply:
        wait_until(lambda: name in self.replies, event="the reply")
        reply = self.replies[name]
        assert reply is not None
        return reply


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    make_site(tmp_path / "site", tunable=True)
    return Workspace(tmp_path / "site")


@pytest.fixture
def orders(workspace: Workspace, repo: Repo) -> CheckOrders:
    return CheckOrders(workspace, Config(), repo, Snapshots(workspace, repo))


@pytest.fixture
def workers(workspace: Workspace) -> Iterator[Workers]:
    workers = Workers(workspace, workspace.root / "problems/t/one/solutions/cpu")
    yield workers
    workers.stop.set()
    for thread in workers.threads:
        thread.join(60)


def answer(orders: CheckOrders, judge: JudgeClient) -> None:
    """Answer the judge's request."""
    for request in list(judge.checks.values()):
        del judge.checks[request.id]
        orders.pass_on(CheckAnswered(request, CheckAnswer(id=request.id, verdict=Verdict.PASSED)))


def test_an_order_waits_for_a_judge_of_its_target_and_has_its_answer(
    orders: CheckOrders, workers: Workers, tmp_path: Path
) -> None:
    judge, other_judge = RecordingClient(tmp_path), RecordingClient(tmp_path, "h200")
    workers.ask("first", "w01")
    orders.hand_out([other_judge])
    assert other_judge.checks == {}
    orders.hand_out([other_judge, judge])
    (request,) = judge.checks.values()
    assert (Path(request.solution_dir) / "kernel.cpp").is_file()
    assert (Path(request.problem_dir) / "definition.json").is_file()
    orders.hand_out([judge])
    assert len(judge.checks) == 1, "an order is handed out once"
    answer(orders, judge)
    reply = workers.reply("first")
    assert reply.answer is not None
    assert reply.answer.verdict is Verdict.PASSED
    wait_until(lambda: not list((orders.workspace.derived / "checks").iterdir()), event="the directory's removal")


def test_orders_are_listed_only_after_a_change(
    orders: CheckOrders, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = RecordingClient(tmp_path, "h200")
    workers.ask("first", "w01")
    listings: list[Path] = []
    list_directory = Path.iterdir

    def recording(path: Path) -> Iterator[Path]:
        listings.append(path)
        return list_directory(path)

    monkeypatch.setattr(order_files, "_CLOCK_TICK_NS", -1)
    monkeypatch.setattr(Path, "iterdir", recording)
    for _ in range(10):
        orders.hand_out([judge])
        orders.ordered_baselines()
    directory = orders.workspace.derived / "checks"
    assert listings.count(directory) == 1
    os.utime(directory)
    orders.hand_out([judge])
    assert listings.count(directory) == 2


def test_a_worker_has_one_check_at_a_time_and_waits_for_its_next(
    orders: CheckOrders, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = RecordingClient(tmp_path)
    workers.ask("first", "w01")
    orders.hand_out([judge])
    workers.ask("second", "w01")
    orders.hand_out([judge])
    assert "already has a check in progress" in str(workers.reply("second").error)
    monkeypatch.setattr(check_orders, "EVERY_S", 3600.0)
    answer(orders, judge)
    workers.reply("first")
    workers.ask("third", "w01")
    workers.ask("of another", "w02")
    orders.hand_out([judge])
    assert len(judge.checks) == 1, "another worker does not wait for it"
    answer(orders, judge)
    assert workers.reply("of another").answer is not None
    assert "third" not in workers.replies


def test_a_judge_that_ends_and_a_missing_problem_are_reported(
    orders: CheckOrders, workers: Workers, tmp_path: Path
) -> None:
    judge = RecordingClient(tmp_path)
    workers.ask("unknown", "w01", "t/none")
    orders.hand_out([judge])
    assert "there is no problem t/none" in str(workers.reply("unknown").error)
    workers.ask("lost", "w02")
    orders.hand_out([judge])
    orders.lost(judge.checks.values())
    assert "order the check again" in str(workers.reply("lost").error)


def test_baselines_are_measured_before_there_is_a_candidate(tmp_path: Path) -> None:
    with site_in(tmp_path, tunable=True) as site:
        site.start("daemon")
        reply = order_check(site.workspace, baseline_order("w01"), stop=threading.Event(), within_s=120)
        assert reply == CheckReply()
        (entry,) = site.entries("t/one")
        assert entry.kind is EntryKind.BASELINE
        second_reply = order_check(site.workspace, baseline_order("w02"), stop=threading.Event(), within_s=120)
        assert second_reply == CheckReply(), "measured once"
        assert len(site.entries("t/one")) == 1
        commit = site.submit("w03", "t/one", "stub: speedup=1.5")
        wait_until(lambda: len(site.entries("t/one")) >= 2, event="the evaluation")
        assert [entry.candidate.tree for entry in site.entries("t/one")[1:2] if entry.candidate] == [commit.tree]


def test_an_order_of_baselines_of_a_missing_problem_is_refused(tmp_path: Path) -> None:
    with site_in(tmp_path) as site:
        site.start("daemon")
        reply = order_check(site.workspace, baseline_order("w01", "t/none"), stop=threading.Event(), within_s=120)
        assert reply is not None
        assert "there is no problem t/none" in str(reply.error)
