"""Claude as a worker, with the real SDK, CLI, sandbox and gateway; only the model is scripted."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal
from unittest import mock

import claude_agent_sdk as sdk
import pytest

from harness.agents import claude
from harness.agents.governor import Governor
from harness.agents.session import Answer, End, Tool
from harness.model.config import SessionBudget
from tests.agents import agents_site
from tests.scripted_model import ModelRequest, Step, Use, scripted
from tests.site import Site, git


def test_a_session_edits_submits_and_reads_the_answer(site: Site) -> None:
    def script(request: ModelRequest) -> list[Step]:
        assert "t/one" in request.text
        return [
            *agents_site.kernel("t/one", "stub: verdict=INCORRECT_NUMERICAL"),
            agents_site.submit("first"),
            *agents_site.kernel("t/one", "stub: speedup=1.5"),
            agents_site.submit("second"),
        ]

    site.start("daemon")
    agents_site.assign(site, agents_site.row("t/one"))
    with scripted(script) as model:
        site.start("worker", "w01", "--agent", "claude", extra=agents_site.environment(model))
        agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
    first, second = [
        answer
        for answer in model.requests[-1].results
        if ("tried" not in answer and "x over" in answer) or "INCORRECT" in answer
    ]
    assert first.startswith("INCORRECT_NUMERICAL")
    assert second.startswith("PASSED 1.5")
    verdicts = agents_site.verdicts(site)
    assert verdicts == ["INCORRECT_NUMERICAL", "PASSED"]
    assert "Agent: claude" in git(site.root, "log", "-1", "--format=%B", "agents/main/w01/t/one")
    assert model.keys == {agents_site.KEY}
    shown = site.call("transcript", "w01").stdout
    assert re.search(r"^session [0-9a-f-]{36} of w01 on t/one \(claude, ", shown)
    assert re.search(r"^\d\d:\d\d:\d\d  prompt    Assignment: problem t/one, target cpu", shown, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d  tool      submit message=second   \[0\.0010 USD\]$", shown, re.MULTILINE)
    assert re.search(r"result!   INCORRECT_NUMERICAL", shown)
    assert re.search(
        r"^ended: 0\.\d{4} USD, \d+ answers, \d+ tokens read, \d+ written, 2 evaluations$", shown, re.MULTILINE
    )


def test_a_worker_that_is_moved_leaves_at_a_turns_end_with_its_work_saved(site: Site) -> None:
    def script(request: ModelRequest) -> list[Step]:
        if "problem t/two," in request.text:
            return [*agents_site.kernel("t/two", "stub: speedup=1.3"), agents_site.submit("on the second")]
        return [
            *agents_site.kernel("t/one", "half done"),
            *[agents_site.bash(f"sleep 0.2; echo {n}") for n in range(300)],
        ]

    site.start("daemon")
    agents_site.assign(site, agents_site.row("t/one"))
    with scripted(script) as model:
        site.start("worker", "w01", "--agent", "claude", extra=agents_site.environment(model))
        agents_site.wait_for_status(site, "is in Bash", lambda status: "Bash" in status.last_message)
        agents_site.assign(site, agents_site.row("t/two"))
        agents_site.wait_for_status(site, "has finished the second", agents_site.finished("t/two"))
        sessions = list(dict.fromkeys(request.session for request in model.requests))
    assert len(sessions) == 2
    assert "half done" in git(site.root, "show", "agents/main/w01/t/one:problems/t/one/solutions/cpu/kernel.cpp")
    assert "leaves t/one: interrupted" in agents_site.log(site)


def test_a_tool_is_not_used_after_its_conversation_was_cancelled() -> None:
    use = mock.Mock(return_value=Answer("submitted"))
    usual, cancelled, waiting, late = (claude._Call(Tool("submit", "Submit.", {}, use), {}) for _ in range(4))  # noqa: SLF001
    usual.make()
    assert usual.answer.result(0.0).text == "submitted"
    for call in (cancelled, waiting):
        call.answer.cancel()
    cancelled.make()
    waiting.refuse()
    late.refuse()
    assert late.answer.result(0.0).failed
    use.assert_called_once_with({})


def test_the_text_of_a_failure_does_not_decide_how_a_session_ended() -> None:
    message = sdk.ResultMessage(
        subtype="error_during_execution",
        duration_ms=1,
        duration_api_ms=1,
        is_error=True,
        num_turns=1,
        session_id="s",
        result="cannot read a file that contains: the harness ends this session",
    )
    end = claude._end_of_turn(message, interrupted=False)  # noqa: SLF001
    assert end is not None
    assert end.reason == "failed"


@pytest.mark.parametrize(
    ("reason", "limit", "expected"),
    [
        ("failed", "5 USD are spent", End("budget", "5 USD are spent")),
        ("failed", None, End("failed", "text")),
        ("done", "5 USD are spent", End("done", "text")),
    ],
)
def test_a_session_that_fails_after_a_limit_ended_at_the_limit(
    reason: Literal["failed", "done"], limit: str | None, expected: End
) -> None:
    agent_tools, meter = mock.Mock(), mock.Mock()
    governor = Governor((), SessionBudget(), meter, agent_tools, lambda: limit)
    assert governor.end_at_limit(End(reason, "text")) == expected


@pytest.mark.slow
def test_a_hook_that_raises_blocks_the_tool(site: Site, tmp_path: Path) -> None:
    """The input of Write is unreadable for its guard: the file must not appear."""
    path = agents_site.solution_path("t/one")
    steps: list[Step] = [
        Use("Write", {"file_path": ["not", "a", "path"], "content": "x"}),
        agents_site.bash(f"ls {path}; echo listed"),
    ]
    program = tmp_path / "broken.py"
    program.write_text(
        "import sys\n"
        "from harness.agents.claude import ClaudeSession\n"
        "async def broken(self, *arguments):\n"
        "    raise RuntimeError('the hook is broken')\n"
        "ClaudeSession._before_tool = broken\n"
        "from harness.__main__ import main\n"
        "sys.argv = ['harness', 'worker', 'w01', '--agent', 'claude']\n"
        "main()\n"
    )
    agents_site.assign(site, agents_site.row("t/one"))
    with scripted(lambda _: [agents_site.write("t/one", "kernel.cpp", "x"), *steps, agents_site.submit()]) as model:
        site.start_program([sys.executable, str(program)], extra=agents_site.environment(model))
        agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
        results = model.requests[-1].results
    assert not any("listed" in result for result in results)
    assert not (site.workspace.worktree("w01", "t/one") / "problems/t/one/solutions/cpu/kernel.cpp").exists()
    assert site.entries("t/one") == []


@pytest.mark.slow
def test_the_gateways_port_is_the_only_way_out(site: Site) -> None:
    ask = "curl -sS -m 5 -X POST http://127.0.0.1:8377/v1/messages -d '{}' -o /dev/null -w '%{http_code}'"
    agents_site.assign(site, agents_site.row("t/one"))
    with scripted(
        lambda _: [agents_site.bash("ls /sys/class/net 2>&1; cat /proc/net/dev"), agents_site.bash(ask)]
    ) as model:
        site.start("worker", "w01", "--agent", "claude", extra=agents_site.environment(model))
        agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
        networks, reached = model.requests[-1].results[:2]
    assert "lo:" in networks
    assert "eth" not in networks
    assert reached == "200"
    assert model.keys == {agents_site.KEY}
