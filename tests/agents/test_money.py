"""Spending: workers share the reservations for requests in flight, so that a run stays within its limit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from harness.agents.governor import SpendTracker, session_limits
from harness.agents.model_access.endpoint import Upstream
from harness.agents.model_access.gateway import Gateway
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.prices import DEFAULT_OUTPUT_TOKENS, TOKENS_PER_BYTE, RequestBounds
from harness.agents.model_access.request_budget import RequestBudget
from harness.errors import FormatError
from harness.git.repo import Repo
from harness.ledger.accounts import Account, Spent, present_time, set_aside, total, unrecorded_accounts, write_account
from harness.ledger.reservations import changing_reservations, new_reservation
from harness.model.config import Config, GatewayConfig, Price
from harness.workspace.directories import Workspace
from tests.agents import agents_site
from tests.scripted_model import ModelRequest, Say, ScriptedModel, Step, scripted
from tests.site import KERNEL, Site
from tests.waiting import wait_until

logger = logging.getLogger(__name__)

BODY = {"model": "claude-opus-4-5", "max_tokens": 8000, "messages": [{"role": "user", "content": "hi"}], "tools": [1]}
TWENTY_CENTS = Say(input_tokens=0, output_tokens=8000)


@dataclass
class Worker:
    """A session's gateway, as in a worker process, and a client in place of its agent."""

    gateway: Gateway
    directory: Path
    budget: RequestBudget

    def ask(self) -> tuple[int, str]:
        # A socket's path has at most 107 characters, and a test's directory may be deep.
        handle = os.open(self.directory, os.O_PATH)
        try:
            return asyncio.run(_post(Path(f"/proc/self/fd/{handle}/socket")))
        finally:
            os.close(handle)

    def ask_until_refused(self) -> tuple[int, str]:
        while True:
            status, text = self.ask()
            if status != 200:
                return status, text


async def _post(socket: Path) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as client,
        client.post("http://gateway/v1/messages", json=BODY) as answer,
    ):
        return answer.status, await answer.text()


@contextmanager
def at_work(site: Site, model: ScriptedModel, name: str, config: Config) -> Iterator[Worker]:
    workspace = site.workspace
    upstream = Upstream.of_environment({"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": agents_site.KEY})
    with Repo(workspace) as repo, Gateway(workspace, upstream, GatewayConfig()) as gateway:
        spend_tracker, meter = SpendTracker(workspace, repo, config), Meter(workspace, config, name, "claude", "t/one")
        budget = RequestBudget(meter, spend_tracker, session_limits(config, meter, spend_tracker, Spent()))
        directory = workspace.state / "agents" / name
        with closing(meter), closing(budget), gateway.serve(directory, budget, lambda: None):
            yield Worker(gateway, directory, budget)


def account_of(name: str, *, usd: float = 0.0) -> Account:
    return Account(
        id=f"account-{name}",
        run="main",
        worker=name,
        problem="t/one",
        session=f"session-{name}",
        agent="claude",
        began=present_time(),
        spent=Spent(usd=usd),
    )


def limited(usd: float) -> Config:
    return Config.model_validate({"agent": {"overall": {"usd": usd}}})


def reserved_usd(workspace: Workspace) -> float:
    with changing_reservations(workspace) as reservations:
        return sum(reservation.usd for reservation in reservations)


@pytest.mark.parametrize(
    ("workers", "takes_s"),
    [(4, 0.3), pytest.param(4, 3.0, marks=pytest.mark.slow), pytest.param(16, 3.0, marks=pytest.mark.slow)],
)
def test_a_run_ends_within_its_limit_however_many_workers_ask_at_once(site: Site, workers: int, takes_s: float) -> None:
    answer = Say(input_tokens=0, output_tokens=8000, takes_s=takes_s)
    config, names = limited(3.0), [f"w{number:02d}" for number in range(workers)]
    with scripted(lambda _: [answer] * 1000) as model, ThreadPoolExecutor(workers) as threads:

        def work(name: str) -> tuple[int, str]:
            with at_work(site, model, name, config) as worker:
                return worker.ask_until_refused()

        ends = [future.result() for future in [threads.submit(work, name) for name in names]]
    assert {status for status, _ in ends} == {400}
    assert all("of the 3 USD for the run main are left" in text for _, text in ends), ends
    spent = total(unrecorded_accounts(site.workspace))
    assert spent.turns == len(model.requests), "every answer is in an account"
    assert 2.75 < spent.usd <= 3.0
    assert reserved_usd(site.workspace) == 0


def test_a_request_waits_for_the_room_that_another_one_leaves(site: Site) -> None:
    """Two requests of up to 0.20 USD do not fit into 0.30 at once; the first answer costs 0.05."""
    may_answer = threading.Event()

    def cheap(_: ModelRequest) -> Say:
        assert may_answer.wait(60)
        return Say(input_tokens=0, output_tokens=2000)

    with (
        scripted(lambda _: [cheap] * 9) as model,
        at_work(site, model, "w01", limited(0.30)) as first,
        at_work(site, model, "w02", limited(0.30)) as second,
        ThreadPoolExecutor(2) as threads,
        ExitStack() as stack,
    ):
        stack.callback(may_answer.set)  # also when an assertion fails
        first_answer: Future[tuple[int, str]] = threads.submit(first.ask)
        wait_until(lambda: model.requests, event="the first request at the model")
        second_answer: Future[tuple[int, str]] = threads.submit(second.ask)
        reserve, looks = second.budget.reserve, 0

        def looking(body: bytes) -> object:
            nonlocal looks
            looks += 1
            return reserve(body)

        second.budget.reserve = looking  # type: ignore[method-assign, assignment]
        wait_until(lambda: looks >= 2, event="two looks for room")
        assert len(model.requests) == 1, "the other waits in its gateway"
        assert not second_answer.done()
        may_answer.set()
        assert (first_answer.result(60)[0], second_answer.result(60)[0]) == (200, 200)
    assert reserved_usd(site.workspace) == 0
    assert total(unrecorded_accounts(site.workspace)).usd == pytest.approx(0.10)


def test_reservations_of_a_dead_process_are_released(site: Site) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait(60)
    live = new_reservation(run="main", worker="w01", account="a", usd=1.0)
    with changing_reservations(site.workspace) as reservations:
        reservations += [live, live.model_copy(update={"id": "dead", "pid": dead.pid})]
    with changing_reservations(site.workspace) as reservations:
        assert [reservation.id for reservation in reservations] == [live.id]
    (site.workspace.state / "reservations.json").write_text("{")
    assert reserved_usd(site.workspace) == 0, "a broken file blocks no request"


def test_what_closed_sessions_spent_counts_before_the_ledger_is_read_again(site: Site) -> None:
    with Repo(site.workspace) as repo:
        spend_tracker = SpendTracker(site.workspace, repo, limited(3.0))
    write_account(site.workspace, account_of("w02", usd=2.0))
    spend_tracker.refresh()
    for account in (account_of("w02", usd=2.5), account_of("w03", usd=0.25)):
        closed = Account(**{**vars(account), "ended": present_time()})
        write_account(site.workspace, closed)
        set_aside(site.workspace, closed)
    spend_tracker.refresh()
    assert (spend_tracker.spent().usd, spend_tracker.spent("w03").usd) == (2.75, 0.25)


def test_a_requests_bound_follows_from_its_bytes_its_max_tokens_and_earlier_answers() -> None:
    bounds = RequestBounds({"priced": Price(input=8, output=100)})  # writing to the cache: 10 USD
    body = json.dumps({"model": "priced", "max_tokens": 1000, "messages": ["x" * 10_000]}).encode()
    first = bounds.bound(body)
    assert first.input_tokens == pytest.approx(len(body) * TOKENS_PER_BYTE, abs=1)
    assert first.output_tokens == 1000
    assert first.usd == pytest.approx(first.input_tokens * 10e-6 + 0.1)
    bounds.learn(len(body), Spent(input_tokens=5, cache_read_tokens=2900, cache_write_tokens=95))
    longer = json.dumps({"model": "priced", "max_tokens": 1000, "messages": ["x" * 10_000, "y" * 996]}).encode()
    assert bounds.bound(longer).input_tokens == pytest.approx(3000 + 1000 * TOKENS_PER_BYTE, abs=1)
    short = json.dumps({"model": "priced"}).encode()
    bound = bounds.bound(short)
    assert bound.input_tokens == pytest.approx(len(short) * TOKENS_PER_BYTE, abs=1)
    assert bound.output_tokens == DEFAULT_OUTPUT_TOKENS
    bounds.learn(len(body), Spent(input_tokens=2 * len(body)))
    assert bounds.bound(short).input_tokens >= 2 * len(short), "text with more tokens than expected"
    with pytest.raises(FormatError, match="the request: not a JSON object"):
        bounds.bound(b"[]")


def script(request: ModelRequest) -> list[Step]:
    """Return steps that submit different kernels until the money is spent, at 0.20 USD per submission."""
    problem = "t/one" if "Assignment: problem t/one," in request.text else "t/two"
    specification, *_ = agents_site.kernel(problem, "")
    steps = [specification]
    for number in range(100):
        kernel = agents_site.write(problem, "kernel.cpp", f"{KERNEL}// {request.session} {number} stub: speedup=1.5\n")
        steps += [kernel, replace(agents_site.submit(), input_tokens=0, output_tokens=8000, takes_s=3.0)]
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("workers", [4, 16])
def test_harness_start_stays_within_its_limit_and_judges_what_was_paid_for(site: Site, workers: int) -> None:
    agents_site.configure(site, "agent: {kind: claude, model: claude-opus-4-5, max_answer_tokens: 8000}")
    options = ("start", "--device", "cpu", "--workers", str(workers), "--max-usd", "3")
    with scripted(script) as model:
        run = site.run(*options, extra=agents_site.environment(model), deadline_s=480)
        answers = len(model.requests)
    assert run.returncode == 0, run.stdout
    assert "of the 3 USD for the run main are left" in run.stdout
    assert "next: `harness review`" in run.stdout
    assert "pending:" not in run.stdout
    costs = json.loads(site.call("status", "--costs", "--json").stdout)["total"][0]
    submitted = {tree for branch in agents_site.branches(site) for tree in agents_site.submitted_trees(site, branch)}
    judged = {entry.candidate.tree for entry in site.entries() if entry.candidate}
    of_ledger = f"{len(submitted)} submissions, {len(judged)} of them judged, {len(site.entries())} entries"
    figures = f"{answers} answers, {of_ledger}"
    logger.info("%d workers: %.2f USD, %s", workers, costs["usd"], figures)  # shown by --log-cli-level=INFO
    assert 2.0 < costs["usd"] <= 3.05
    assert submitted
    assert submitted == judged
    assert costs["usd"] == pytest.approx(sum(agents_site.accounts_usd(site)), abs=1e-3)
    assert unrecorded_accounts(site.workspace) == [], "all accounts are in the ledger"
    audit = site.call("audit")
    assert audit.returncode == 0, audit.stdout
    site.no_strays()
