"""`harness status` and `harness log`, called by a person or a script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.model.process_status import DaemonStatus, JudgeStatus, PlannerStatus, WorkerStatus
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from harness.workspace.status import write_status
from tests.cli.test_audit import harness
from tests.command_line import call_harness
from tests.ledger.ledgers import PROBLEM, draft, git, make_workspace, ticking


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    files = {f"problems/{problem}/definition.json": "{}" for problem in (PROBLEM, "starter/swiglu", "starter/rope")}
    workspace = make_workspace(tmp_path / "a workspace", files)
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main", clock=ticking()) as ledger:
        for entry_draft in (
            draft("baseline"),
            draft(speedup=1.5, cites=1),
            draft("confirmation", speedup=1.4, cites=2),
            draft("champion", cites=3),
            draft(tree="e" * 40, verdict=Verdict.INCORRECT_NUMERICAL, worker="w02"),
            draft(problem="starter/swiglu", speedup=0.7),
            draft(problem="starter/swiglu", run="other", speedup=3.0),
        ):
            ledger.append(entry_draft)
    return workspace


def row_of(output: str, problem: str) -> str:
    (row,) = [line for line in output.splitlines() if line.startswith(problem)]
    return row


def test_the_table_has_the_standing_of_every_problem(workspace: Workspace) -> None:
    completed = harness(workspace.root, "status")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "run main, target cpu" in completed.stdout
    champion = row_of(completed.stdout, PROBLEM)
    assert "12.0 us" in champion
    assert "1.46" in champion  # 1.4 and 1.54: the confirmation's number, not the evaluation's
    assert "1 INCORRECT_NUMERICAL, 1 PASSED" in champion
    assert champion.endswith(" 5")
    assert "unconfirmed" in row_of(completed.stdout, "starter/swiglu")
    assert row_of(completed.stdout, "starter/rope").split()[1:] == ["-", "-", "-", "-", "-", "0"]
    assert "1 of 3 problems have a confirmed speed-up; 3 evaluations" in completed.stdout
    assert "no process runs here now" in completed.stdout


def test_scripts_get_the_numbers(workspace: Workspace) -> None:
    report = json.loads(harness(workspace.root, "status", "--json").stdout)
    problems = {problem["problem"]: problem for problem in report["problems"]}
    champion = problems[PROBLEM]["champion"]
    assert (champion["seq"], champion["evaluation"], champion["worker"]) == (3, 2, "w01")
    assert champion["speedup_ci95"][0] < champion["speedup"] < champion["speedup_ci95"][1]
    assert problems["starter/rope"]["champion"] is None
    assert report["run"] == "main"


def test_another_run_stands_apart(workspace: Workspace) -> None:
    report = json.loads(harness(workspace.root, "status", "--run", "other", "--json").stdout)
    problems = {problem["problem"]: problem["evaluations"] for problem in report["problems"]}
    assert problems == {PROBLEM: 0, "starter/rope": 0, "starter/swiglu": 1}


def test_running_processes_are_shown_and_ended_ones_are_not(workspace: Workspace) -> None:
    judge = JudgeStatus(device="cpu", state="busy", kind="evaluation", problem=PROBLEM, stage="timing", worker="w01")
    write_status(workspace, DaemonStatus(queued=3, judges=(judge,)))
    write_status(workspace, WorkerStatus(worker="w01", agent="tuner", state="waiting", problem=PROBLEM))
    (workspace.status / "planner.json").write_text(PlannerStatus(pid=os.getpid()).model_dump_json())
    output = harness(workspace.root, "status").stdout
    assert f"daemon (pid {os.getpid()}): evaluation {PROBLEM} timing of w01 (3 queued)" in output
    assert f"worker-w01 (pid {os.getpid()}): waiting {PROBLEM}" in output
    assert "planner" not in output, "its pid belongs to another process now"
    running = json.loads(harness(workspace.root, "status", "--json").stdout)["running"]
    assert running["daemon"]["current"] == running["daemon"]["judges"][0]
    assert (running["worker-w01"]["pid"], running["worker-w01"]["state"]) == (os.getpid(), "waiting")


def test_a_checkout_that_lags_behind_is_reported(workspace: Workspace) -> None:
    path = workspace.root / "ledger" / f"{PROBLEM}.yaml"
    path.write_text(path.read_text() + "# mine\n")
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("note"))
    assert f"ledger/{PROBLEM}.yaml" in harness(workspace.root, "status").stdout


def test_an_unreadable_index_is_rebuilt_with_a_message(workspace: Workspace) -> None:
    harness(workspace.root, "status")
    workspace.index_file.write_bytes(b"garbage" * 100)
    completed = harness(workspace.root, "status")
    assert completed.returncode == 0
    assert "harness: the ledger's index could not be used (file is not a database): rebuilt" in completed.stderr
    assert "1.46" in row_of(completed.stdout, PROBLEM)


def test_an_empty_workspace_has_nothing_to_show(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w")
    completed = harness(workspace.root, "status")
    assert completed.returncode == 0
    assert "there are no problems" in completed.stdout


def test_the_log_ends_with_the_newest_and_each_entry_has_message_latency_and_speedup(workspace: Workspace) -> None:
    completed = harness(workspace.root, "log", PROBLEM)
    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()[2:]
    assert [line.split()[3] for line in lines] == ["baseline", "evaluation", "confirmation", "champion", "evaluation"]
    assert "INCORRECT_NUMERICAL" in lines[-1]
    assert "w02" in lines[-1]
    assert "3 of 4096 elements are off" in lines[-1]
    assert "cccccccccc" in lines[1]
    assert "12.0 us" in lines[0]
    assert lines[0].endswith("eager 12.0 us, compile 12.5 us")
    assert lines[2].endswith("confirms seq 2")
    assert lines[3].endswith("champion now, by seq 3")
    for line in lines[2:4]:
        assert re.search(r"8\.\d\d us +1\.46\dx \[1\.4\d\d, 1\.4\d\d\]", line), "a champion has its confirmation's"


def test_the_log_has_the_subject_of_each_commit(workspace: Workspace) -> None:
    tip = git(workspace.root, "rev-parse", "HEAD")
    subject = git(workspace.root, "log", "-1", "--format=%s", tip)
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft(commit=tip, tree="9" * 40))
    assert harness(workspace.root, "log", PROBLEM).stdout.splitlines()[-1].endswith(subject)
    assert json.loads(harness(workspace.root, "log", PROBLEM, "--json").stdout)[-1]["message"] == subject


@pytest.mark.parametrize("command", [("status",), ("log",), ("log", PROBLEM)])
def test_tables_fit_80_columns_and_use_more_where_there_is_more(workspace: Workspace, command: tuple[str, ...]) -> None:
    widths = {}
    for columns in ("80", "160"):
        completed = call_harness(*command, cwd=workspace.root, environment={**os.environ, "COLUMNS": columns})
        assert completed.returncode == 0, completed.stderr
        (rule,) = re.findall(r"^-[- ]+$", completed.stdout, re.MULTILINE)
        rows = [line for line in completed.stdout.splitlines() if re.search(r" us +1\.4", line)]
        assert rows, "the champion's speed-up is shown at any width"
        widths[columns] = max(map(len, [rule, *rows]))
    assert widths["80"] <= 80 < widths["160"] <= 160


def test_the_log_of_everything_names_the_problem_and_stops_at_n(workspace: Workspace) -> None:
    lines = harness(workspace.root, "log", "-n", "2").stdout.splitlines()[2:]
    assert [line.split()[2] for line in lines] == ["starter/swiglu", "starter/swiglu"]
    rows = json.loads(harness(workspace.root, "log", "-n", "3", "--run", "main", "--json").stdout)
    assert [(row["problem"], row["seq"]) for row in rows] == [(PROBLEM, 4), (PROBLEM, 5), ("starter/swiglu", 1)]


def test_a_log_of_nothing_is_no(workspace: Workspace) -> None:
    completed = harness(workspace.root, "log", "starter/rope")
    assert completed.returncode == 1
    message = "the ledger has no entries of starter/rope\n  `harness start --problem starter/rope` makes entries\n"
    assert message in completed.stderr
    of_other_run = harness(workspace.root, "log", PROBLEM, "--run", "other")
    assert of_other_run.returncode == 1
    message = f"the ledger has no entries of {PROBLEM} in run other\n  runs with such entries: main\n"
    assert of_other_run.stderr.endswith(message)
    unknown_run = harness(workspace.root, "log", "--run", "nope")
    message = "the ledger has no entries in run nope\n  runs with such entries: main, other\n"
    assert unknown_run.stderr.endswith(message)


@pytest.mark.parametrize("problem", ["starter/nope", "../x", "nope", ""])
def test_the_log_of_an_unknown_problem_is_an_error(workspace: Workspace, problem: str) -> None:
    completed = harness(workspace.root, "log", problem)
    assert completed.returncode == 2
    assert completed.stderr == f"harness: there is no problem `{problem}` on main\n  harness problems list\n"


def test_the_log_of_an_empty_ledger_needs_a_start(tmp_path: Path) -> None:
    completed = harness(make_workspace(tmp_path / "w").root, "log")
    assert completed.returncode == 1
    assert completed.stderr == "harness: the ledger has no entries\n  `harness start` makes entries\n"


def test_the_index_keeps_out_of_git(workspace: Workspace) -> None:
    harness(workspace.root, "status")
    assert git(workspace.root, "status", "--porcelain") == ""


def test_the_status_imports_nothing_heavy(workspace: Workspace) -> None:
    heavy = ("torch", "numpy", "scipy", "triton", "simpy", "jinja2", "aiohttp", "asyncio", "watchdog", "harness.judge")
    code = f"""
import sys
from harness.__main__ import main
sys.argv = ["harness", "status"]
try:
    main()
finally:
    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    completed = subprocess.run(command, cwd=workspace.root, capture_output=True, text=True, check=True, timeout=240)
    assert (completed.stderr.strip(), "starter/swiglu" in completed.stdout) == ("[]", True)
