"""From champions to merges: review, pull requests, a person's merges, proofs, and a ledger that grows meanwhile."""

from __future__ import annotations

import json
import re

from tests.report.conftest import PROBLEMS, Story
from tests.site import git


def test_the_story(story: Story) -> None:
    """One test, since each part continues from the previous one."""
    a_review_has_all_facts(story)
    the_review_of_a_branch_has_its_warnings_and_earlier_attempts(story)
    each_champion_becomes_a_branch_and_the_ledger_goes_first(story)
    a_second_pull_request_changes_nothing(story)
    the_champions_are_proved(story)
    a_person_merges_one_by_rebase_and_one_by_squash(story)
    the_ledger_grows_and_stays_valid(story)
    a_newer_champion_is_reported_and_replaces_on_request(story)
    a_pull_request_without_a_confirmed_entry_fails(story)


def pull(story: Story, problem: str, *options: str) -> dict[str, object]:
    completed = story.site.call("pr", problem, "--json", *options)
    assert completed.returncode == 0, completed.stdout
    result: dict[str, object] = json.loads(completed.stdout)
    return result


def a_review_has_all_facts(story: Story) -> None:
    completed = story.site.call("review", "t/one")
    assert completed.returncode == 0, completed.stdout
    for part in (
        "t/one for cpu",
        "candidate ",
        "confirmation of seq",
        "stands now none",
        "worker     w01",
        "PASSED: 1.50",
        "+// stub: speedup=1.5",
    ):
        assert part in completed.stdout, part
    narrow = story.site.call("review", "t/one", "--no-diff", extra={"COLUMNS": "80"}).stdout
    tables = narrow[narrow.index("workload") :].splitlines()
    assert max(len(line) for line in tables if not line.startswith(("PASSED", "warning"))) <= 80
    assert re.search(r"^t/one-0 .* 1\.4\d\d to 1\.5\d\d", narrow, re.MULTILINE), "the interval stays"
    waiting = json.loads(story.site.call("review", "--json").stdout)
    assert [row["problem"] for row in waiting] == ["t/two", "t/one", "t/three"]  # the fastest first


def the_review_of_a_branch_has_its_warnings_and_earlier_attempts(story: Story) -> None:
    output = story.site.call("review", "agents/main/w05/t/one", "--no-diff").stdout
    assert "warning: kernel.cpp compares with 128, sizes of the workloads: shapes may be special-cased" in output
    assert "not confirmed: this is its only measurement" in output
    assert "INCORRECT_NUMERICAL" in output.partition("tried before")[2]
    assert "+// if" not in output
    suspect = story.site.call("review", "agents/main/w04/t/three").stdout
    assert "warning: SUSPECT, held for a person: the stub was asked for this verdict" in suspect


def each_champion_becomes_a_branch_and_the_ledger_goes_first(story: Story) -> None:
    for problem in PROBLEMS:
        result = pull(story, problem)
        assert (result["branch"], result["made"], result["remote"]) == (f"win/main/{problem}", True, "origin")
        branch, place = str(result["branch"]), f"problems/{problem}/solutions/cpu"
        assert git(story.remote, "rev-parse", f"{branch}:{place}") == story.champions[problem].tree
        assert git(story.remote, "rev-parse", "main") == story.git("rev-parse", "main")
        assert story.git("rev-list", "--count", f"main..{branch}") == "1"
        names = story.git("diff", "--name-only", "main", branch).split()
        assert sorted(names) == [f"{place}/kernel.cpp", f"{place}/solution.yaml"]
        body = story.git("log", "-1", "--format=%B", branch)
        seq, digest = result["seq"], result["hash"]
        assert f"Ledger-Entry: ledger/{problem}.yaml seq {seq} {digest}" in body
        assert f"harness evaluate problems/{problem}/solutions/cpu --device cpu" in body
        assert "| workload | latency us |" in body
        trailers = story.git("log", "-1", "--format=%(trailers:key=Solution-Tree,valueonly)", branch)
        assert trailers == story.champions[problem].tree
    assert git(story.site.root, "status", "--porcelain") == ""


def a_second_pull_request_changes_nothing(story: Story) -> None:
    before = story.git("rev-parse", "win/main/t/one")
    result = pull(story, "t/one")
    assert (result["made"], result["commit"]) == (False, before)


def the_champions_are_proved(story: Story) -> None:
    for problem in PROBLEMS:
        completed = story.site.call("proof", f"main..win/main/{problem}")
        assert completed.returncode == 0, completed.stdout
        assert f"proved: {problem} for cpu, tree {story.champions[problem].tree[:12]}" in completed.stdout
    comment = story.site.call("proof", "main..win/main/t/two", "--markdown").stdout
    assert comment.startswith("### The ledger proves this merge")
    assert "| workload | latency us |" in comment


def a_person_merges_one_by_rebase_and_one_by_squash(story: Story) -> None:
    git(story.remote.parent, "clone", "--quiet", str(story.remote), str(story.clone))
    # The ledger grows meanwhile, so that the rebase has commits to move.
    story.site.submit("w02", "t/two", "stub: speedup=1.9")
    assert story.site.call("daemon", "--once").returncode == 0
    story.git("push", "--quiet", "origin", "main")
    story.person("pull", "--quiet", "--ff-only")
    story.person("switch", "--quiet", "win/main/t/one")
    story.person("rebase", "--quiet", "main")
    story.person("switch", "--quiet", "main")
    story.person("merge", "--quiet", "--ff-only", "win/main/t/one")
    story.person("merge", "--quiet", "--squash", "origin/win/main/t/two")
    story.person("commit", "--quiet", "-m", "Merge a kernel (#2)")
    story.person("push", "--quiet", "origin", "main")
    story.git("pull", "--quiet", "--no-rebase", "origin", "main")
    for problem in ("t/one", "t/two"):
        assert story.git("rev-parse", f"main:problems/{problem}/solutions/cpu") == story.champions[problem].tree
        result = pull(story, problem)
        assert result["branch"] is None
        assert "already has this solution" in str(result["notes"])


def the_ledger_grows_and_stays_valid(story: Story) -> None:
    story.site.submit("w01", "t/three", "stub: speedup=1.4")
    assert story.site.call("daemon", "--once").returncode == 0
    completed = story.site.call("audit")
    assert completed.returncode == 0, completed.stdout
    honest = story.site.call("proof", "main..win/main/t/three")
    assert honest.returncode == 0, honest.stdout
    assert "note: a newer champion exists" in honest.stdout


def a_newer_champion_is_reported_and_replaces_on_request(story: Story) -> None:
    before = story.git("rev-parse", "win/main/t/three")
    completed = story.site.call("pr", "t/three")
    assert completed.returncode == 1
    assert "has the champion of seq" in completed.stdout
    assert "a newer champion exists" in completed.stdout
    result = pull(story, "t/three", "--replace")
    assert result["made"]
    assert story.git("rev-parse", f"refs/harness/replaced/win/main/t/three/{before}") == before
    assert git(story.remote, "rev-parse", "win/main/t/three") == result["commit"]
    assert story.site.call("proof", "main..win/main/t/three").returncode == 0


def a_pull_request_without_a_confirmed_entry_fails(story: Story) -> None:
    completed = story.site.call("pr", "t/never")
    assert completed.returncode == 1
    assert "t/never for cpu in run main has no confirmed entry" in completed.stdout
    assert story.site.call("pr", "t/nowhere").returncode == 2
    definition = story.site.root / "problems/t/three/definition.json"
    definition.write_text(definition.read_text().replace("adds one", "adds one, exactly"))
    story.git("commit", "--quiet", "-am", "Say it better")
    completed = story.site.call("pr", "t/three")
    assert completed.returncode == 1
    assert "every entry of t/three for cpu in run main is of an earlier form of the problem" in completed.stdout
