"""`harness start`: limits, ends, kills, errors, and its output."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from harness.cli.start import _panel, ask_for_a_limit
from harness.errors import ConfigurationError
from harness.model.entry import Entry
from harness.model.process_status import WorkerStatus
from harness.model.verdict import EntryKind
from harness.run_end import Limits, Snapshot
from harness.workspace.configuration import load_config
from harness.workspace.status import running_processes
from tests.site import Site, git
from tests.waiting import wait_until

START = ("start", "--workers", "2", "--agent", "tuner", "--device", "cpu")
ONE = ("start", "--workers", "1", "--agent", "tuner", "--device", "cpu")


def evaluations(site: Site) -> list[Entry]:
    return [entry for entry in site.entries() if entry.kind is EntryKind.EVALUATION]


def trees(site: Site) -> list[tuple[str, str]]:
    return [(entry.problem, entry.candidate.tree) for entry in evaluations(site) if entry.candidate]


def pids(site: Site) -> dict[str, int]:
    """Return the pids of the running processes that have written a status record."""
    return {name: status.pid for name, status in running_processes(site.workspace).items()}


def until_judging(site: Site) -> None:
    wait_until(lambda: evaluations(site), event="a first entry")


@pytest.mark.slow
def test_a_limit_is_met_exactly_and_everything_is_left_clean(site: Site) -> None:
    completed = site.run(*START, "--problem", "t/o*", "--max-evaluations", "5")
    assert completed.returncode == 0, completed.stdout
    assert len(trees(site)) == len(set(trees(site))) == 5
    assert {entry.problem for entry in site.entries()} == {"t/one"}
    branches = git(site.root, "branch", "--list", "--format=%(refname:short)", "agents/*").split()
    assert branches == ["agents/main/w01/t/one", "agents/main/w02/t/one"]
    assert git(site.root, "status", "--porcelain") == ""
    assert "ended: the limit of 5 evaluations is reached" in completed.stdout
    assert re.search(r"t/one +100 us", completed.stdout), completed.stdout
    site.no_strays()
    audit = site.call("audit")
    assert audit.returncode == 0, audit.stdout
    # Limits count the invocation: three more.
    second = site.run(*START, "--problem", "t/o*", "--max-evaluations", "3", "--json")
    assert second.returncode == 0, second.stdout
    assert len(trees(site)) == len(set(trees(site))) == 8
    report = json.loads(second.stdout)
    assert report["ended"] == "the limit of 3 evaluations is reached"
    (problem,) = report["problems"]
    assert (problem["problem"], problem["evaluations"]) == ("t/one", 8)
    assert problem["champion"]["speedup"] == pytest.approx(1.35, abs=0.01)


@pytest.mark.slow
def test_it_ends_by_itself_when_nothing_is_left_to_try(site: Site) -> None:
    completed = site.run(*START)
    assert completed.returncode == 0, completed.stdout
    assert "ended: nothing is left to try" in completed.stdout
    assert len(trees(site)) == len(set(trees(site))) == 16
    assert {problem for problem, _ in trees(site)} == {"t/one", "t/two"}
    assert "2 of 2 problems have a confirmed speed-up" in completed.stdout
    assert "champion: t/one" in completed.stdout, "improvements are printed as they come"
    assert "pending:" not in completed.stdout
    last = completed.stdout.splitlines()[-1]
    assert last == "next: `harness review` shows the 2 champions; `harness report` writes a page about the run"
    assert git(site.root, "status", "--porcelain") == ""
    assert "all 8 combinations" in (site.root / "COORDINATION.md").read_text(), "lessons are shown"
    replay = site.call("planner", "--replay", "--json")
    assert replay.returncode == 0, replay.stdout
    assert {row["same"] for row in json.loads(replay.stdout)} == {"yes"}


def test_minutes_end_it_and_a_judge_that_was_never_ready_is_an_error(site: Site) -> None:
    commit = site.submit("w07", "t/one", "a submission without a verdict yet")
    completed = site.run(*ONE, "--max-minutes", "0.05", extra={"HARNESS_JUDGE_COMMAND": "sh -c 'sleep 600'"})
    assert completed.returncode == 2, completed.stdout
    assert re.search(r"no judge became ready within \d+ s, so nothing was evaluated", completed.stdout)
    assert "ended: the limit of 0.05 minutes is reached" in completed.stdout
    assert "not beaten: t/one: not evaluated yet" in completed.stdout
    assert re.search(rf"pending: \d submissions? .* judged yet: .*t/one by w07 \({commit.id[:12]}\)", completed.stdout)
    assert "`harness start` judges them\n" in completed.stdout
    assert "next: `harness start` continues; `harness doctor` checks its requirements" in completed.stdout
    site.no_strays()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)]
)
def test_it_ends_cleanly_on_a_signal_and_resumes_later(site: Site, number: int, code: int) -> None:
    process = site.start(*ONE)
    until_judging(site)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    assert "ended: stopped" in output
    site.no_strays()
    assert git(site.root, "status", "--porcelain") == ""
    assert not list(site.workspace.spool.glob("*/*.spool")), "the ledger is committed"
    audit = site.call("audit")
    assert audit.returncode == 0, audit.stdout


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_resumes(site: Site) -> None:
    process = site.start(*START)
    until_judging(site)
    process.kill()
    process.wait(timeout=120)
    site.no_strays()
    completed = site.run(*START)
    assert completed.returncode == 0, completed.stdout
    assert len(trees(site)) == len(set(trees(site))) == 16
    audit = site.call("audit")
    assert audit.returncode == 0, audit.stdout


@pytest.mark.parametrize(
    "part",
    ["daemon", "planner", "worker-w01"],
)
@pytest.mark.slow
def test_a_killed_part_is_restarted_with_a_message(site: Site, part: str) -> None:
    process = site.start(*START)
    until_judging(site)
    os.kill(pids(site)[part], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"the {part} ended (SIGKILL) and is started again" in output
    assert len(trees(site)) == len(set(trees(site))) == 16
    site.no_strays()


@pytest.mark.slow
def test_a_part_that_cannot_work_ends_everything_with_its_reason(site: Site) -> None:
    lock = site.start("planner")
    wait_until(lambda: "planner" in pids(site), event="a planner started by hand")
    completed = site.run(*ONE)
    assert completed.returncode == 2, completed.stdout
    assert "the planner cannot work" in completed.stdout
    assert f"held by pid {lock.pid}" in completed.stdout
    wait_until(lambda: set(site.strays()) == {lock.pid}, event="the end of all other parts")


@pytest.mark.parametrize(
    ("agent", "missing_part", "remedy"),
    [
        ("claude", "no credential for the model", "harness start --agent tuner"),
        ("command", "agent `command` needs a command line", "agent: {kind: command"),
    ],
)
def test_agents_that_cannot_work_are_refused(site: Site, agent: str, missing_part: str, remedy: str) -> None:
    completed = site.call("start", "--device", "cpu", "--agent", agent)
    assert completed.returncode == 2
    assert missing_part in completed.stdout
    assert remedy in completed.stdout
    assert not pids(site)


def test_agents_that_cost_money_and_have_no_limit_are_asked_about_on_a_terminal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it warns and starts: tests/test_supervise.py."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    # Questions and answers use the standard streams of the process.
    config = load_config(site.workspace, {"agent.kind": "claude"})
    for typed, refused in (("n\n", True), ("y\n", False)):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        monkeypatch.setattr(sys, "stderr", screen)
        with pytest.raises(ConfigurationError, match="no limit is set") if refused else nullcontext():
            ask_for_a_limit(config, Limits())
        assert "No limit is set on what agents of kind claude spend. Start without one?" in screen.getvalue()
    quiet = Terminal()
    monkeypatch.setattr(sys, "stderr", quiet)
    ask_for_a_limit(config, Limits(max_usd=5.0))
    ask_for_a_limit(load_config(site.workspace, {"agent.kind": "claude", "agent.per_worker.usd": 5}), Limits())
    ask_for_a_limit(load_config(site.workspace, {"agent.kind": "tuner"}), Limits())
    assert quiet.getvalue() == ""


def test_a_problem_glob_that_matches_nothing_is_an_error(site: Site) -> None:
    completed = site.call(*START, "--problem", "nowhere/*")
    assert completed.returncode == 2, completed.stdout
    assert "nowhere/*" in completed.stdout
    assert "t/one" in completed.stdout, "the existing problems"


@pytest.mark.parametrize("columns", [80, 160])
def test_the_live_panel_has_a_line_for_each_worker_at_any_width(columns: int) -> None:
    message = "submit WIDTH=16, UNROLL=8, STREAM=0, PREFETCH=1, and why it should be faster on a machine like this one"
    workers: dict[str, WorkerStatus | None] = {
        name: WorkerStatus(
            worker=name, agent="tuner", state="waiting", problem="starter/rmsnorm_h4096", last_message=message
        )
        for name in ("w01", "w02")
    }
    console = Console(width=columns, file=io.StringIO())
    with console.capture() as shown:
        console.print(_panel(Snapshot(None, None, workers, 12.0, ()), Limits()))
    lines = [line.split() for line in shown.get().splitlines() if line.startswith("w0")]
    assert [line[:4] for line in lines] == [[n, "waiting", "starter/rmsnorm_h4096", "submit"] for n in ("w01", "w02")]
    assert all(line[-1].endswith("…") == (columns == 80) for line in lines), "only the message is cut"


def test_outside_a_workspace_it_is_an_error(site: Site, tmp_path: Path) -> None:
    elsewhere = Site(tmp_path, site.scratch)
    completed = elsewhere.call("start")
    assert completed.returncode == 2
    assert "harness init" in completed.stdout
