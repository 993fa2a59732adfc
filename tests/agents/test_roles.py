"""Subagents by role, with the real SDK and CLI: their requests use the same gateway and the same account."""

from __future__ import annotations

import pytest

from tests.agents import agents_site
from tests.scripted_model import ModelRequest, Say, Step, Use, scripted
from tests.site import Site

ROLES = """
agent:
  kind: claude
  model: claude-opus-4-7
  roles:
    reader:
      description: Reads sources and states in one line what they do.
      prompt: You read kernels and answer in one line.
      model: claude-haiku-4-5
      tools: [Read, docs]
"""


def delegate(request: ModelRequest) -> Use:
    """Return one use of the CLI's tool for subagents, whose name depends on the version."""
    (tool,) = {tool["name"] for tool in request.body["tools"]} & {"Agent", "Task"}
    return Use(tool, {"description": "read", "prompt": "what does the kernel do?", "subagent_type": "reader"})


@pytest.mark.slow
def test_a_subagent_has_its_own_model_and_tools_and_the_sessions_account(site: Site) -> None:
    def script(_: ModelRequest) -> list[Step]:
        return [delegate, Say("it adds one"), Say("Done.")]

    agents_site.configure(site, ROLES)
    agents_site.assign(site, agents_site.row("t/one"))
    with scripted(script) as model:
        site.start("worker", "w01", extra=agents_site.environment(model))
        agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
    (of_reader,) = [
        request for request in model.requests if "You read kernels and answer" in str(request.body.get("system"))
    ]
    assert "haiku-4-5" in of_reader.body["model"]
    names = {tool["name"] for tool in of_reader.body["tools"]}
    assert {"Read", "mcp__harness__docs"} <= names
    assert not names & {"mcp__harness__submit", "Write", "Bash"}
    assert any("it adds one" in result for request in model.requests for result in request.results), (
        "the answer came back"
    )
    assert model.keys == {agents_site.KEY}
    shown = site.call("transcript", "w01").stdout
    assert f"{len(model.requests)} answers" in shown.splitlines()[-1], "every answer is in the account"
