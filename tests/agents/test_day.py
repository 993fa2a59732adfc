"""A day with agents: start detached, attach, change the plan, stop, resume, review, merge, report.

The workers run Claude through the real SDK and CLI; a script replaces the model, and the stub replaces the judge.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.model.assignment import Assignment
from tests.agents import agents_site
from tests.scripted_model import ModelRequest, Say, ScriptedModel, Step, scripted
from tests.site import Site, git
from tests.terminal import on_terminal
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

START = ("start", "--detach", "--agent", "claude", "--workers", "1", "--device", "cpu", "--max-usd", "50")


def script(request: ModelRequest) -> list[Step]:
    """Return a wrong kernel, a good one and endless work on t/one, or two good kernels on t/two."""
    if "problem t/two," in request.text:
        return [
            *agents_site.kernel("t/two", "stub: speedup=1.2"),
            agents_site.submit("vectorise the loop"),
            *agents_site.kernel("t/two", "stub: speedup=1.6"),
            agents_site.submit("and unroll it"),
            Say("Done."),
        ]
    return [
        *agents_site.kernel("t/one", "stub: verdict=INCORRECT_NUMERICAL"),
        agents_site.submit("a first version"),
        *agents_site.kernel("t/one", "stub: speedup=1.3"),
        agents_site.submit("with the right sum"),
        *[agents_site.bash(f"sleep 0.2; echo {number}") for number in range(3000)],
    ]


def start(site: Site, model: ScriptedModel) -> int:
    """Start a detached run and return its pid."""
    started = site.run(*START, extra=agents_site.environment(model))
    assert started.returncode == 0, started.stdout
    match = re.search(r"the run is up: process (\d+)", started.stdout)
    assert match, started.stdout
    return int(match[1])


def attach(site: Site) -> subprocess.Popen[str]:
    """Attach to the run in a new process."""
    follower = site.start("attach")
    assert follower.stdout is not None
    assert "Ctrl-C does not end the run" in follower.stdout.readline()
    return follower


def edit_the_table(site: Site, row: str) -> None:
    """Edit and commit the table as a person does; repeat if the harness committed first."""
    file = site.root / "COORDINATION.md"

    def committed() -> bool:
        text = file.read_text()
        edited = re.sub(r"^\| w01 \|.*$", row, text, count=1, flags=re.MULTILINE)
        assert edited != text
        file.write_text(edited)
        try:
            git(site.root, "commit", "--quiet", "-m", "Move w01", "COORDINATION.md")
        except subprocess.CalledProcessError:
            git(site.root, "checkout", "--", "COORDINATION.md")
            return False
        return True

    wait_until(committed, event="a person's commit", poll_s=0.5)


def report_data(site: Site) -> dict[str, Any]:
    completed = site.call("report", "-o", "report.html")
    assert completed.returncode == 0, completed.stdout
    page = (site.root / "report.html").read_text()
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    data: dict[str, Any] = json.loads(match[1])
    return data


def test_a_day_with_agents(site: Site, tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", str(remote))
    git(site.root, "remote", "add", "origin", str(remote))
    agents_site.assign(site, Assignment(worker="w01", problem="t/one", state="pinned", wanted="make it faster"))
    with scripted(script) as model:
        pid = start(site, model)
        a_person_follows_the_run_and_disconnects(site, pid)
        a_person_changes_the_plan(site)
        a_person_stops_the_run(site)
        the_resumed_run_is_killed(site, model, pid)
    assert agents_site.verdicts(site, "t/one") == ["INCORRECT_NUMERICAL", "PASSED"], "nothing was evaluated twice"
    a_person_reviews_and_merges(site, remote)
    the_report_shows_both_problems(site)


def a_person_follows_the_run_and_disconnects(site: Site, pid: int) -> None:
    follower = attach(site)
    watch = ("status", "--watch")
    with on_terminal(site.root, *watch, columns=80, lines=24, environment=site.environment()) as terminal:
        terminal.read_until("run main, target cpu")
        wait_until(lambda: "PASSED" in agents_site.verdicts(site), event="a kernel of t/one", deadline_s=240)
        terminal.read_until("1 of 2 problems have a confirmed speed-up")
        assert terminal.interrupt() == 130
    follower.send_signal(signal.SIGINT)
    output, _ = follower.communicate(timeout=120)
    assert follower.returncode == 130
    # Activities are read from status records several times a second: a short one may be replaced before it is read.
    assert "w01: " in output
    assert "the run continues: `harness attach` follows it again" in output
    os.kill(pid, signal.SIGHUP)  # the terminal closes


def a_person_changes_the_plan(site: Site) -> None:
    edit_the_table(site, "| w01 | t/two | pinned | make it faster |")
    agents_site.wait_for_status(site, "works on t/two", lambda status: status.problem == "t/two")
    wait_until(lambda: agents_site.verdicts(site, "t/two") == ["PASSED", "PASSED"], event="two kernels", deadline_s=240)
    wait_until(lambda: len(site.entries("t/two", kind="confirmation")) == 2, event="confirmations", deadline_s=240)
    assert "| w01 | t/two | pinned | make it faster |" in git(site.root, "show", "main:COORDINATION.md")


def a_person_stops_the_run(site: Site) -> None:
    follower = attach(site)
    stopped = site.call("stop")
    assert stopped.returncode == 0, stopped.stdout
    output, _ = follower.communicate(timeout=120)
    assert follower.returncode == 0, output
    assert output.endswith("the run has ended: stopped (exit code 0)\n")
    site.no_strays()


def the_resumed_run_is_killed(site: Site, model: ScriptedModel, before: int) -> None:
    pid = start(site, model)
    assert pid != before
    follower = attach(site)
    os.kill(pid, signal.SIGKILL)
    output, _ = follower.communicate(timeout=120)
    assert follower.returncode == 2, output
    assert f"(process {pid}) ended without a result: it was killed" in output
    site.no_strays()


def a_person_reviews_and_merges(site: Site, remote: Path) -> None:
    log = site.call("log", "t/two").stdout
    assert re.search(r"PASSED +\d+\.\d us +1\.(59|60)\dx \[.*and unroll it$", log, re.MULTILINE), log
    review = site.call("review", "t/two")
    assert review.returncode == 0, review.stdout
    assert "+// stub: speedup=1.6" in review.stdout
    assert "vectorise the loop" in review.stdout.partition("tried before")[2]
    pull = site.call("pr", "t/two", "--json")
    assert pull.returncode == 0, pull.stdout
    branch = str(json.loads(pull.stdout)["branch"])
    assert "stub: speedup=1.6" in git(remote, "show", f"{branch}:problems/t/two/solutions/cpu/kernel.cpp")
    assert site.call("audit").returncode == 0


def the_report_shows_both_problems(site: Site) -> None:
    data = report_data(site)
    assert (data["headline"]["problems"], data["headline"]["confirmed"]) == (2, 2)
    assert data["headline"]["usd"] > 0
    two = next(problem for problem in data["problems"] if problem["key"] == "t/two")
    assert [step["subject"] for step in two["steps"]] == ["vectorise the loop", "and unroll it"]
    assert "+// stub: speedup=1.6" in two["steps"][1]["diff"].splitlines()
