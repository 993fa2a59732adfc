"""The planner with a model: valid proposals are applied; if the model is wrong, slow or absent, the policy decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import yaml

from harness.git.repo import Repo
from harness.ledger.accounts import all_accounts, total
from harness.ledger.coordination import read_assignments
from tests.agents import agents_site
from tests.scripted_model import Fail, Hang, ModelRequest, Say, ScriptedModel, Step, Use, scripted
from tests.site import Site, git
from tests.waiting import wait_until

WORKERS = ("--worker", "w01", "--worker", "w02")


def propose(**rows: str) -> Use:
    table = [{"worker": w, "problem": p, "wanted": "vectorise", "reason": f"{p} suits {w}"} for w, p in rows.items()]
    return Use("mcp__harness__propose", {"assignments": table})


def plan(
    site: Site, script: Callable[[ModelRequest], Sequence[Step]], *, deadline_s: float = 60.0
) -> tuple[dict[str, str], list[str], ScriptedModel]:
    """Run a planner until its first table; return the table, the policy of each decision, and the model."""
    agents_site.configure(
        site, f"planner: {{kind: claude, deadline_s: {deadline_s}}}\nagent: {{gateway: {{hold_s: 1.0}}}}"
    )
    with scripted(script) as model:
        planner = site.start("planner", *WORKERS, extra=agents_site.environment(model))
        with Repo(site.workspace) as repo:
            wait_until(lambda: read_assignments(repo, "main"), event="a table")
            table = {row.worker: row.problem for row in read_assignments(repo, "main")}
        planner.terminate()
        output, _ = planner.communicate(timeout=120)
        assert planner.returncode == 0, output
    decisions = list(yaml.safe_load_all(git(site.root, "show", "main:ledger/decisions.yaml")))
    return table, [decision["policy"] for decision in decisions], model


def test_a_proposal_is_corrected_from_the_tools_answer_and_taken(site: Site) -> None:
    steps: list[Step] = [propose(w01="t/two", w02="t/two"), propose(w01="t/two", w02="t/one"), Say()]
    table, by, model = plan(site, lambda _: steps)
    assert table == {"w01": "t/two", "w02": "t/one"}
    assert by[0].startswith("claude: ")
    assert "t/two has 2 workers while t/one has none" in model.requests[1].last_result
    text = git(site.root, "show", "main:COORDINATION.md")
    assert "planner: t/two suits w01" in text
    assert "| vectorise |" in text
    with Repo(site.workspace) as repo:
        accounts = [account for account in all_accounts(site.workspace, repo, "main") if account.worker == "planner"]
    assert total(accounts).turns == len(model.requests), "recorded or not yet recorded"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Say("I have no opinion.")], marks=pytest.mark.slow, id="silent"),
        pytest.param([propose(w01="t/nowhere", w02="t/one")] * 20, marks=pytest.mark.slow, id="wrong"),
        pytest.param(
            [Use("mcp__harness__propose", {"assignments": "all"})] * 20, marks=pytest.mark.slow, id="malformed"
        ),
        pytest.param([Hang()], marks=pytest.mark.slow, id="slow"),
        pytest.param([Fail(401, times=9)], marks=pytest.mark.slow, id="refused"),
        pytest.param([Fail(529, times=99)], marks=pytest.mark.slow, id="overloaded"),
    ],
)
def test_the_policy_decides_without_a_proposal_that_holds(site: Site, steps: list[Step]) -> None:
    table, by, _ = plan(site, lambda _: steps, deadline_s=5.0)
    assert table == {"w01": "t/one", "w02": "t/two"}
    assert by[0].startswith("gain-bandit")
