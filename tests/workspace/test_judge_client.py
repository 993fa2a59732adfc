"""The client of judge processes, with real processes: none outlives it, and every loss is reported."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model.judging import JUDGE_PROTOCOL, PROTOCOL_FIX, JudgeProgress, JudgeReady, protocol_mismatch
from harness.model.verdict import Verdict
from harness.workspace import judge_client
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import (
    CheckAnswered,
    JudgeClient,
    JudgeLost,
    RequestAnswered,
    deadline_s,
    judge_command,
)
from harness.workspace.judge_endpoint import JudgeNotice
from tests.waiting import DEADLINE_S, wait_until
from tests.workspace.conftest import group_of, request_for

ClientEvent = JudgeReady | JudgeProgress | RequestAnswered | CheckAnswered | JudgeLost


class Client:
    """A client with its inbox, as in the daemon."""

    def __init__(self, tmp_path: Path, *, command: list[str] | None = None) -> None:
        self.inbox: queue.SimpleQueue[JudgeNotice] = queue.SimpleQueue()
        workspace = Workspace(tmp_path)
        self.log = workspace.logs / "judge-cpu.log"
        self.judge = JudgeClient(
            "cpu",
            command or judge_command("cpu", workspace.cache, "bubblewrap"),
            self.log,
            self.inbox.put,
        )

    def next_event(self, deadline: float = DEADLINE_S) -> ClientEvent:
        """Return the next event that the client derives from its notices."""
        until = time.monotonic() + deadline
        while time.monotonic() < until:
            self.judge.tick()
            try:
                notice = self.inbox.get(timeout=0.02)
            except queue.Empty:
                continue
            event = self.judge.handle(notice)
            if event is not None and not isinstance(event, JudgeProgress):
                return event
        raise TimeoutError("the judge reported nothing")

    def ready(self) -> None:
        assert isinstance(self.next_event(), JudgeReady)


@pytest.fixture
def client(tmp_path: Path, stub_command: Path) -> Iterator[Client]:
    del stub_command
    threads = set(threading.enumerate())
    client = Client(tmp_path)
    yield client
    client.judge.close()
    assert set(threading.enumerate()) <= threads, "a thread outlived the client"


def test_a_request_gets_its_answer(client: Client, problem: Path) -> None:
    client.ready()
    assert client.judge.ready is not None
    assert client.judge.ready.target == "cpu"
    client.judge.ask(request_for(problem, "// stub: speedup=1.5"))
    loss = client.next_event()
    assert isinstance(loss, RequestAnswered)
    assert loss.answer.verdict is Verdict.PASSED
    assert [row.uuid for row in loss.answer.workloads] == ["u1", "u2"]
    assert client.judge.state == "idle"


def test_a_killed_judge_is_restarted_after_a_growing_pause(client: Client, problem: Path) -> None:
    client.ready()
    for number in ("1", "2"):
        request = request_for(problem, "// stub: kill", number=number)
        client.judge.ask(request)
        loss = client.next_event()
        assert isinstance(loss, JudgeLost)
        assert loss.request == request
        assert loss.cause == "ended"
        assert "SIGKILL" in loss.reason
        assert client.judge.state == "waiting"
        assert client.judge.failures == int(number)
        client.ready()
    client.judge.ask(request_for(problem, "// stub: speedup=1.1", number="3"))
    assert isinstance(client.next_event(), RequestAnswered)
    assert client.judge.failures == 0


def test_a_judges_last_output_is_in_the_reason_and_all_output_in_the_log(client: Client, problem: Path) -> None:
    client.ready()
    client.judge.ask(request_for(problem, "// stub: exit=3"))
    loss = client.next_event()
    assert isinstance(loss, JudgeLost)
    assert "exit code 3" in loss.reason
    assert "stub judge: asked to give up" in loss.reason
    assert "asked to give up" in client.log.read_text()


def test_a_judge_that_hangs_is_ended_at_its_deadline(client: Client, problem: Path) -> None:
    client.ready()
    pid = client.judge.pid
    assert pid is not None
    client.judge.ask(request_for(problem, "// stub: hang"), within_s=0.3)
    loss = client.next_event()
    assert isinstance(loss, JudgeLost)
    assert loss.cause == "deadline"
    assert "did not answer within 0 s" in loss.reason
    wait_until(lambda: not group_of(pid), event="the end of the judge's process group")


@pytest.mark.parametrize("protocol", ["1", "3"])
def test_a_judge_of_another_protocol_is_refused_with_the_fix(
    client: Client, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("STUB_JUDGE_PROTOCOL", protocol)
    loss = client.next_event()
    assert isinstance(loss, JudgeLost)
    assert loss.cause == "protocol"
    assert loss.reason == (f"the judge of cpu uses judge protocol {protocol}, and this process uses judge protocol 2")
    assert loss.fix == PROTOCOL_FIX
    assert client.judge.ready is None


def test_a_judge_that_names_no_protocol_is_refused(client: Client) -> None:
    ready = {"event": "ready", "target": "cpu", "device": {"name": "d", "id": "d"}}
    expected = "uses judge protocol 0, and this process uses judge protocol 2"
    assert protocol_mismatch(json.dumps(ready), "ready") == expected
    assert protocol_mismatch(json.dumps({"event": "answer"}), "ready", "answer") == expected
    assert protocol_mismatch(json.dumps({**ready, "protocol": JUDGE_PROTOCOL}), "ready") is None
    assert protocol_mismatch(json.dumps({**ready, "protocol": 7, "new": 1}), "ready") is not None
    assert protocol_mismatch(json.dumps({"event": "progress", "protocol": 7}), "ready") is None
    assert protocol_mismatch("no message", "ready") is None
    client.ready()


def test_a_request_of_another_protocol_is_refused_by_the_judge(client: Client, problem: Path) -> None:
    client.ready()
    client.judge.ask(request_for(problem).model_copy(update={"protocol": 1}))
    loss = client.next_event()
    assert isinstance(loss, JudgeLost)
    assert loss.error == "the client uses protocol 1, not 2\n  the fix"
    assert "(it wrote: the client uses protocol 1, not 2; fix: the fix)" in loss.reason


def test_a_line_that_is_not_the_protocol_ends_the_judge(client: Client, problem: Path) -> None:
    client.ready()
    client.judge.ask(request_for(problem, "// stub: garbage\n// stub: hang"))
    loss = client.next_event()
    assert isinstance(loss, JudgeLost)
    assert "not the protocol" in loss.reason


def test_the_children_of_a_killed_judge_are_ended_with_it(client: Client) -> None:
    client.ready()
    pid = client.judge.pid
    assert pid is not None
    assert len(group_of(pid)) == 2
    os.kill(pid, signal.SIGKILL)
    assert isinstance(client.next_event(), JudgeLost)
    wait_until(lambda: not group_of(pid), event="the end of the judge's children")


def test_closing_ends_the_whole_group_also_while_it_judges(client: Client, problem: Path) -> None:
    client.ready()
    pid = client.judge.pid
    assert pid is not None
    client.judge.ask(request_for(problem, "// stub: hang"))
    client.judge.close()
    assert client.judge.pid is None
    wait_until(lambda: not group_of(pid), event="the end of the judge's group")


def test_a_judge_that_never_gets_ready_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "START_S", 0.3)
    client = Client(tmp_path, command=[sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        loss = client.next_event()
        assert isinstance(loss, JudgeLost)
        assert loss.request is None
        assert "was not ready within" in loss.reason
    finally:
        client.judge.close()


def test_a_judge_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    client = Client(tmp_path, command=[sys.executable, "-c", "raise SystemExit('bubblewrap is missing')"])
    try:
        loss = client.next_event()
        assert isinstance(loss, JudgeLost)
        assert "exit code 1" in loss.reason
        assert "bubblewrap is missing" in loss.reason
    finally:
        client.judge.close()


def test_a_judge_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('deaf', file=sys.stderr); time.sleep(60)"
    )
    client = Client(tmp_path, command=[sys.executable, "-uc", program])
    client.judge.start()
    pid = client.judge.pid
    assert pid is not None
    wait_until(lambda: "deaf" in client.log.read_text(), event="the judge's handler")
    client.judge.close(grace_s=0.3)
    wait_until(lambda: not group_of(pid), event="the end of the judge")


def test_one_client_serves_many_requests_in_one_process(client: Client, problem: Path, stub_command: Path) -> None:
    client.ready()
    pid = client.judge.pid
    for number in range(5):
        client.judge.ask(request_for(problem, f"// {number}", number=str(number)))
        assert isinstance(client.next_event(), RequestAnswered)
    assert client.judge.pid == pid
    assert len([json.loads(line) for line in stub_command.read_text().splitlines()]) == 5


def test_a_big_log_is_put_aside(client: Client) -> None:
    client.log.parent.mkdir(parents=True)
    client.log.write_bytes(b"x" * 5_000_001)
    client.ready()
    assert client.log.with_suffix(".log.1").stat().st_size == 5_000_001
    assert client.log.stat().st_size < 1000


def test_a_baseline_may_take_longer_than_an_evaluation(problem: Path) -> None:
    request = request_for(problem)
    baseline = request.model_copy(update={"kind": "baseline"})
    extended = baseline.model_copy(update={"more_variants": ("library",)})
    assert deadline_s(extended) > deadline_s(baseline) > deadline_s(request) > request.max_judge_s


def test_the_judge_of_a_device_is_the_packages_own(tmp_path: Path) -> None:
    command = judge_command("cuda:1", Workspace(tmp_path).cache, "bubblewrap")
    assert command[:5] == [sys.executable, "-m", "harness.judge", "--device", "cuda:1"]
    assert command[5:] == ["--cache", str(tmp_path / ".harness/cache"), "--sandbox", "bubblewrap"]
