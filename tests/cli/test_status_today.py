"""`harness status --today`: one screen for the start of the day."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.model.verdict import Verdict
from tests.cli.test_audit import harness
from tests.ledger.ledgers import PROBLEM, draft, git, make_workspace, ticking

OTHER = "starter/swiglu"


def test_what_is_new_stuck_spent_and_waiting(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", {f"problems/{name}/definition.json": "{}" for name in (PROBLEM, OTHER)})
    current_time = datetime.now(UTC)
    with Repo(workspace) as repo:
        old = ticking(current_time - timedelta(days=3))
        with Ledger(workspace, repo, branch="main", clock=old) as ledger:
            ledger.append(draft("baseline"))
            ledger.append(draft(speedup=1.2, cites=1))
            ledger.append(draft("confirmation", speedup=1.2, cites=2))
            for number in range(4):
                ledger.append(draft(problem=OTHER, tree=f"{number:040x}", verdict=Verdict.COMPILE_ERROR))
        with Ledger(workspace, repo, branch="main", clock=ticking(current_time - timedelta(hours=2))) as ledger:
            ledger.append(draft(tree="e" * 40, speedup=1.5, cites=1))
            ledger.append(draft("confirmation", tree="e" * 40, speedup=1.5, cites=4))
            ledger.append(draft(tree="f" * 40, verdict=Verdict.SUSPECT, worker="w07"))
        with Ledger(workspace, repo, branch="main", writer="planner") as planner:
            account = {"id": "1", "run": "main", "usd": 12.5, "ended": current_time.isoformat(timespec="milliseconds")}
            planner.append_record("ledger/accounts.yaml", account)
    lines = harness(workspace.root, "status").stdout.splitlines()
    (improved,) = [line for line in lines if line.startswith("improved")]
    # The geometric mean of 1.5 and 1.65 now, of 1.2 and 1.32 three days ago, with a little noise.
    assert re.fullmatch(rf"improved since yesterday: {PROBLEM} 1\.5[67]\dx \(was 1\.2[56]\dx\)", improved)
    assert f"stuck: {OTHER} (no candidate passed in 4 evaluations)" in lines
    # A baseline of 1 s and nine judgements of 3 s, three of them since yesterday.
    assert "cost: 0.5 min of device time (0.1 min since yesterday), $12.50 ($12.50 since yesterday)" in lines
    (suspect,) = [line for line in lines if "SUSPECT:" in line]
    assert suspect.startswith(f"waits for you: 1 SUSPECT: {PROBLEM} seq 6: ")
    assert suspect.endswith(f"`harness review agents/main/w07/{PROBLEM}`")
    (unmerged,) = [line for line in lines if "without a pull request" in line]
    assert re.search(rf": {PROBLEM} 1\.5[67]\dx: `harness pr {PROBLEM}`$", unmerged)
    (day,) = json.loads(harness(workspace.root, "status", "--json").stdout)["today"]
    assert [improvement["problem"] for improvement in day["improved"]] == [PROBLEM]
    assert (day["usd"], len(day["suspects"]), len(day["unmerged"])) == (12.5, 1, 1)


def test_the_command_for_a_champion_names_another_run_and_one_of_several_targets(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", {f"problems/{PROBLEM}/definition.json": "{}"})
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("baseline"))
        ledger.append(draft(speedup=1.2, cites=1, run="exp2"))
        ledger.append(draft("confirmation", speedup=1.2, cites=2, run="exp2"))
        ledger.append(draft("baseline", run="exp2").model_copy(update={"target": "h200"}))
    lines = harness(workspace.root, "status", "--run", "exp2").stdout.splitlines()
    (unmerged,) = [line for line in lines if "without a pull request" in line]
    assert unmerged.endswith(f"`harness pr {PROBLEM} --target cpu --run exp2`")


def test_a_terminal_gets_one_screen_and_all_when_asked(tmp_path: Path) -> None:
    names = [f"L1/problem_{number:03d}" for number in range(60)]
    workspace = make_workspace(tmp_path / "w", {f"problems/{name}/definition.json": "{}" for name in names})
    git(workspace.root, "status")
    shown = on_a_terminal(workspace.root, "status")
    assert len(shown) <= 24
    assert any(re.fullmatch(r"… and \d\d more: `harness status --all`", line) for line in shown), shown
    assert sum(line.startswith("L1/") for line in on_a_terminal(workspace.root, "status", "--all")) == 60


def on_a_terminal(directory: Path, *arguments: str) -> list[str]:
    """Return the output of a command on a terminal of 24 lines of 120 columns."""
    master, slave = pty.openpty()
    environment = {**os.environ, "LINES": "24", "COLUMNS": "120", "TERM": "dumb"}
    command = [sys.executable, "-m", "harness", *arguments]
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    parts = []
    try:
        while part := os.read(master, 65536):
            parts.append(part)
    except OSError:
        pass  # Linux reports EIO when the other end is closed
    finally:
        os.close(master)
    assert process.wait(timeout=120) == 0
    return b"".join(parts).decode().replace("\r", "").splitlines()
