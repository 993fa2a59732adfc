"""`harness report`: the page follows from the ledger, and is one file without external resources."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.entry import EntryDraft
from harness.model.judging import Cost, JudgeStage
from harness.report import problem_summary
from harness.report.collect import collect
from harness.report.page import render
from harness.workspace.directories import Workspace
from tests.cli.test_audit import harness
from tests.ledger.ledgers import PROBLEM, draft, git, make_workspace
from tests.report.big_run import make_run
from tests.site import site_in
from tests.whole_entries import whole_entries

Json = dict[str, Any]


def data_of(page: str) -> Json:
    """Return the data in a page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    data: Json = json.loads(match[1])
    return data


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_run(tmp_path_factory.mktemp("run") / "a workspace", problems=9, entries=260, days=2, workers=3)


@pytest.fixture(scope="module")
def page(workspace: Workspace) -> str:
    git(workspace.root, "remote", "add", "origin", "git@github.com:o/kernels.git")
    completed = harness(workspace.root, "report", "-o", "out/report.html")
    assert completed.returncode == 0, completed.stderr
    assert "9 problems; open it in a browser" in completed.stdout
    return (workspace.root / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        (("report", "--run", "nope"), "the ledger has no entries of run nope", "runs with entries: main"),
        (("report", "--target", "h300"), "entries of run main for the target h300", "targets with entries: h200"),
        (("review", "--run", "nope"), "the ledger has no entries of run nope", "runs with entries: main"),
        (("review", "--target", "h300"), "entries of run main for the target h300", "targets with entries: h200"),
    ],
)
def test_a_run_or_target_without_entries_is_an_answer_of_no_and_replaces_no_report(
    workspace: Workspace, arguments: tuple[str, ...], message: str, fix: str
) -> None:
    report = workspace.root / "report.html"
    report.write_text("the last one")
    completed = harness(workspace.root, *arguments)
    assert completed.returncode == 1
    error, remedy = completed.stderr.splitlines()
    assert error.endswith(message)
    assert remedy.strip() == fix
    assert report.read_text() == "the last one"


def test_a_report_before_the_first_entry_is_written(tmp_path: Path) -> None:
    place = make_workspace(tmp_path / "w")
    assert harness(place.root, "report").returncode == 0
    of_configured_run = harness(place.root, "report", "--run", "main")
    assert of_configured_run.returncode == 0, of_configured_run.stderr
    unknown_run = harness(place.root, "report", "--run", "nope")
    assert unknown_run.returncode == 1
    assert "no entries of run nope\n  `harness start` makes entries" in unknown_run.stderr


def entries(workspace: Workspace) -> list[Any]:
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        return whole_entries(index)


def test_the_headline_follows_from_the_ledger(workspace: Workspace, page: str) -> None:
    champions: dict[str, Any] = {}
    for entry in entries(workspace):
        if entry.kind == "confirmation" and entry.verdict == "PASSED" and entry.summary.speedup_ci95[0] > 1:
            best = champions.get(entry.problem)
            key = (entry.trust != "launch-bound", entry.summary.speedup_ci95[0])
            if best is None or key > best[0]:
                champions[entry.problem] = (key, entry)
    speedups = [entry.summary.speedup for _, entry in champions.values()]
    headline = data_of(page)["headline"]
    assert 0 < len(speedups) <= 9
    assert headline["confirmed"] == len(speedups)
    assert headline["geomean"] == pytest.approx(math.exp(sum(map(math.log, speedups)) / 9), rel=1e-4)
    assert headline["geomean_confirmed"] == pytest.approx(statistics.geometric_mean(speedups), rel=1e-4)
    assert headline["above_2"] == sum(speedup > 2 for speedup in speedups)
    scores = [entry.summary.score for _, entry in champions.values()] + [0.5] * (9 - len(speedups))
    assert headline["median_score"] == pytest.approx(statistics.median(scores), rel=1e-4)
    # The made-up baseline entries have eager at 2.1 and the agent-written one at 1.08 times the fastest; by the sealed
    # clock at 1.7 and 1.2 times.
    by_sealed = [entry.trust == "sealed" for _, entry in champions.values()]
    assert any(by_sealed)
    for name, bounded, sealed in (("against_eager", 2.1, 1.7), ("against_agent", 1.08, 1.2)):
        ratios = [speedup * (sealed if seal else bounded) for speedup, seal in zip(speedups, by_sealed, strict=True)]
        assert headline[name] == [pytest.approx(statistics.geometric_mean(ratios), rel=1e-3), len(speedups)]
    evaluations = [entry for entry in entries(workspace) if entry.kind == "evaluation"]
    assert headline["evaluations"] == len(evaluations) == sum(data_of(page)["verdicts"]["totals"].values())


def test_a_trajectory_goes_up_and_names_its_commits(workspace: Workspace, page: str) -> None:
    by_place = {(record.problem, record.seq): record for record in entries(workspace)}
    data = data_of(page)
    assert data["meta"]["commit_url"] == "https://github.com/o/kernels/commit/{}"
    stepped = [record for record in data["problems"] if record["steps"]]
    assert stepped
    for problem in stepped:
        speedups = [step["speedup"] for step in problem["steps"] if step["gain"]]
        assert speedups == sorted(speedups), "each gain is a higher speed-up, whatever its latency"
        for step in problem["steps"]:
            entry = by_place[problem["key"], step["seq"]]
            assert (entry.candidate.commit, entry.candidate.worker) == (step["commit"], step["worker"])
            assert entry.summary.speedup == pytest.approx(step["speedup"], rel=1e-4)
            assert entry.summary.speedup_ci95 == pytest.approx((step["low"], step["high"]), rel=1e-4)
            assert step["latency_us"] == pytest.approx(step["baseline_us"] / step["speedup"], rel=1e-3)
            assert [row[0] for row in step["workloads"]] == [workload.uuid[:8] for workload in entry.workloads]
            workloads = [workload.speedup for workload in entry.workloads]
            assert [row[3] for row in step["workloads"]] == pytest.approx(workloads, rel=1e-4)
            if step["confirmation"]:
                confirmation = by_place[problem["key"], step["confirmation"]["seq"]]
                assert confirmation.cites == step["seq"]
                assert confirmation.summary.speedup == pytest.approx(step["confirmation"]["speedup"], rel=1e-4)
        champions = [step["seq"] for step in problem["steps"] if step["champion"]]
        assert champions == (
            [by_place[problem["key"], problem["seq"]].cites] if problem["state"] == "confirmed" else []
        )
        assert problem["bound_us"] < problem["baseline_us"]


def test_a_champion_is_a_step_although_its_evaluation_was_no_gain(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", {f"problems/{PROBLEM}/definition.json": "{}"})
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("baseline"))
        for first, confirmed, seq in ((1.50, 1.40, 2), (1.49, 1.48, 5)):
            ledger.append(draft(tree=f"{seq}" * 40, speedup=first, cites=1))
            ledger.append(draft("confirmation", tree=f"{seq}" * 40, speedup=confirmed, cites=seq))
            ledger.append(draft("champion", tree=f"{seq}" * 40, cites=seq + 1))
    assert harness(workspace.root, "report", "-o", "r.html").returncode == 0
    (problem,) = data_of((workspace.root / "r.html").read_text())["problems"]
    shown = [(step["seq"], step["gain"], step["champion"]) for step in problem["steps"]]
    assert shown == [(2, True, False), (5, False, True)]


def test_a_page_of_many_steps_leaves_out_the_details_of_the_oldest(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_summary, "_DETAIL_CHARACTERS", 9 * 150)
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        problems = sorted({record.problem for record in whole_entries(index)})
        data = collect(repo, index, branch="main", problems=problems, run="main", target="h200", commit_url=None)
    shown = [[step["workloads"] is not None for step in record["steps"]] for record in data["problems"]]
    assert any(len(has_details) > 1 for has_details in shown)
    for has_details in shown:
        assert has_details == [False] * (len(has_details) - 1) + [True] * min(1, len(has_details))


def test_each_step_has_the_difference_of_its_sources(tmp_path: Path) -> None:
    with site_in(tmp_path) as site:
        site.submit("w01", "t/one", "stub: speedup=1.2")
        assert site.call("daemon", "--once").returncode == 0
        site.submit("w01", "t/one", "stub: speedup=1.7")
        assert site.call("daemon", "--once").returncode == 0
        completed = site.call("report", "-o", "r.html")
        assert completed.returncode == 0, completed.stdout
        data = data_of((site.root / "r.html").read_text())
    (problem,) = data["problems"]
    assert problem["key"] == "t/one"
    assert data["headline"]["problems"] == 1
    assert data["meta"]["other_problems"] == 1, "t/two was not asked for"
    first, second = problem["steps"]
    assert first["subject"] == "Try stub: speedup=1.2"
    assert "+// stub: speedup=1.2" in first["diff"].splitlines()
    assert "+++ b/solution.yaml" in first["diff"], "there was no solution before"
    changed = [line for line in second["diff"].splitlines() if re.match(r"[+-][^+-]", line)]
    assert changed == ["-// stub: speedup=1.2", "+// stub: speedup=1.7"]
    assert second["compared"].startswith("git diff ")
    assert [step["champion"] for step in (first, second)] == [False, True]


def test_the_problems_of_a_run_are_those_that_it_was_started_with(tmp_path: Path) -> None:
    with site_in(tmp_path) as site, Repo(site.workspace) as repo:
        with Ledger(site.workspace, repo, branch="main", writer="planner") as planner:
            inputs = {"problems": [{"problem": "t/two", "evaluations": 0}]}
            decision = {"run": "main", "target": "cpu", "inputs": inputs, "decision": {"assignments": []}}
            planner.append_record("ledger/decisions.yaml", decision)
        assert site.call("report", "-o", "r.html").returncode == 0
        data = data_of((site.root / "r.html").read_text())
    assert [row["key"] for row in data["problems"]] == ["t/two"], "also before its first evaluation"


def test_moves_and_money_are_shown(page: str) -> None:
    data = data_of(page)
    assert data["moves"]
    assert {move[1] for move in data["moves"]} <= {"w01", "w02", "w03"}
    assert all(move[3] for move in data["moves"])
    spent = [point[2] for point in data["spend"]]
    assert spent == sorted(spent)
    assert data["headline"]["usd"] == pytest.approx(spent[-1], abs=0.01)


def test_the_device_time_is_shown_by_problem_and_stage(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", {f"problems/{PROBLEM}/definition.json": "{}"})
    stages = {JudgeStage.CANDIDATE: 4.0, JudgeStage.FILL: 2.0}
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("baseline"))  # 1 s without stages
        ledger.append(draft(cites=1).model_copy(update={"cost": Cost(judge_s=6.0, stages=stages)}))
        ledger.append(draft(run="other", tree="e" * 40))
    assert harness(workspace.root, "report", "-o", "r.html").returncode == 0
    page = (workspace.root / "r.html").read_text()
    costs = data_of(page)["costs"]
    assert costs["stages"] == ["fill", "candidate", "other"]
    row = {"key": PROBLEM, "entries": 2, "total_s": 7.0, "median_s": 3.5, "stages": [2.0, 4.0, 1.0]}
    assert costs["problems"] == [row]
    assert costs["all"] == {**row, "key": None}
    assert '<table id="costs">' in page


def test_it_refers_to_nothing_outside(page: str) -> None:
    without_data = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.[a-z]+[^\s\"'`)]*", without_data))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address that the page loads
    assert "default-src 'none'" in page
    assert not re.findall(r"\b(?:src|srcset)=|@import|url\(", without_data)


def test_words_of_agents_stay_words(tmp_path: Path) -> None:
    workspace = make_run(tmp_path / "w", problems=1, entries=12, days=1, workers=1)
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        settings: Json = {"branch": "main", "run": "main", "target": "h200", "commit_url": None}
        data = collect(repo, index, problems=["L1/rmsnorm_000"], **settings)
    data["problems"][0]["worker"] = "</script><script>alert(1)</script>"
    page = render(data)
    assert "<script>alert" not in page
    assert data_of(page)["problems"][0]["worker"] == "</script><script>alert(1)</script>"


def test_an_empty_run_has_a_page_too(tmp_path: Path) -> None:
    workspace = make_run(tmp_path / "w", problems=1, entries=1, days=1, workers=1)
    workspace.config_file.write_text("run: nothing\n")
    completed = harness(workspace.root, "report", "-o", "r.html")
    assert completed.returncode == 0, completed.stderr
    data = data_of((workspace.root / "r.html").read_text())
    assert (data["headline"]["confirmed"], data["moves"], data["spend"]) == (0, [], [])
    assert (data["costs"]["problems"], data["costs"]["all"]["total_s"]) == ([], 0)


def test_an_older_form_of_a_problem_is_not_in_its_trajectory(tmp_path: Path) -> None:
    workspace = make_run(tmp_path / "w", problems=1, entries=40, days=1, workers=1)
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        note = draft("note", problem="L1/rmsnorm_000", digest="sha256:" + "9" * 64)
        ledger.append(note.model_copy(update={"target": "h200"}))
    completed = harness(workspace.root, "report", "-o", "r.html")
    assert completed.returncode == 0, completed.stderr
    (problem,) = data_of((workspace.root / "r.html").read_text())["problems"]
    assert (problem["steps"], problem["dots"], problem["state"]) == ([], [], "none")
    assert problem["evaluations"] > 0


def test_a_sealed_champion_is_compared_with_nothing_where_no_sealed_times_were_kept(tmp_path: Path) -> None:
    key = "L1/rmsnorm_000"
    workspace = make_run(tmp_path / "w", problems=1, entries=40, days=1, workers=1)
    settings: Json = {"problems": [key], "branch": "main", "run": "main", "target": "h200", "commit_url": None}
    with (
        Repo(workspace) as repo,
        Ledger(workspace, repo, branch="main") as ledger,
        Index(workspace, branch="main") as index,
    ):
        index.refresh(repo)
        (before,) = collect(repo, index, **settings)["problems"]
        (baseline,) = whole_entries(index, key, kind="baseline")
        parts = {name: getattr(baseline, name) for name in EntryDraft.model_fields}
        ledger.append(EntryDraft.model_validate({**parts, "sealed_baselines": {}}))  # as in ledgers of an older harness
        index.refresh(repo)
        (after,) = collect(repo, index, **settings)["problems"]
    assert (before["trust"], set(before["against"])) == ("sealed", {"eager", "baseline"})
    assert (after["trust"], after["against"]) == ("sealed", {})


def test_an_unwritable_place_is_reported(workspace: Workspace) -> None:
    completed = harness(workspace.root, "report", "-o", "/proc/report.html")
    assert completed.returncode == 2
    assert "cannot be written" in completed.stderr
    assert harness(workspace.root, "report", "--commit-url", "nowhere").returncode == 2
