"""A worker process with a daemon and a stub judge works on the problem of its row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agents.kinds import default_kind, kind_of
from harness.errors import ConfigurationError
from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.worktree_places import Place
from harness.ledger.coordination import read_text
from harness.model.assignment import Assignment
from harness.model.config import AgentConfig, Config
from harness.model.process_status import WorkerStatus
from harness.model.verdict import EntryKind
from harness.workspace.notes import waiting_notes
from harness.workspace.status import read_status
from tests.agents.agents_site import assign, configure, evaluations, log, wait_for_status
from tests.site import SOLUTION, Site, git, site_in, write_problem
from tests.waiting import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, tunable=True) as created_site:
        yield created_site


def row(problem: str, worker: str = "w01") -> Assignment:
    return Assignment(worker=worker, problem=problem, wanted="try")


@contextlib.contextmanager
def at_work(site: Site, *workers: str) -> Iterator[None]:
    """Run workers in processes until the end of the block, and end them cleanly."""
    processes = [site.start("worker", worker) for worker in workers]
    yield
    for process in processes:
        process.terminate()
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output


def test_a_worker_searches_its_problem_then_waits_and_moves_on_assignment(site: Site) -> None:
    for name in ("left", "unsaved"):
        write_problem(site.root, f"t/{name}")
    git(site.root, "add", "--all")
    git(site.root, "commit", "--quiet", "-m", "More problems")
    with Repo(site.workspace) as repo:
        for name in ("left", "unsaved"):
            worktree = worktrees.add(repo, Place("w01", f"t/{name}"), f"agents/main/w01/t/{name}", repo.tip("main"))
    (worktree / "problems/t/unsaved/mine").write_text("not submitted")
    site.start("daemon")
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "has finished t/one", lambda status: status.finished == {"t/one": "exhausted"})
        wait_for_status(site, "is idle", lambda status: status.state == "idle")
        entries = evaluations(site, "t/one")
        assert len(entries) == len({entry.candidate.tree for entry in entries if entry.candidate}) == 8
        assign(site, row("t/two"))
        wait_for_status(site, "has finished t/two", lambda status: "t/two" in status.finished)
    assert len(evaluations(site, "t/two")) == 8
    message = git(site.root, "log", "-1", "--format=%B", "agents/main/w01/t/one")
    trailers = dict(line.split(": ", 1) for line in message.splitlines() if ": " in line)
    assert {name: trailers[name] for name in ("Run", "Worker", "Agent", "Model", "Cost-USD")} == {
        "Run": "main",
        "Worker": "w01",
        "Agent": "tuner",
        "Model": "optuna-tpe",
        "Cost-USD": "0.0000",
    }
    assert len(trailers["Session"]) == 32
    assert [note.problem for note in waiting_notes(site.workspace)] == ["t/one", "t/two"]
    worktree = site.workspace.worktree("w01", "t/one")
    assert git(worktree, "status", "--porcelain") == "", "its work is on its branch"
    assert not (site.workspace.worktrees / "w01/t/left").exists(), "left by an earlier invocation, and idle"
    assert (site.workspace.worktrees / "w01/t/unsaved/problems/t/unsaved/mine").read_text() == "not submitted"
    assert git(site.root, "status", "--porcelain") == ""


def test_a_worker_that_is_moved_leaves_after_the_trial_it_is_at(site: Site) -> None:
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "waits for a verdict", lambda status: status.state == "waiting")
        assign(site, row("t/two"))
        site.start("daemon")
        wait_for_status(site, "is on t/two", lambda status: status.problem == "t/two")
        wait_until(lambda: evaluations(site, "t/two"), event="an evaluation of t/two")
    assert len(evaluations(site, "t/one")) == 1


@pytest.mark.slow
def test_two_workers_on_one_problem_never_try_the_same(site: Site) -> None:
    site.start("daemon")
    assign(site, row("t/one"), row("t/one", "w02"))
    with at_work(site, "w01", "w02"):
        for worker in ("w01", "w02"):
            wait_for_status(site, "has finished", lambda status: status.finished == {"t/one": "exhausted"}, worker)
    commits = git(site.root, "log", "--format=%H", "agents/main/w01/t/one", "agents/main/w02/t/one", "^main").split()
    trees = [git(site.root, "rev-parse", f"{commit}:problems/t/one/solutions/cpu") for commit in commits]
    assert len(trees) == len(set(trees)) == 8
    wait_until(lambda: len(evaluations(site, "t/one")) == 8, event="every candidate's entry")


def test_a_paused_problem_gets_no_work_and_no_row_is_no_work(site: Site) -> None:
    pause = Assignment(worker="-", problem="t/one", state="paused")
    assign(site, pause, Assignment(worker="w01", problem="t/one", state="pinned"))
    with at_work(site, "w01"):
        wait_for_status(site, "is idle", lambda status: status.state == "idle")
        assign(site, Assignment(worker="w01", problem="t/one", state="pinned"))
        wait_for_status(site, "has begun", lambda status: status.state == "waiting")
    assert git(site.root, "branch", "--list", "agents/*").split()


def test_the_worker_keeps_its_last_valid_row_while_the_table_is_malformed(site: Site) -> None:
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "waits for a verdict", lambda status: status.state == "waiting")
        with Repo(site.workspace) as repo:
            broken = read_text(repo, "main").replace("| w01 |", "| w01")
            repo.commit_files("main", {"COORDINATION.md": broken.replace("| t/one", "t/one").encode()}, "Break")
        site.start("daemon")
        wait_for_status(site, "goes on", lambda status: status.evaluations >= 3)
    assert "the last valid row is used" in log(site)


def test_a_successor_starts_from_the_champion(site: Site) -> None:
    commit = site.submit(
        "w07",
        "t/one",
        "stub: speedup=2.0",
        solution="language: cpp\nentry: kernel.cpp::increment\nparams: {WIDTH: 3}\ntune: {WIDTH: [3, 4]}\n",
    )
    site.call("daemon", "--once")
    assert [entry.kind for entry in site.entries("t/one")][-1] is EntryKind.CHAMPION
    site.start("daemon")
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "has finished", lambda status: status.finished == {"t/one": "exhausted"})
    text = git(site.root, "show", "agents/main/w01/t/one:problems/t/one/solutions/cpu/kernel.cpp")
    assert "stub: speedup=2.0" in text
    tried = [entry.candidate.tree for entry in evaluations(site, "t/one") if entry.candidate]
    assert len(tried) == 2
    assert tried[0] == commit.tree, "the champion's own tree is not judged again"


def test_a_problem_without_a_solution_begins_with_calls_of_its_reference(site: Site) -> None:
    git(site.root, "rm", "-r", "--quiet", "problems/t/one/solutions")
    git(site.root, "commit", "--quiet", "-m", "Take the solution away")
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "submits one", lambda status: status.last_message.startswith("submit MODE=eager"))


@pytest.mark.slow
def test_a_new_solution_from_people_is_something_to_do_again(site: Site) -> None:
    site.start("daemon")
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "has finished", lambda status: status.finished == {"t/one": "exhausted"})
        kernel = site.root / "problems/t/one/solutions/cpu/kernel.cpp"
        kernel.write_text(kernel.read_text() + "// merged by a person\n")
        git(site.root, "commit", "--quiet", "--all", "-m", "Merge a better kernel")
        wait_for_status(site, "works again", lambda status: status.state in {"starting", "waiting", "working"})


def test_gains_of_earlier_sessions_prolong_no_work(site: Site) -> None:
    configure(site, "agent: {per_session: {evaluations: 1}}")
    site.submit("w01", "t/one", "stub: speedup=0.95")
    failing = "stub: verdict=RUNTIME_ERROR"
    site.submit("w01", "t/one", failing, solution=f"{SOLUTION}tune: {{WIDTH: [1, 2, 3]}}\n")
    site.call("daemon", "--once")
    site.start("daemon")
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "has finished", lambda status: status.finished == {"t/one": "stale"})
    status = read_status(site.workspace, WorkerStatus, "w01")
    assert status is not None
    assert status.sessions_completed == 1


def test_a_worker_goes_on_when_a_stray_file_is_removed(site: Site) -> None:
    with Repo(site.workspace) as repo:
        worktree = worktrees.add(repo, Place("w01", "t/one"), "agents/main/w01/t/one", repo.tip("main"))
    stray = worktree / "problems/t/one/notes.txt"
    stray.write_text("of a person")
    site.start("daemon")
    assign(site, row("t/one"))
    with at_work(site, "w01"):
        wait_for_status(site, "fails", lambda status: status.state == "idle" and status.sessions_failed == 1)
        stray.unlink()
        wait_for_status(site, "has finished", lambda status: status.sessions_completed == 1)
    assert len(evaluations(site, "t/one")) == 8


def test_one_process_a_worker(site: Site) -> None:
    with at_work(site, "w01"):
        wait_for_status(site, "runs", lambda status: status.state == "idle")
        second_start = site.call("worker", "w01")
        assert second_start.returncode == 2
        assert "harness worker w01" in second_start.stdout


def test_kinds_that_cannot_work_name_their_requirements(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind_of(Config()) == "tuner"
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"no credential for the model\n.*--agent tuner"):
        kind_of(Config(agent=AgentConfig(kind="claude")))
    with pytest.raises(ConfigurationError, match="unknown placeholder wrong; known: prompt_file"):
        kind_of(Config(agent=AgentConfig(kind="command", command="run {wrong}")))
    assert default_kind(Config(), ("cuda",)) == "tuner", "no key"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert (default_kind(Config(), ("cuda:0",)), default_kind(Config(), ("cpu",))) == ("claude", "tuner")
    completed = site.call("worker", "w01", "--agent", "command")
    assert completed.returncode == 2
    assert "agent `command` needs a command line" in completed.stdout


@pytest.mark.slow
def test_a_killed_worker_leaves_no_obstacle_for_the_next(site: Site) -> None:
    assign(site, row("t/one"))
    first = site.start("worker", "w01")
    wait_for_status(site, "waits for a verdict", lambda status: status.state == "waiting")
    first.kill()
    first.wait(timeout=120)
    site.start("daemon")
    with at_work(site, "w01"):
        wait_for_status(site, "has finished", lambda status: status.finished == {"t/one": "exhausted"})
    wait_until(lambda: len(evaluations(site, "t/one")) == 8, event="all eight entries, the interrupted trial's too")
    last = read_status(site.workspace, WorkerStatus, "w01")
    assert last is not None
    assert last.state == "stopped"
