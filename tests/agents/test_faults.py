"""Failures of the model API and of the agent, each with the real CLI: no work is lost, and every session ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.agents.model_access import api_backoff
from harness.ledger.accounts import total, unrecorded_accounts
from tests.agents import agents_site
from tests.scripted_model import Drop, Fail, Hang, ModelRequest, Say, ScriptedModel, Step, Use, scripted
from tests.site import Site
from tests.waiting import wait_until

NAP = "python3 -c 'import time; time.sleep(300)'"
"""Longer than any test; the CLI does not run a bare `sleep`."""
QUICK = "agent: {gateway: {first_s: 0.2, longest_s: 1.0, hold_s: 3.0, idle_s: 2.0}}"


@contextmanager
def at_work(
    site: Site, script: Callable[[ModelRequest], Sequence[Step]], settings: str = QUICK, *, daemon: bool = True
) -> Iterator[tuple[ScriptedModel, subprocess.Popen[str]]]:
    """Run one Claude worker on t/one with a script."""
    agents_site.configure(site, settings)
    if daemon:
        site.start("daemon")
    agents_site.assign(site, agents_site.row("t/one"))
    with scripted(script) as model:
        yield model, site.start("worker", "w01", "--agent", "claude", extra=agents_site.environment(model))


def wait_for_end(site: Site) -> None:
    agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))


def steps_to_pass(*before: Step) -> list[Step]:
    """Return the steps, followed by those of a kernel that passes."""
    return [*before, *agents_site.kernel("t/one", "stub: speedup=1.5"), agents_site.submit()]


@pytest.mark.slow
def test_a_short_rate_limit_only_delays_the_session(site: Site) -> None:
    with at_work(site, lambda _: steps_to_pass(Fail(429, retry_after="1", times=2))) as (model, _):
        wait_for_end(site)
        assert len({request.session for request in model.requests}) == 1
        assert model.requests[2].at - model.requests[0].at >= 2.0, "the wait that the model API requested"
    assert agents_site.verdicts(site) == ["PASSED"]
    assert "all workers wait 1 s" in agents_site.log(site)
    assert "api_retry" not in agents_site.log(site)


@pytest.mark.slow
def test_a_long_rate_limit_pauses_the_session_which_is_resumed_by_its_id(site: Site) -> None:
    with at_work(site, lambda _: steps_to_pass(Fail(429, retry_after="6"))) as (model, _):
        agents_site.wait_for_status(site, "waits", lambda status: status.state == "waiting for the model")
        assert 3.0 < api_backoff.read_backoff(site.workspace).wait_s() <= 6.0
        wait_for_end(site)
        assert len({request.session for request in model.requests}) == 1, "resumed, not started again"
    assert agents_site.verdicts(site) == ["PASSED"]


@pytest.mark.slow
def test_an_overload_backs_off_and_an_exhausted_one_pauses(site: Site) -> None:
    with at_work(site, lambda _: steps_to_pass(Fail(529, times=8))) as (model, _):
        agents_site.wait_for_status(site, "waits", lambda status: status.state == "waiting for the model")
        wait_for_end(site)
        waits = [b.at - a.at for a, b in zip(model.requests[:8], model.requests[1:9], strict=True)]
    assert waits[0] < waits[1] < waits[2], "each wait is longer than the one before"
    assert agents_site.verdicts(site) == ["PASSED"]
    assert api_backoff.read_backoff(site.workspace).failures == 0


@pytest.mark.slow
def test_a_refused_credential_stops_the_worker_with_a_sentence(site: Site) -> None:
    with at_work(site, lambda _: [Fail(401, times=100, kind="authentication_error")]) as (model, worker):
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 2, output
        assert "refuses the credential (401)" in output
        assert "export a valid key" in output
        assert len(model.requests) == 1, "one request, not many"
    assert api_backoff.read_backoff(site.workspace).stopped


@pytest.mark.slow
def test_a_dropped_stream_is_requested_again_and_both_requests_are_paid(site: Site) -> None:
    with at_work(site, lambda _: steps_to_pass(Drop())) as (model, _):
        wait_for_end(site)
        answers = len(model.requests)
    assert agents_site.verdicts(site) == ["PASSED"]
    assert total(unrecorded_accounts(site.workspace)).turns == answers


@pytest.mark.slow
def test_a_hanging_model_is_given_up_after_the_idle_time(site: Site) -> None:
    with at_work(site, lambda _: steps_to_pass(Hang())):
        wait_for_end(site)
    assert agents_site.verdicts(site) == ["PASSED"]
    assert "cannot be reached" in agents_site.log(site)


@pytest.mark.slow
def test_an_outage_pauses_and_does_not_fail(site: Site) -> None:
    agents_site.configure(site, QUICK)
    agents_site.assign(site, agents_site.row("t/one"))
    site.start("daemon")
    with scripted(lambda _: steps_to_pass()) as model:
        unreachable = {**agents_site.environment(model), "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
        worker = site.start("worker", "w01", "--agent", "claude", extra=unreachable)
        agents_site.wait_for_status(site, "waits", lambda status: status.state == "waiting for the model")
        worker.terminate()
        worker.communicate(timeout=120)
        site.start("worker", "w01", "--agent", "claude", extra=agents_site.environment(model))
        wait_for_end(site)
    assert agents_site.verdicts(site) == ["PASSED"]


@pytest.mark.slow
def test_malformed_tool_input_is_answered_and_the_session_goes_on(site: Site) -> None:
    def script(_: ModelRequest) -> list[Step]:
        wrong = Use("mcp__harness__submit", raw='{"message": "cut')
        return steps_to_pass(wrong, Use("mcp__harness__submit", {"message": 3}), Use("mcp__harness__nothing", {}))

    with at_work(site, script):
        wait_for_end(site)
    assert agents_site.verdicts(site) == ["PASSED"]


def cli_of(site: Site) -> int:
    """Return the pid of the CLI's process."""

    def find() -> int | None:
        for pid, command in agents_site.processes_below(*(process.pid for process in site.processes)):
            if "stream-json" in command and "bwrap" not in command and "relay.py" not in command:
                return pid
        return None

    return wait_until(find, event="the CLI")


@pytest.mark.slow
def test_a_killed_cli_is_resumed_with_its_work_and_its_money(site: Site) -> None:
    def script(_: ModelRequest) -> list[Step]:
        return [*agents_site.kernel("t/one", "stub: speedup=1.5"), agents_site.bash(NAP), agents_site.submit()]

    with at_work(site, script) as (model, _):
        wait_until(lambda: len(model.requests) == 3, event="the third turn")
        agents_site.wait_for_status(site, "is in Bash", lambda status: "time.sleep" in status.last_message)
        os.kill(cli_of(site), signal.SIGKILL)
        wait_for_end(site)
        assert len({request.session for request in model.requests}) == 1
        answers = len(model.requests)
    assert agents_site.verdicts(site) == ["PASSED"]
    parts = unrecorded_accounts(site.workspace)
    assert len(parts) == 2
    assert total(parts).turns == answers


@pytest.mark.slow
def test_a_killed_harness_leaves_no_process_and_resumes(site: Site) -> None:
    def script(_: ModelRequest) -> list[Step]:
        return [
            *agents_site.kernel("t/one", "stub: speedup=1.5"),
            agents_site.bash(f"{NAP} & {NAP}"),
            agents_site.submit(),
        ]

    with at_work(site, script) as (model, worker):
        agents_site.wait_for_status(site, "is in Bash", lambda status: "time.sleep" in status.last_message)
        wait_until(
            lambda: sum("time.sleep" in c and "bash" not in c for _, c in agents_site.processes_below(worker.pid)) >= 2,
            event="both naps",
        )
        before = [pid for pid, _ in agents_site.processes_below(worker.pid)]
        spent = total(unrecorded_accounts(site.workspace))
        worker.kill()
        wait_until(lambda: not any(_alive(pid) for pid in before), event="the end of the sandbox")
        assert total(unrecorded_accounts(site.workspace)).usd == spent.usd > 0
        site.start("worker", "w01", "--agent", "claude", extra=agents_site.environment(model))
        wait_for_end(site)
        assert len({request.session for request in model.requests}) == 1
    assert agents_site.verdicts(site) == ["PASSED"]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("settings", "script", "reason"),
    [
        ("{turns: 3, repeats: 50}", [agents_site.bash(f"echo {n}") for n in range(20)], "3 turns"),
        pytest.param(
            "{usd: 2}",
            [Use("Bash", {"command": f"echo {n}"}, output_tokens=12_000) for n in range(20)],
            "of the 2 USD for a session are left",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "{tokens: 500}", [agents_site.bash(f"echo {n}") for n in range(20)], "500 tokens", marks=pytest.mark.slow
        ),
        pytest.param(
            "{repeats: 4}",
            [agents_site.bash("ls")] * 20,
            "4 consecutive uses of one tool with the same input",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "{duplicates: 2}",
            [*agents_site.kernel("t/one", "stub: speedup=1.5"), *[agents_site.submit(f"{n}") for n in range(9)]],
            "2 consecutive submissions of solutions that were submitted before",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "{silence_minutes: 0.03}", [agents_site.bash(NAP)], "no output of the agent for", marks=pytest.mark.slow
        ),
    ],
    ids=["turns", "usd", "tokens", "repeats", "duplicates", "silence"],
)
def test_a_governor_ends_the_session(site: Site, settings: str, script: list[Step], reason: str) -> None:
    with at_work(site, lambda _: script, f"agent: {{model: claude-opus-4-5, per_session: {settings}}}") as (model, _):
        wait_for_end(site)
        assert len(model.requests) < 12
    assert reason in agents_site.log(site)


@pytest.mark.slow
def test_an_agent_that_ends_twice_without_a_submission_is_done(site: Site) -> None:
    with at_work(site, lambda _: [Say("I am thinking.")] * 9, daemon=False) as (model, _):
        wait_for_end(site)
        assert len(model.requests) == 2
    assert "the agent is done, after 0 submissions" in agents_site.log(site)
    assert agents_site.verdicts(site) == []


@pytest.mark.slow
def test_a_flood_of_output_is_cut_and_survived(site: Site) -> None:
    flood = agents_site.bash("yes flood | head -c 300000000")
    with at_work(site, lambda _: steps_to_pass(flood, Say("x" * 3_000_000))) as (model, _):
        wait_for_end(site)
        assert max(len(result) for result in model.requests[-1].results) < 100_000
    assert agents_site.log(site).count("\n") < 500


@pytest.mark.slow
def test_a_limit_below_one_request_is_an_error_that_names_both(site: Site) -> None:
    agents_site.configure(site, "agent: {kind: claude, model: claude-opus-4-5, overall: {usd: 0.5}}")
    with scripted(lambda _: [agents_site.bash("echo 1")]) as model:
        run = site.run(
            "start", "--device", "cpu", "--workers", "2", extra=agents_site.environment(model), deadline_s=120
        )
    assert run.returncode == 2, run.stdout
    assert "no request to the model was made, so nothing was evaluated: 0.50 of the 0.5 USD" in run.stdout
    assert "agent.max_answer_tokens" in run.stdout, "the fix"
    assert model.requests == []
    assert total(unrecorded_accounts(site.workspace)).usd == 0
