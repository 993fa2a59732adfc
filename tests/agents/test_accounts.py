"""Accounts are on disk after every change, are recorded once even if a process is killed, and are displayed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

from harness.agents.agent_tools import AgentTools
from harness.agents.governor import Governor, SpendTracker, UsageLimit, reached_limit
from harness.agents.model_access.meter import Meter
from harness.agents.session import Alive, Tools
from harness.git.repo import Repo
from harness.ledger.accounts import (
    Account,
    Spent,
    all_accounts,
    close_left_open,
    present_time,
    recorded_accounts,
    total,
    unrecorded_accounts,
    write_account,
)
from harness.model.config import Budget, Config
from harness.model.paths import ACCOUNTS
from tests.site import Site
from tests.waiting import wait_until


def account(name: str, worker: str = "w01", usd: float = 1.25, *, ended: bool = True) -> Account:
    return Account(
        id=name,
        run="main",
        worker=worker,
        problem="t/one",
        session="s",
        agent="claude",
        began=present_time(),
        ended=present_time() if ended else None,
        spent=Spent(usd=usd, input_tokens=10, output_tokens=5, turns=2, evaluations=1, seconds=90),
    )


def test_an_account_survives_its_form_on_disk(site: Site) -> None:
    write_account(site.workspace, account("a"))
    assert [record.id for record in unrecorded_accounts(site.workspace)] == ["a"]
    assert unrecorded_accounts(site.workspace)[0].spent.usd == 1.25
    (site.workspace.state / "accounts" / "b.json").write_text("{")
    assert len(unrecorded_accounts(site.workspace)) == 1


def test_the_planner_records_closed_accounts_once_though_it_was_killed_between(site: Site) -> None:
    write_account(site.workspace, account("a"))
    write_account(site.workspace, account("open", ended=False))
    planner = site.start("planner", extra={"HARNESS_FAILPOINT": "planner.account_recorded"})
    assert planner.wait(30) != 0
    assert {record.id for record in unrecorded_accounts(site.workspace)} == {"a", "open"}
    planner = site.start("planner")
    wait_until(
        lambda: [record.id for record in unrecorded_accounts(site.workspace)] == ["open"],
        event="the account's recording",
    )
    planner.terminate()
    planner.communicate(timeout=120)
    with Repo(site.workspace) as repo:
        assert [record.id for record in recorded_accounts(site.workspace, repo, "main")] == ["a"]
        assert repo.read(repo.tip("main"), ACCOUNTS)
        accounts = all_accounts(site.workspace, repo, "main")
    assert total(accounts).usd == 2.5
    close_left_open(site.workspace, "w01")
    assert unrecorded_accounts(site.workspace)[0].ended


def test_spending_counts_each_account_once_while_it_moves_into_the_ledger(site: Site) -> None:
    write_account(site.workspace, account("a", usd=1.0))
    write_account(site.workspace, account("b", worker="w02", usd=2.0))
    with Repo(site.workspace) as repo:
        spend_tracker = SpendTracker(site.workspace, repo, Config())
        assert spend_tracker.spent().usd == 3.0
        planner = site.start("planner")
        wait_until(lambda: not unrecorded_accounts(site.workspace), event="both in the ledger")
        planner.terminate()
        planner.communicate(timeout=120)
        assert spend_tracker.spent().usd == 3.0
        spend_tracker.reread(repo)
        assert (spend_tracker.spent().usd, spend_tracker.spent("w02").usd) == (3.0, 2.0)


def test_a_reached_limit_is_named() -> None:
    spent = replace(Spent(usd=5.0, turns=10, evaluations=3, seconds=120), input_tokens=100)

    def reached(budget: Budget, scope: str) -> str | None:
        return reached_limit((UsageLimit(budget, scope, lambda: spent),))

    assert reached(Budget(), "x") is None
    assert reached(Budget(usd=5.0), "for w01") == "the limit of 5 USD for w01 is reached"
    assert reached(Budget(usd=2.5), "for the run main") == "the limit of 2.5 USD for the run main is reached"
    assert reached(Budget(minutes=2), "for w01") == "the limit of 2 minutes for w01 is reached"
    assert reached(Budget(evaluations=1), "for w01") == "the limit of 1 evaluation for w01 is reached"
    assert reached(Budget(tokens=100), "for a session") == "the limit of 100 tokens for a session is reached"
    assert reached(Budget(usd=6, turns=11, minutes=3, evaluations=4), "x") is None


def test_a_session_ends_at_the_second_reward_hack(site: Site) -> None:
    tools = cast("Tools", None)  # no tool is used here
    meter = Meter(site.workspace, Config(), "w01", "claude", "t/one")
    agent_tools = AgentTools(tools, target="cpu", axes={}, hide=str, meter=meter)
    governor = Governor((), Config().agent.per_session, meter, agent_tools)
    agent_tools.reward_hacks = 1
    assert governor.misbehaviour(Alive()) is None
    agent_tools.reward_hacks = 2
    assert governor.misbehaviour(Alive()) == "2 verdicts of REWARD_HACK"


def test_costs_are_shown_by_worker_and_problem(site: Site) -> None:
    write_account(site.workspace, account("a", usd=1.0))
    write_account(site.workspace, account("b", worker="w02", usd=2.0))
    shown = json.loads(site.call("status", "--costs", "--json").stdout)
    assert {row["worker"]: row["usd"] for row in shown["workers"]} == {"w01": 1.0, "w02": 2.0}
    assert shown["problems"][0]["usd_per_gain"] is None
    assert shown["total"][0]["turns"] == 4
    site.submit("w01", "t/one", "stub: speedup=1.5")
    site.call("daemon", "--once")
    text = site.call("status", "--costs").stdout
    assert "USD per gain" in text
    assert "3.0000" in text
