"""The live page shows the current state of a workspace, and reads only changed files again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.git.repo import Repo
from harness.ledger import accounts
from harness.ledger.accounts import Account, Spent
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.process_status import DaemonStatus, JudgeStatus, ProcessStatus, StartStatus, WorkerStatus
from harness.model.verdict import Trust, Verdict
from harness.report.live import problem_parts
from harness.report.live.collector import Collector
from harness.report.problem_summary import problem_summary
from harness.workspace.directories import Workspace
from harness.workspace.status import clear_statuses, recorded_result, write_status
from tests.ledger.ledgers import PROBLEM, draft, git, make_workspace
from tests.site import Site, site_in

OTHER = "L1/other"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "w", {f"problems/{name}/definition.json": "{}" for name in (PROBLEM, OTHER)})


@pytest.fixture
def collector(workspace: Workspace) -> Iterator[Collector]:
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        yield Collector(workspace, repo, index)


def collected(collector: Collector) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in collector.collect().items()}


def append(workspace: Workspace, *drafts: Any) -> None:
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        for new_entry in drafts:
            ledger.append(new_entry)


def test_a_run_that_was_never_started(collector: Collector) -> None:
    parts = collected(collector)
    assert parts["meta"]["run"] == "main"
    current = parts["now"]
    assert (current["running"], current["judges"], current["workers"], current["messages"]) == ([], [], [], [])
    assert (current["started_at"], current["ended"], current["queued"], current["paused"]) == (None, None, None, None)
    assert [parts[f"problem:{name}"]["state"] for name in (PROBLEM, OTHER)] == ["untried", "untried"]
    assert (parts["headline"]["problems"], parts["headline"]["confirmed"]) == (2, 0)
    assert (parts["recent"], parts["waiting"]) == ({"entries": []}, {"submissions": []})


def test_champions_bounds_and_trajectories_grow_with_the_ledger(workspace: Workspace, collector: Collector) -> None:
    collected(collector)
    append(
        workspace,
        draft("baseline"),
        draft(tree="1" * 40, speedup=1.2, cites=1),
        draft(tree="2" * 40, verdict=Verdict.COMPILE_ERROR, cites=1),
    )
    parts = collected(collector)
    problem = parts[f"problem:{PROBLEM}"]
    assert (problem["state"], problem["bound_us"], problem["evaluations"]) == ("unconfirmed", 3.0, 2)
    assert (len(problem["steps"]), len(problem["dots"])) == (1, 1)
    assert parts["meta"]["begin"] is not None
    append(
        workspace,
        draft(tree="3" * 40, speedup=1.6, cites=1),
        draft("confirmation", tree="3" * 40, speedup=1.6, cites=4),
    )
    parts = collected(collector)
    problem = parts[f"problem:{PROBLEM}"]
    assert (problem["state"], len(problem["steps"]), len(problem["dots"])) == ("confirmed", 2, 2)
    assert problem["speedup"] == pytest.approx(1.68, rel=0.02)
    assert problem["low"] < problem["speedup"] < problem["high"]
    recent = [(entry["kind"], entry["verdict"]) for entry in parts["recent"]["entries"]]
    assert recent == [
        ("confirmation", "PASSED"),
        ("evaluation", "PASSED"),
        ("evaluation", "COMPILE_ERROR"),
        ("evaluation", "PASSED"),
    ]
    assert parts["headline"]["confirmed"] == 1


def test_weakened_numbers_have_their_sentence(workspace: Workspace, collector: Collector) -> None:
    append(workspace, draft("baseline"), draft(tree="1" * 40, trust=Trust.LAUNCH_BOUND, cites=1))
    parts = collected(collector)
    sentence = "launch-bound: most of each call is the launch, which a kernel cannot make faster"
    assert parts["meta"]["symbol"] == "†"
    assert parts["meta"]["weakened"] == [f"† {PROBLEM}: {sentence}"]
    assert sentence in parts[f"problem:{PROBLEM}"]["weaknesses"]
    assert sentence in parts["recent"]["entries"][0]["weaknesses"]


def test_only_problems_with_new_entries_are_read_again(
    workspace: Workspace, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(workspace, draft(tree="1" * 40), draft(tree="1" * 40, problem=OTHER))
    collector.collect()
    summarised: list[str] = []
    summary = problem_summary

    def noted(repo: Any, index: Any, standing: Any, *arguments: Any) -> Any:
        summarised.append(standing.problem)
        return summary(repo, index, standing, *arguments)

    monkeypatch.setattr(problem_parts, "problem_summary", noted)
    before = collector.collect()
    assert summarised == []
    append(workspace, draft(tree="2" * 40, problem=OTHER))
    after = collector.collect()
    assert summarised == [OTHER]
    assert before[f"problem:{PROBLEM}"] is after[f"problem:{PROBLEM}"]
    git(workspace.root, "commit", "-q", "--allow-empty", "-m", "another file")
    collector.collect()
    assert summarised == [OTHER]


def test_text_of_agents_cannot_reorder_or_forge_the_page(workspace: Workspace, collector: Collector) -> None:
    failed = draft(verdict=Verdict.RUNTIME_ERROR).model_copy(update={"reason": "x\u202ey\x1b[31m\n</script>"})
    append(workspace, failed)
    text = collector.collect()["recent"]
    assert "\u202e" not in text
    assert "\n" not in text
    assert json.loads(text)["entries"][0]["reason"] == "x\\u202ey\\x1b[31m </script>"


def status_of_dead(workspace: Workspace, status: ProcessStatus) -> None:
    """Write a status record of a process that has ended."""
    write_status(workspace, status)
    name = f"worker-{status.worker}" if isinstance(status, WorkerStatus) else "start"
    file = workspace.status / f"{name}.json"
    ended = subprocess.Popen(["true"])
    ended.wait()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pid": ended.pid, "process_start_ticks": 1}))


def test_a_run_in_progress_its_end_and_the_next(workspace: Workspace, collector: Collector) -> None:
    judge = JudgeStatus(
        device="cpu", state="busy", problem=PROBLEM, kind="evaluation", worker="w01", stage="timing", done=3, of=12
    )
    worker = WorkerStatus(worker="w01", agent="tuner", state="working", problem=PROBLEM, last_message="trying 8")
    start = StartStatus(
        children=("daemon",), run="main", problems=("L1/o*",), started_at="2026-11-22T10:00:00.000Z", max_evaluations=9
    )
    for status in (
        start,
        DaemonStatus(queued=2, judges=(judge,), evaluations_done=4, messages=("slow",), paused="disk full"),
        worker,
    ):
        write_status(workspace, status)
    parts = collected(collector)
    current = parts["now"]
    assert (current["running"], current["queued"], current["paused"], current["messages"]) == (
        ["daemon", "start", "worker-w01"],
        2,
        "disk full",
        ["slow"],
    )
    assert current["judges"][0]["stage"] == "timing"
    assert (current["workers"][0]["message"], current["workers"][0]["state"]) == ("trying 8", "working")
    assert [name for name in parts if name.startswith("problem:")] == [f"problem:{OTHER}"], "the run's own problems"
    assert {"name": "evaluations", "used": 4, "limit": 9, "scope": "of this start", "kind": "count"} in parts[
        "spending"
    ]["rows"]

    for file in workspace.status.glob("*.json"):
        file.unlink()
    status_of_dead(workspace, start)
    status_of_dead(workspace, worker)
    with recorded_result(workspace) as record:
        record("every problem is exhausted", 0)
    file = workspace.derived / "last-run.json"
    identity = json.loads((workspace.status / "start.json").read_text())
    identity_fields = {name: identity[name] for name in ("pid", "process_start_ticks")}
    file.write_text(json.dumps(json.loads(file.read_text()) | identity_fields))
    current = collected(collector)["now"]
    assert (current["running"], current["judges"]) == ([], [])
    assert current["ended"] == {"why": "every problem is exhausted", "exit_code": 0}
    assert [(worker_row["state"], worker_row["message"]) for worker_row in current["workers"]] == [
        ("ended", "trying 8")
    ]

    write_status(workspace, replace_run(start, "second"))
    parts = collected(collector)
    assert (parts["meta"]["run"], parts["now"]["ended"]) == ("second", None), "the page follows the next run"


def replace_run(start: StartStatus, run: str) -> StartStatus:
    return start.model_copy(update={"run": run})


def test_the_last_words_of_a_run_stay_until_the_next(workspace: Workspace, collector: Collector) -> None:
    """`harness start` removes its records when it ends."""
    start = StartStatus(children=(), run="main", problems=(OTHER,), max_evaluations=9)
    worker = WorkerStatus(worker="w01", agent="tuner", state="working", last_message="trying 8")
    for status in (start, DaemonStatus(evaluations_done=9), worker):
        write_status(workspace, status)
    running = collected(collector)
    clear_statuses(workspace)
    ended = collected(collector)
    assert ended["now"]["running"] == []
    assert ended["now"]["workers"] == [running["now"]["workers"][0] | {"state": "ended"}]
    assert ended["spending"] == running["spending"]
    assert ended["spending"]["rows"][0]["used"] == 9
    assert [name for name in ended if name.startswith("problem:")] == [f"problem:{OTHER}"]
    write_status(workspace, start)
    assert collected(collector)["now"]["workers"] == []


def test_problems_that_were_no_part_of_the_run_are_left_out(workspace: Workspace, collector: Collector) -> None:
    facts = {"inputs": {"problems": [{"problem": OTHER}]}, "decision": {"assignments": []}}
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main", writer="planner") as planner:
        planner.append_record("ledger/decisions.yaml", {"run": "main", "target": "cpu", **facts})
    append(workspace, draft(problem="L1/removed"))
    parts = collected(collector)
    assert [name for name in parts if name.startswith("problem:")] == ["problem:L1/other", "problem:L1/removed"]


def test_a_run_that_was_killed_is_named_so(workspace: Workspace, collector: Collector) -> None:
    status_of_dead(workspace, StartStatus(children=()))
    assert collected(collector)["now"]["ended"] == {"why": "it was killed", "exit_code": None}


def test_spend_against_limits(workspace: Workspace, collector: Collector) -> None:
    (workspace.root / "harness.yaml").write_text(
        "run: main\nagent: {overall: {usd: 10, tokens: 5000}, per_worker: {usd: 4}}\n"
    )
    account = Account(
        id="a", run="main", worker="w01", problem=PROBLEM, session="s", agent="claude", began=accounts.present_time()
    )
    spent = Spent(usd=1.5, input_tokens=1000, output_tokens=200, turns=3)
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main", writer="planner") as planner:
        planner.append_record(
            "ledger/accounts.yaml", replace(account, spent=spent, ended=accounts.present_time()).record()
        )
    write_status(workspace, StartStatus(children=(), run="main", max_usd=2.0, usd_before=1.0))
    accounts.write_account(workspace, replace(account, id="b", worker="w02", spent=Spent(usd=0.25)))
    accounts.write_account(workspace, replace(account, id="c", run="other", spent=Spent(usd=99)))
    parts = collected(collector)
    spending = parts["spending"]
    rows = {(row["name"], row["scope"]): (row["used"], row["limit"]) for row in spending["rows"]}
    assert rows == {
        ("dollars", "of the run"): (1.75, 10.0),
        ("tokens", "of the run"): (1200, 5000),
        ("answers of the model", "of the run"): (3, None),
        ("dollars", "of this start"): (0.75, 2.0),
    }
    assert spending["worker_limit_usd"] == 4.0
    assert {name: row["usd"] for name, row in spending["workers"].items()} == {"w01": 1.5, "w02": 0.25}
    assert parts["headline"]["usd"] == 1.75


def test_submissions_wait_until_they_are_judged(tmp_path: Path) -> None:
    with site_in(tmp_path) as site, Repo(site.workspace) as repo, Index(site.workspace, branch="main") as index:
        collector = Collector(site.workspace, repo, index)
        commit = site.submit("w01", "t/one", "stub: speedup=1.5")
        collector.collect()  # without a run in progress, the branches are read once
        write_status(site.workspace, StartStatus(children=(), run="main"))
        second = site.submit("w02", "t/two", "stub: speedup=1.5")
        waiting = collected(collector)["waiting"]["submissions"]
        assert [(row["worker"], row["commit"]) for row in waiting] == [("w01", commit.id), ("w02", second.id)]
        assert waiting[0]["subject"] == "Try stub: speedup=1.5"
        judged(site)
        parts = collected(collector)
        assert parts["waiting"] == {"submissions": []}
        assert {entry["subject"] for entry in parts["recent"]["entries"]} == {"Try stub: speedup=1.5"}


def judged(site: Site) -> None:
    """Judge all queued candidates."""
    (site.workspace.status / "start.json").unlink()
    ran = site.call("daemon", "--once")
    assert ran.returncode == 0, ran.stdout
    write_status(site.workspace, StartStatus(children=(), run="main"))


def test_a_broken_configuration_is_an_error_with_its_place(workspace: Workspace, collector: Collector) -> None:
    (workspace.root / "harness.yaml").write_text("run: [\n")
    with pytest.raises(HarnessError, match=r"."):
        collector.collect()
    (workspace.root / "harness.yaml").write_text("run: main\n")
    assert "meta" in collector.collect()


def test_another_process_that_rewrites_the_ledger(workspace: Workspace, collector: Collector) -> None:
    append(workspace, draft(tree="1" * 40), draft(tree="2" * 40, speedup=1.9))
    assert collected(collector)[f"problem:{PROBLEM}"]["evaluations"] == 2
    before = git(workspace.root, "rev-parse", "HEAD~1")
    git(workspace.root, "reset", "-q", "--hard", before)
    (workspace.index_file).unlink()
    parts = collected(collector)
    assert parts[f"problem:{PROBLEM}"]["evaluations"] == 0
