"""The daemon on real git repositories with real processes; the stub replaces the judge."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from harness.model.config import Config
from harness.model.verdict import EntryKind, Verdict
from harness.workspace.file_watch import RefWatch
from tests.daemon.conftest import Daemon, Once, entries_of, kinds
from tests.site import Site, git, write_problem
from tests.waiting import wait_until


def test_the_way_of_a_candidate_from_commit_to_champion(site: Site, once: Once) -> None:
    slow = site.submit("w01", "t/one", "stub: speedup=0.8")
    fast = site.submit("w02", "t/one", "stub: speedup=1.5")
    once()
    entries = site.entries("t/one")
    baseline = entries[0]
    assert baseline.kind is EntryKind.BASELINE
    assert set(baseline.baselines) == {"t/one-0", "t/one-1"}
    (evaluation,) = entries_of(entries, fast)
    assert evaluation.cites == baseline.seq
    assert evaluation.candidate is not None
    assert evaluation.candidate.model_dump() == {
        "commit": fast.id,
        "tree": fast.tree,
        "branch": fast.branch,
        "worker": "w02",
        "language": "cpp",
    }
    (confirmation,) = entries_of(entries, fast, EntryKind.CONFIRMATION)
    assert confirmation.cites == evaluation.seq
    (champion,) = entries_of(entries, fast, EntryKind.CHAMPION)
    assert champion.cites == confirmation.seq
    assert champion.summary == confirmation.summary
    assert [entry.verdict for entry in entries_of(entries, slow)] == [Verdict.PASSED]
    assert not entries_of(entries, slow, EntryKind.CONFIRMATION)


def test_the_judge_is_asked_about_snapshots_of_commits_and_the_fastest_baseline(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "as committed")
    (site.root / "problems/t/one/definition.json").write_text("edited and not committed")
    once()
    baseline, evaluation = site.requests()[:2]
    assert (baseline["kind"], baseline["solution_dir"]) == ("baseline", None)
    assert evaluation["baseline"] == {"t/one-0": "compile", "t/one-1": "compile"}
    assert evaluation["sealed_baseline"] == {}
    assert "sealed" not in (site.root / "ledger/t/one.yaml").read_text()  # a device with one clock has one table
    assert Path(evaluation["solution_dir"]) == site.workspace.cache / "candidates" / commit.tree
    assert "as committed" in (Path(evaluation["solution_dir"]) / "kernel.cpp").read_text()
    problem = Path(evaluation["problem_dir"])
    assert problem.is_relative_to(site.workspace.cache / "problems")
    assert json.loads((problem / "definition.json").read_text())["name"] == "one"
    assert not (problem / "solutions").exists()


def test_the_fastest_baseline_by_either_clock_is_reported_and_entered(site: Site, once: Once) -> None:
    write_problem(site.root, "t/one", description="stub: two-clocks")
    git(site.root, "commit", "--quiet", "-a", "-m", "Measure by two clocks")
    site.submit("w01", "t/one", "for either clock")
    once()
    uuids = ("t/one-0", "t/one-1")
    evaluation = site.requests()[1]
    assert evaluation["baseline"] == dict.fromkeys(uuids, "compile")
    assert evaluation["sealed_baseline"] == dict.fromkeys(uuids, "eager")
    baseline = site.entries("t/one")[0]
    assert baseline.sealed_baselines == {uuid: {"eager": 60.0, "compile": 90.0} for uuid in uuids}
    assert baseline.baselines["t/one-0"]["compile"] == 100.0


def test_a_commit_made_while_the_daemon_runs_is_judged_with_an_outcome_for_its_worker(
    site: Site, daemon: Daemon
) -> None:
    with daemon() as running:
        first = running.entry_of(site.submit("w01", "t/one", "stub: speedup=1.2"))
        second = running.entry_of(site.submit("w01", "t/two", "stub: verdict=INCORRECT_NUMERICAL"))
    assert (first.verdict, second.verdict) == (Verdict.PASSED, Verdict.INCORRECT_NUMERICAL)
    assert second.reason == "the stub was asked for this verdict"
    assert kinds(site)[EntryKind.EVALUATION] == 2


def test_the_same_tree_is_measured_once_whoever_commits_it_and_however_often(site: Site, once: Once) -> None:
    first = site.submit("w01", "t/one", "same")
    second = site.submit("w02", "t/one", "same")
    site.submit("w01", "t/one", "other")
    site.submit("w01", "t/one", "same")
    assert first.tree == second.tree
    once()
    once()
    assert len(entries_of(site.entries(), first)) == 1
    assert kinds(site)[EntryKind.EVALUATION] == 2
    assert kinds(site)[EntryKind.BASELINE] == 1


def test_every_commit_of_a_branch_is_judged_oldest_first(site: Site, once: Once) -> None:
    commits = [site.submit("w01", "t/one", f"number {number} stub: speedup=0.9") for number in range(4)]
    once()
    judged = [Path(request["solution_dir"]).name for request in site.requests() if request["kind"] == "evaluation"]
    assert judged == [commit.tree for commit in commits]


def test_packed_refs_are_seen_as_loose_ones_are(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "packed")
    git(site.root, "pack-refs", "--all", "--prune")
    once()
    assert len(entries_of(site.entries(), commit)) == 1


def test_commits_that_the_coordination_branch_has_are_not_candidates_any_more(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "merged")
    git(site.root, "update-ref", "refs/heads/main", commit.id)
    git(site.root, "reset", "--quiet", "--hard")
    once()
    assert not site.entries()


def test_commits_that_a_person_took_out_of_the_coordination_branch_are_no_candidates(site: Site, once: Once) -> None:
    write_problem(site.root, "t/one", tunable=True)
    git(site.root, "add", "--all")
    git(site.root, "commit", "--quiet", "-m", "A solution to begin with")
    git(site.root, "commit", "--quiet", "--allow-empty", "-m", "Something else")
    commit = site.submit("w01", "t/one", "mine")
    git(site.root, "reset", "--quiet", "--hard", "HEAD~1")
    once()
    assert {entry.candidate.tree for entry in site.entries() if entry.candidate} == {commit.tree}


def test_other_runs_and_other_branches_are_left_alone(site: Site, once: Once) -> None:
    site.submit("w01", "t/one", "elsewhere", run="other")
    git(site.root, "branch", "agents/main/odd")
    once()
    assert not site.entries()


def test_a_solution_that_would_overflow_a_parser_gets_its_verdict_and_others_are_judged(
    site: Site, daemon: Daemon
) -> None:
    deep = site.submit("w01", "t/one", "deep", solution="[" * 500)
    with daemon() as running:
        entry = running.entry_of(deep)
        assert running.entry_of(site.submit("w02", "t/one", "stub: speedup=1.2")).verdict is Verdict.PASSED
    assert (entry.verdict, entry.reason) == (
        Verdict.COMPILE_ERROR,
        "solution.yaml:1: nested more than 50 levels deep",
    )
    with daemon() as running:  # after a restart the branch still holds it
        assert running.entry_of(site.submit("w02", "t/two", "stub: speedup=1.3")).verdict is Verdict.PASSED
    assert len(entries_of(site.entries(), deep)) == 1


def test_a_malformed_solution_gets_its_verdict_without_a_judge(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", solution="language: cobol\nentry: kernel.cpp::increment\n")
    once()
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.COMPILE_ERROR
    assert entry.reason is not None
    assert entry.reason.startswith("solution.yaml:1: ")
    assert "cobol" in entry.reason
    assert entry.summary is not None
    assert (entry.summary.passed, entry.summary.of) == (0, 2)
    assert [request["kind"] for request in site.requests()] == ["baseline"]


def test_a_link_that_leads_out_is_a_verdict_too(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "fine")
    blob = git(site.root, "hash-object", "-w", "--stdin", stdin="../../../../secret")
    index = {"GIT_INDEX_FILE": str(site.scratch / "index")}
    git(site.root, "read-tree", commit.id, extra=index)
    place = "problems/t/one/solutions/cpu"
    git(site.root, "update-index", "--add", "--cacheinfo", f"120000,{blob},{place}/link.h", extra=index)
    tree = git(site.root, "write-tree", extra=index)
    new_commit = git(site.root, "commit-tree", tree, "-p", commit.id, "-m", "Lead out")
    git(site.root, "update-ref", f"refs/heads/{commit.branch}", new_commit)
    once()
    refused = [entry for entry in site.entries() if entry.verdict is Verdict.COMPILE_ERROR]
    assert len(refused) == 1
    assert "link.h is a link that leads out" in str(refused[0].reason)


def test_a_language_that_the_run_does_not_allow_is_refused(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "in cpp")
    once(Config(languages=("pytorch",)))
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.COMPILE_ERROR
    assert entry.reason == "solution.yaml: `language` is cpp; this run allows pytorch"


def test_the_limit_counts_evaluations_of_this_invocation_and_lets_confirmations_come_on_top(
    site: Site, daemon: Daemon, once: Once
) -> None:
    for number in range(5):
        site.submit("w01", "t/one", f"number {number} stub: speedup={1.2 + number / 10}")
    with daemon(limit=2):
        wait_until(lambda: site.daemon().limit_reached, event="the limit")
        assert site.daemon().evaluations_done == 2
        assert site.daemon().queued == 3
    assert kinds(site)[EntryKind.EVALUATION] == 2
    assert kinds(site)[EntryKind.CONFIRMATION] == 2
    once(limit=2)
    assert kinds(site)[EntryKind.EVALUATION] == 4


def test_a_problem_that_changes_while_the_daemon_runs_is_another_problem(site: Site, daemon: Daemon) -> None:
    commit = site.submit("w01", "t/one", "stub: speedup=1.3")
    with daemon() as running:
        before = running.entry_of(commit)
        write_problem(site.root, "t/one", workloads=3)
        running.git("commit", "--quiet", "-am", "One more workload")
        wait_until(lambda: len(entries_of(site.entries(), commit)) == 2, event="a second evaluation")
    after = entries_of(site.entries(), commit)[1]
    assert after.problem_digest != before.problem_digest
    assert len(after.workloads) == 3
    assert kinds(site)[EntryKind.BASELINE] == 2


def test_a_change_of_documentation_is_no_change_of_a_problem(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "stub: speedup=1.3")
    once()
    (site.root / "problems/t/one/README.md").write_text("words")
    git(site.root, "add", "--all")
    git(site.root, "commit", "--quiet", "-m", "Say more")
    once()
    assert len(entries_of(site.entries(), commit)) == 1


def test_a_new_judge_version_measures_again(site: Site, once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = site.submit("w01", "t/one", "stub: speedup=1.3")
    once()
    monkeypatch.setenv("STUB_JUDGE_VERSION", "2")
    once()
    assert len({entry.environment.judge for entry in entries_of(site.entries(), commit) if entry.environment}) == 2


def test_a_malformed_problem_is_reported_and_delays_no_other(site: Site, daemon: Daemon) -> None:
    (site.root / "problems/t/one/workload.jsonl").write_text("{")
    git(site.root, "commit", "--quiet", "-am", "Break a problem")
    waiting = site.submit("w01", "t/one", "honest")
    with daemon() as running:
        running.entry_of(site.submit("w01", "t/two", "honest"))
        assert "workload.jsonl:1" in running.wait_for_message("candidates of t/one wait")
        write_problem(site.root, "t/one")
        running.git("commit", "--quiet", "-am", "Repair it")
        assert running.entry_of(waiting).verdict is Verdict.PASSED
        wait_until(lambda: not site.daemon().messages, event="the end of the message")


def test_a_problem_that_breaks_while_its_candidates_wait_delays_no_other(site: Site, daemon: Daemon) -> None:
    go = site.scratch / "go"
    with daemon() as running:
        busy = site.submit("w01", "t/two", f"stub: hold={go}")
        wait_until(lambda: site.judging().kind == "evaluation", event="a judge at work")
        waiting = site.submit("w01", "t/one", "waits")
        wait_until(lambda: site.daemon().queued == 1, event="a candidate in the queue")
        (site.root / "problems/t/one/definition.json").write_text("{}")
        running.git("commit", "--quiet", "-am", "Break a problem")
        broken = git(site.root, "rev-parse", "HEAD")  # the daemon commits to this branch too
        running.wait_for_message("candidates of t/one wait")
        wait_until(lambda: site.daemon().queued == 0, event="an empty queue")
        other_candidate = site.submit("w02", "t/two", "another")
        go.touch()
        running.entry_of(busy)
        running.entry_of(other_candidate)
        running.git("revert", "--no-edit", broken)
        assert running.entry_of(waiting).verdict is Verdict.PASSED


def test_a_removed_problem_delays_no_other(site: Site, daemon: Daemon) -> None:
    git(site.root, "rm", "--quiet", "-r", "problems/t/one")
    with daemon() as running:
        site.submit("w01", "t/one", "an orphan")
        running.git("commit", "--quiet", "-m", "Take it away")
        running.wait_for_message("there is no problem t/one")
        running.entry_of(site.submit("w01", "t/two", "fine"))


def test_stopping_commits_the_ledger_and_leaves_the_checkout_clean(site: Site, daemon: Daemon) -> None:
    with daemon() as running:
        running.entry_of(site.submit("w01", "t/one", "stub: speedup=0.9"))
    assert git(site.root, "status", "--porcelain") == ""
    assert git(site.root, "show", "main:ledger/t/one.yaml").count("\n---\n") == 2
    assert (site.root / "ledger/heads.yaml").is_file()


def test_a_stop_while_a_judge_works_leaves_no_judge_and_no_half_entry(site: Site, daemon: Daemon, once: Once) -> None:
    go = site.scratch / "go"
    commit = site.submit("w01", "t/one", f"stub: hold={go}")
    with daemon():
        wait_until(lambda: site.judging().kind == "evaluation", event="a judge at work")
        assert site.judging().worker == "w01"
    site.no_strays()
    assert not entries_of(site.entries(), commit)
    go.touch()
    once()
    assert len(entries_of(site.entries(), commit)) == 1


def test_without_watches_commits_are_found_by_looking(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(watcher: RefWatch) -> None:
        del watcher
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(RefWatch, "start", refuse)
    with daemon() as running:
        assert "max_user_watches" in running.wait_for_message("the kernel gives no watches")
        running.entry_of(site.submit("w01", "t/one", "found late"))


def test_what_is_derived_may_be_deleted_at_any_time(site: Site, daemon: Daemon) -> None:
    with daemon() as running:
        running.entry_of(site.submit("w01", "t/one", "before"))
        shutil.rmtree(site.workspace.derived, ignore_errors=True)  # the daemon continues to write there
        running.entry_of(site.submit("w01", "t/one", "after"))
    assert kinds(site)[EntryKind.EVALUATION] == 2


def test_a_second_daemon_is_refused_with_the_name_of_the_first(site: Site, daemon: Daemon) -> None:
    with daemon() as running:
        running.entry_of(site.submit("w01", "t/one"))
        second = site.run("daemon", "--once")
    assert second.returncode == 2
    assert f"pid {os.getpid()}" in second.stdout


def test_two_devices_share_the_work_and_a_baseline_is_measured_once(site: Site, once: Once) -> None:
    for number in range(6):
        site.submit("w01", "t/one", f"number {number} stub: speedup=0.9")
    once(Config(devices=("cpu", "cpu:1")))
    assert kinds(site) == {EntryKind.BASELINE: 1, EntryKind.EVALUATION: 6}


def test_a_target_of_ones_own_has_solutions_of_its_own(site: Site, once: Once) -> None:
    site.submit("w01", "t/one", "for cpu")
    once(Config(target="epyc"))
    assert not site.entries()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.site.TARGET", "epyc")
        site.submit("w01", "t/one", "for epyc")
    once(Config(target="epyc"))
    assert {entry.target for entry in site.entries()} == {"epyc"}
