"""The judge of a host, without Ray: real judge processes that exchange only text and bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster import judge_host
from harness.cluster.cluster_judges import parcel_of
from harness.cluster.device_actor import blob_places
from harness.cluster.judge_host import JudgeHost
from harness.cluster.messages import HOST_EVENTS, JudgeWrote, RemoteJudgeEnded, SendRequest
from harness.errors import EXIT_HOST_FAULT
from harness.model.judging import JudgeAnswer, JudgeReady
from harness.workspace.judge_endpoint import JudgeMessage, read_notice
from tests.waiting import wait_until
from tests.workspace.conftest import request_for

Event = JudgeWrote | RemoteJudgeEnded


class Head:
    """The head's side of one judge host."""

    def __init__(self, host: JudgeHost) -> None:
        self.host, self.count = host, 0

    def next(self, number: int) -> Event:
        lines = wait_until(lambda: self.host.fetch(number, self.count), event="an event")
        self.count += 1
        return HOST_EVENTS.validate_json(lines[0])

    def next_message(self, number: int) -> JudgeReady | JudgeAnswer:
        """Return the next message of the judge, except for progress."""
        while True:
            event = self.next(number)
            assert isinstance(event, JudgeWrote), event
            notice = read_notice("a/cpu", number, event.line)
            assert isinstance(notice, JudgeMessage)
            if isinstance(notice.event, JudgeReady | JudgeAnswer):
                return notice.event

    def send(self, number: int, problem: Path, source: str = "") -> None:
        """Send a request after the content that the host lacks, as the bridge does."""
        line = request_for(problem, source).model_dump_json()
        parcel = parcel_of(line.encode())
        places = blob_places(parcel, line)
        for sha256 in self.host.missing(parcel.model_dump_json()):
            assert self.host.store(sha256, 0, places[sha256][0].read_bytes(), last=True) == ""
        order = SendRequest(device="a/cpu", number=number, line=line, parcel=parcel)
        self.host.send(order.model_dump_json())


@pytest.fixture
def host(tmp_path: Path, stub_command: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeHost]:
    del stub_command
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    created_host = JudgeHost("a/cpu", "cpu", "gpu-a")
    yield created_host
    created_host.close()


def test_a_candidate_is_judged_from_its_content_and_the_answer_names_the_host(host: JudgeHost, problem: Path) -> None:
    head = Head(host)
    host.start(1, "none")
    ready = head.next_message(1)
    assert ready.device.model_dump()["host"] == "gpu-a"
    head.send(1, problem)
    answer = head.next_message(1)
    assert isinstance(answer, JudgeAnswer)
    assert [row.uuid for row in answer.workloads] == ["u1", "u2"]
    assert answer.device.model_dump()["host"] == "gpu-a"
    assert "OMP_NUM_THREADS" not in os.environ


def test_events_stay_until_they_have_arrived(host: JudgeHost) -> None:
    host.start(1, "none")
    lines = wait_until(lambda: host.fetch(1, 0), event="the first event")
    assert host.fetch(1, 0)[0] == lines[0], "the answer to a fetch was lost, and the fetch is repeated"
    host.end(1, kill=True)
    (ended,) = wait_until(lambda: host.fetch(1, 1), event="the end")
    assert HOST_EVENTS.validate_json(ended).event == "ended"


def test_the_end_of_a_judge_comes_with_its_last_lines(host: JudgeHost, problem: Path) -> None:
    head = Head(host)
    host.start(1, "none")
    head.next_message(1)
    head.send(1, problem, "// stub: exit=3\n")
    ended = head.next(1)
    assert isinstance(ended, RemoteJudgeEnded)
    assert (ended.exit_code, "asked to give up" in ended.log) == (3, True)
    host.start(2, "none")
    head.count = 0
    assert isinstance(head.next_message(2), JudgeReady)


def test_a_lost_process_is_reported_for_the_number_that_is_asked_for(host: JudgeHost) -> None:
    (line,) = host.fetch(7, 0)
    event = HOST_EVENTS.validate_json(line)
    assert isinstance(event, RemoteJudgeEnded)
    assert (event.number, event.exit_code) == (7, EXIT_HOST_FAULT)


def test_a_request_that_the_disk_does_not_take_is_a_fault_of_the_host(
    host: JudgeHost, problem: Path, tmp_path: Path
) -> None:
    head = Head(host)
    host.start(1, "none")
    head.next_message(1)
    trees = tmp_path / "host/kernel-harness/cluster/content/trees"
    trees.write_text("a file where a directory should be")
    head.send(1, problem)
    ended = head.next(1)
    assert isinstance(ended, RemoteJudgeEnded)
    assert (ended.exit_code, "cannot be written" in ended.reason) == (EXIT_HOST_FAULT, True)


def test_a_host_with_a_full_disk_starts_no_judge(host: JudgeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_host, "LEAST_FREE_BYTES", 1 << 62)
    host.start(1, "none")
    ended = Head(host).next(1)
    assert isinstance(ended, RemoteJudgeEnded)
    assert (ended.exit_code, "the disk is full" in ended.reason) == (EXIT_HOST_FAULT, True)
