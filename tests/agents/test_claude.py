"""Claude as a worker, with the real SDK, CLI, sandbox and gateway; only the model is scripted."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.agents import agents_site as its
from tests.scripted_model import ModelRequest, Step, Use, scripted
from tests.site import Site, git


def test_a_session_edits_submits_and_reads_the_answer(site: Site) -> None:
    def script(request: ModelRequest) -> list[Step]:
        assert "t/one" in request.text
        return [
            *its.kernel("t/one", "stub: verdict=INCORRECT_NUMERICAL"),
            its.submit("first"),
            *its.kernel("t/one", "stub: speedup=1.5"),
            its.submit("second"),
        ]

    site.start("daemon")
    its.assign(site, its.row("t/one"))
    with scripted(script) as model:
        site.start("worker", "w01", "--agent", "claude", extra=its.environment(model))
        its.says(site, "has finished", its.finished("t/one"))
    first, second = [
        answer
        for answer in model.requests[-1].results
        if ("tried" not in answer and "x over" in answer) or "INCORRECT" in answer
    ]
    assert first.startswith("INCORRECT_NUMERICAL")
    assert second.startswith("PASSED 1.5")
    verdicts = its.verdicts(site)
    assert verdicts == ["INCORRECT_NUMERICAL", "PASSED"]
    assert "Agent: claude" in git(site.root, "log", "-1", "--format=%B", "agents/main/w01/t/one")
    assert model.keys == {its.KEY}
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
            return [*its.kernel("t/two", "stub: speedup=1.3"), its.submit("on the second")]
        return [*its.kernel("t/one", "half done"), *[its.bash(f"sleep 0.2; echo {n}") for n in range(300)]]

    site.start("daemon")
    its.assign(site, its.row("t/one"))
    with scripted(script) as model:
        site.start("worker", "w01", "--agent", "claude", extra=its.environment(model))
        its.says(site, "is in Bash", lambda status: "Bash" in status.last_message)
        its.assign(site, its.row("t/two"))
        its.says(site, "has finished the second", its.finished("t/two"))
        sessions = list(dict.fromkeys(request.session for request in model.requests))
    assert len(sessions) == 2
    assert "half done" in git(site.root, "show", "agents/main/w01/t/one:problems/t/one/solutions/cpu/kernel.cpp")
    assert "leaves t/one: interrupted" in its.log(site)


@pytest.mark.slow
def test_a_hook_that_raises_blocks_the_tool(site: Site, tmp_path: Path) -> None:
    """The input of Write is unreadable for its guard: the file must not appear."""
    path = its.solution_path("t/one")
    steps: list[Step] = [
        Use("Write", {"file_path": ["not", "a", "path"], "content": "x"}),
        its.bash(f"ls {path}; echo listed"),
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
    its.assign(site, its.row("t/one"))
    with scripted(lambda _: [its.write("t/one", "kernel.cpp", "x"), *steps, its.submit()]) as model:
        site.start_program([sys.executable, str(program)], extra=its.environment(model))
        its.says(site, "has finished", its.finished("t/one"))
        results = model.requests[-1].results
    assert not any("listed" in result for result in results)
    assert not (site.workspace.worktree("w01", "t/one") / "problems/t/one/solutions/cpu/kernel.cpp").exists()
    assert site.entries("t/one") == []


@pytest.mark.slow
def test_the_gateways_port_is_the_only_way_out(site: Site) -> None:
    ask = "curl -sS -m 5 -X POST http://127.0.0.1:8377/v1/messages -d '{}' -o /dev/null -w '%{http_code}'"
    its.assign(site, its.row("t/one"))
    with scripted(lambda _: [its.bash("ls /sys/class/net 2>&1; cat /proc/net/dev"), its.bash(ask)]) as model:
        site.start("worker", "w01", "--agent", "claude", extra=its.environment(model))
        its.says(site, "has finished", its.finished("t/one"))
        networks, reached = model.requests[-1].results[:2]
    assert "lo:" in networks
    assert "eth" not in networks
    assert reached == "200"
    assert model.keys == {its.KEY}
