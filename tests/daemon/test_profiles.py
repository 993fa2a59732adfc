"""Profiles that workers request: an idle judge makes them, and the daemon enters nothing in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from harness.agents.agent_tools import AgentTools
from harness.agents.model_access.meter import Meter
from harness.agents.session import Tools
from harness.git.solution_commits import Submission
from harness.model.counters import CounterReport
from harness.workspace.order_files import OrderQueue, ProfileOrder, order_profile
from tests.daemon.conftest import Daemon
from tests.site import Commit, Site
from tests.waiting import DEADLINE_S, wait_until


def order(commit: Commit, name: str, **changes: str) -> ProfileOrder:
    fields = {"target": "cpu", "commit": commit.id, "tree": commit.tree, **changes}
    return ProfileOrder(id=name, problem=commit.problem, **fields)


def ask(site: Site, profile_order: ProfileOrder) -> CounterReport | None:
    return order_profile(site.workspace, profile_order, stop=threading.Event(), deadline_s=DEADLINE_S)


def test_an_idle_judge_makes_a_profile_that_is_no_entry(site: Site, daemon: Daemon) -> None:
    commit = site.submit("w01", "t/one", "stub: speedup=0.8")
    with daemon() as running:
        running.entry_of(commit)
        entries = len(site.entries())
        report = ask(site, order(commit, "a", workload="t/one-1"))
        assert report is not None
        assert (report.workload, [kernel.kernel for kernel in report.kernels]) == ("t/one-1", ["stub"])
        missing = ask(site, order(replace(commit, problem="t/none"), "b"))
        assert missing is not None
        assert missing.reason == "there is no problem t/none on the coordination branch"
        assert not missing.kernels
    request = next(request for request in site.requests() if request["kind"] == "profile")
    assert Path(request["solution_dir"]).name == commit.tree
    assert len(site.entries()) == entries
    assert not list((site.workspace.derived / "profiles").iterdir())


def test_candidates_come_first_and_a_lost_judge_answers_nothing_wrong(
    site: Site, daemon: Daemon, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    submitted = site.submit("w01", "t/one", f"stub: hold={release}")
    waiting = site.submit("w02", "t/two", "stub: speedup=0.8")
    killer = site.submit("w03", "t/one", "stub: kill")
    reports: list[CounterReport | None] = []
    asking = threading.Thread(target=lambda: reports.append(ask(site, order(killer, "a"))))
    with daemon() as running:
        asking.start()
        wait_until(lambda: OrderQueue(site.workspace, ProfileOrder).waiting(), event="an order")
        release.touch()
        for commit in (submitted, waiting):
            running.entry_of(commit)
        asking.join(DEADLINE_S)
    kinds = [request["kind"] for request in site.requests()]
    assert "profile" not in kinds[: kinds.index("evaluation")]
    (report,) = reports
    assert report is not None
    assert report.reason == "the judge ended while it made the profile"


def test_the_tool_profiles_what_passed_and_names_workloads() -> None:
    submissions: list[tuple[Submission, str | None]] = []
    submitted = Submission(commit="c", tree="t", branch="b")

    def make(passed: Submission, workload: str | None) -> CounterReport:
        submissions.append((passed, workload))
        return CounterReport(workload=workload, reason="no ncu", fix="install it")

    def tools_of(order: Callable[[Submission, str | None], CounterReport] | None, target: str = "h200") -> AgentTools:
        tools = Tools(lambda _: submitted, lambda _: None, tuple, lambda *_: None, nullcontext, order)
        axes = {"u-1": "n=1", "u-2": "n=2"}
        meter = cast("Meter", None)  # a profile costs nothing
        return AgentTools(tools, target, axes, hide=str, meter=meter, passed=submitted)

    answer = tools_of(make).profile({"workload": "n=2"})
    assert submissions == [(submitted, "u-2")]
    assert answer.failed
    assert answer.text.startswith("no counters: no ncu\nfix: install it")
    assert "0 workloads match 'n=3'; expected one of: u-1 (n=1)" in tools_of(make).profile({"workload": "n=3"}).text
    assert "only a solution that PASSED" in replace(tools_of(make), passed=None).profile({}).text
    assert "no judge is available for profiles" in tools_of(None).profile({}).text
    assert "target cpu" in tools_of(make, "cpu").profile({}).text
    assert len(submissions) == 1


def test_an_order_without_a_reply_is_withdrawn(site: Site) -> None:
    commit = site.submit("w01", "t/one", "stub: speedup=0.8")
    with pytest.raises(TimeoutError, match="no judge was free for a profile"):
        order_profile(site.workspace, order(commit, "a"), stop=threading.Event(), deadline_s=0.0)
    assert not OrderQueue(site.workspace, ProfileOrder).waiting()
