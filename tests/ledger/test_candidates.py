"""Candidates: the daemon judges exactly those that are pending for workers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from harness.git.repo import Repo
from harness.ledger.candidates import ProblemCandidates, committed_candidates
from harness.model.config import Config
from harness.model.paths import agent_branch, problem_path, solution_path
from tests.ledger.ledgers import PROBLEM, git, make_workspace

SOLUTION = solution_path(PROBLEM, "cpu")
BRANCH = agent_branch("main", "w01", PROBLEM)


def commit(root: Path, message: str, **files: str) -> str:
    """Commit files named by their stem, in the solution directory, or elsewhere for `note`; the commit's id."""
    for stem, text in files.items():
        file = root / ("note.txt" if stem == "note" else f"{SOLUTION}/{stem}.cpp")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


def test_daemon_and_workers_agree_what_a_candidate_is(tmp_path: Path) -> None:
    definition = f"{problem_path(PROBLEM)}/definition.json"
    workspace = make_workspace(tmp_path / "w", {definition: "{}", f"{SOLUTION}/kernel.cpp": "0"})
    root = workspace.root
    git(root, "checkout", "-q", "-b", BRANCH)
    commit(root, "Only a note: no candidate, though the solution is there", note="1")
    submitted = commit(root, "Submit what was there\n\nWorker: w01")
    changed = commit(root, "Make it faster", kernel="1")
    commit(root, "Another note", note="2")
    commit(root, "Back to the first", kernel="0")
    git(root, "checkout", "-q", "main")
    with Repo(workspace) as repo:
        tips = repo.tip(BRANCH), repo.tip("main")
        committed = committed_candidates(repo, BRANCH, *tips, "cpu")
        assert [(candidate.commit, candidate.worker, candidate.problem) for candidate in committed] == [
            (submitted, "w01", PROBLEM),
            (changed, "w01", PROBLEM),
        ]
        assert [candidate.subject for candidate in committed] == ["Submit what was there", "Make it faster"]
        assert committed_candidates(repo, "agents/main/w01", *tips, "cpu") == []
        assert committed_candidates(repo, BRANCH, *tips, "h200") == []
        tried = ProblemCandidates(workspace, repo, Config(), "cpu")
        with closing(tried.index):
            tried.begin(PROBLEM, root / problem_path(PROBLEM))
            commits_of_trees = {candidate.tree: candidate.commit for candidate in tried.candidates()}
        assert commits_of_trees == {candidate.tree: candidate.commit for candidate in committed}


def test_a_worker_s_list_grows_by_the_same_rule(tmp_path: Path) -> None:
    definition = f"{problem_path(PROBLEM)}/definition.json"
    workspace = make_workspace(tmp_path / "w", {definition: "{}", f"{SOLUTION}/kernel.cpp": "0"})
    root = workspace.root
    git(root, "checkout", "-q", "-b", BRANCH)
    with Repo(workspace) as repo:
        tried = ProblemCandidates(workspace, repo, Config(), "cpu")
        with closing(tried.index):
            tried.begin(PROBLEM, root / problem_path(PROBLEM))
            first = commit(root, "First", kernel="1")
            assert [candidate.commit for candidate in tried.candidates()] == [first]
            commit(root, "A note", note="1")
            second = commit(root, "Second", kernel="2")
            assert [candidate.commit for candidate in tried.candidates()] == [first, second]
