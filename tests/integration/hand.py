"""A worker's actions in a separate process that can be killed: `hand.py work|leave WORKER PROBLEM TEXT`.

`work` makes or repairs the worktree, writes a solution and submits it. `leave` writes one, makes the worktree of
another run in its place, and removes that one.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, so that no other test module is imported

from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.worktree_places import Place
from harness.ledger.submission import submit, trailers
from harness.model.paths import solution_path
from harness.workspace.directories import Workspace
from tests.site import KERNEL, SOLUTION


def main(action: str, worker: str, problem: str, text: str) -> None:
    workspace = Workspace.find()
    with Repo(workspace) as repo:
        place = Place(worker, problem)
        worktree = worktrees.add(repo, place, f"agents/main/{worker}/{problem}", repo.tip("main"))
        directory = worktree / solution_path(problem, "cpu")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "solution.yaml").write_text(SOLUTION)
        (directory / "kernel.cpp").write_text(f"{KERNEL}// {text}\n")
        if action == "leave":
            worktrees.add(repo, place, f"agents/night/{worker}/{problem}", repo.tip("main"))
            worktrees.retire(repo, place)
            return
        commit_trailers = trailers(run="main", worker=worker, agent="tuner", session="s1")
        submit(
            repo, worktree, problem=problem, target="cpu", message=text, commit_trailers=commit_trailers, base="main"
        )


if __name__ == "__main__":
    main(*sys.argv[1:5])
