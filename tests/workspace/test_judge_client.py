"""The client of judge processes, against real processes: none outlives it, every loss is told."""

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

from harness.model.config import Config
from harness.model.judging import JudgeProgress, JudgeReady, JudgeRequest
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import Answered, JudgeClient, Lost, News, deadline_s, expand_devices, judge_command
from tests.waiting import DEADLINE_S, wait_until

Told = JudgeReady | JudgeProgress | Answered | Lost


class Client:
    """A client with its inbox, as the daemon has it."""

    def __init__(self, tmp_path: Path, *, start_within_s: float = 60.0, command: list[str] | None = None) -> None:
        self.inbox: queue.SimpleQueue[News] = queue.SimpleQueue()
        workspace = Workspace(tmp_path)
        self.log = workspace.logs / "judge-cpu.log"
        self.judge = JudgeClient(
            "cpu",
            command or judge_command("cpu", workspace, Config()),
            self.log,
            self.inbox.put,
            start_within_s=start_within_s,
        )

    def told(self, deadline: float = DEADLINE_S) -> Told:
        """The next thing the client makes of its news."""
        until = time.monotonic() + deadline
        while time.monotonic() < until:
            self.judge.tick()
            try:
                news = self.inbox.get(timeout=0.02)
            except queue.Empty:
                continue
            heard = self.judge.hear(news)
            if heard is not None and not isinstance(heard, JudgeProgress):
                return heard
        raise TimeoutError("the judge told nothing")

    def ready(self) -> None:
        assert isinstance(self.told(), JudgeReady)


@pytest.fixture
def client(tmp_path: Path, stub_command: Path) -> Iterator[Client]:
    del stub_command
    threads = set(threading.enumerate())
    made = Client(tmp_path)
    yield made
    made.judge.close()
    assert set(threading.enumerate()) <= threads, "a thread outlived the client"


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    directory = tmp_path / "problem"
    directory.mkdir()
    (directory / "definition.json").write_text("{}")
    (directory / "workload.jsonl").write_text('{"uuid": "u1"}\n{"uuid": "u2"}\n')
    return directory


def request(problem: Path, source: str = "", *, number: str = "1") -> JudgeRequest:
    solution = problem.parent / f"solution{number}"
    solution.mkdir()
    (solution / "kernel.cpp").write_text(source)
    return JudgeRequest(
        id=number,
        kind="evaluation",
        problem="t/p",
        problem_dir=str(problem),
        problem_digest="sha256:0",
        solution_dir=str(solution),
        baseline={"u1": "eager", "u2": "compile"},
    )


def group_of(pid: int) -> list[int]:
    """Processes (not zombies) of a process group."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


def test_a_request_gets_its_answer(client: Client, problem: Path) -> None:
    client.ready()
    assert client.judge.ready is not None
    assert client.judge.ready.target == "cpu"
    client.judge.ask(request(problem, "// stub: speedup=1.5"))
    told = client.told()
    assert isinstance(told, Answered)
    assert told.answer.verdict is Verdict.PASSED
    assert [row.uuid for row in told.answer.workloads] == ["u1", "u2"]
    assert client.judge.state == "idle"


def test_a_judge_that_dies_is_started_again_after_a_growing_pause(client: Client, problem: Path) -> None:
    client.ready()
    for number in ("1", "2"):
        asked = request(problem, "// stub: die", number=number)
        client.judge.ask(asked)
        told = client.told()
        assert isinstance(told, Lost)
        assert told.request == asked
        assert told.how == "ended"
        assert "SIGKILL" in told.reason
        assert client.judge.state == "waiting"
        assert client.judge.failures == int(number)
        client.ready()
    client.judge.ask(request(problem, "// stub: speedup=1.1", number="3"))
    assert isinstance(client.told(), Answered)
    assert client.judge.failures == 0


def test_what_a_judge_said_last_stands_in_the_reason_and_all_of_it_in_the_log(client: Client, problem: Path) -> None:
    client.ready()
    client.judge.ask(request(problem, "// stub: exit=3"))
    told = client.told()
    assert isinstance(told, Lost)
    assert "exit code 3" in told.reason
    assert "stub judge: asked to give up" in told.reason
    assert "asked to give up" in client.log.read_text()


def test_a_judge_that_hangs_is_ended_at_its_deadline(client: Client, problem: Path) -> None:
    client.ready()
    pid = client.judge.pid
    assert pid is not None
    client.judge.ask(request(problem, "// stub: hang"), within_s=0.3)
    told = client.told()
    assert isinstance(told, Lost)
    assert told.how == "deadline"
    assert "did not answer within 0 s" in told.reason
    wait_until(lambda: not group_of(pid), what="the end of the judge's process group")


def test_a_line_that_is_not_the_protocol_ends_the_judge(client: Client, problem: Path) -> None:
    client.ready()
    client.judge.ask(request(problem, "// stub: garbage\n// stub: hang"))
    told = client.told()
    assert isinstance(told, Lost)
    assert "not the protocol" in told.reason


def test_the_children_of_a_judge_that_dies_are_ended_with_it(client: Client) -> None:
    client.ready()
    pid = client.judge.pid
    assert pid is not None
    assert len(group_of(pid)) == 2
    os.kill(pid, signal.SIGKILL)
    assert isinstance(client.told(), Lost)
    wait_until(lambda: not group_of(pid), what="the end of the judge's children")


def test_closing_ends_the_whole_group_also_while_it_judges(client: Client, problem: Path) -> None:
    client.ready()
    pid = client.judge.pid
    assert pid is not None
    client.judge.ask(request(problem, "// stub: hang"))
    client.judge.close()
    assert client.judge.pid is None
    wait_until(lambda: not group_of(pid), what="the end of the judge's group")


def test_a_judge_that_never_gets_ready_is_lost(tmp_path: Path) -> None:
    client = Client(tmp_path, start_within_s=0.3, command=[sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        told = client.told()
        assert isinstance(told, Lost)
        assert told.request is None
        assert "was not ready within" in told.reason
    finally:
        client.judge.close()


def test_a_judge_that_cannot_start_says_why(tmp_path: Path) -> None:
    client = Client(tmp_path, command=[sys.executable, "-c", "raise SystemExit('bubblewrap is missing')"])
    try:
        told = client.told()
        assert isinstance(told, Lost)
        assert "exit code 1" in told.reason
        assert "bubblewrap is missing" in told.reason
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
    wait_until(lambda: "deaf" in client.log.read_text(), what="the judge's handler")
    client.judge.close(grace_s=0.3)
    wait_until(lambda: not group_of(pid), what="the end of the judge")


def test_one_client_serves_many_requests_in_one_process(client: Client, problem: Path, stub_command: Path) -> None:
    client.ready()
    pid = client.judge.pid
    for number in range(5):
        client.judge.ask(request(problem, f"// {number}", number=str(number)))
        assert isinstance(client.told(), Answered)
    assert client.judge.pid == pid
    assert len([json.loads(line) for line in stub_command.read_text().splitlines()]) == 5


def test_a_big_log_is_put_aside(client: Client) -> None:
    client.log.parent.mkdir(parents=True)
    client.log.write_bytes(b"x" * 5_000_001)
    client.ready()
    assert client.log.with_suffix(".log.1").stat().st_size == 5_000_001
    assert client.log.stat().st_size < 1000


def test_devices_are_one_name_per_judge() -> None:
    assert expand_devices(()) == ("cpu",)
    assert expand_devices(("cuda:0,1", "cpu", "cuda:1")) == ("cuda:0", "cuda:1", "cpu")


def test_a_baseline_may_take_longer_than_an_evaluation(problem: Path) -> None:
    asked = request(problem)
    assert deadline_s(asked.model_copy(update={"kind": "baseline"})) > deadline_s(asked) > asked.max_judge_s


def test_the_judge_of_a_device_is_the_packages_own(tmp_path: Path) -> None:
    command = judge_command("cuda:1", Workspace(tmp_path), Config())
    assert command[:5] == [sys.executable, "-m", "harness.judge", "--device", "cuda:1"]
    assert command[5:] == ["--cache", str(tmp_path / ".harness/cache"), "--sandbox", "bubblewrap"]
