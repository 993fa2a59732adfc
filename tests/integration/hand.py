"""A worker's actions in a separate process that can be killed: `hand.py work|leave WORKER PROBLEM TEXT`.

`work` makes or repairs the worktree, writes a solution and submits it; `leave` writes it and removes the worktree.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, so that no other test module is imported

from harness.git.repo import Repo
from harness.ledger.submission import solution_dir, submit, trailers
from harness.workspace.directories import Workspace
from tests.site import KERNEL, SOLUTION


def main(action: str, worker: str, problem: str, text: str) -> None:
    workspace = Workspace.find()
    with Repo(workspace) as repo:
        worktree = repo.add_worktree(worker, problem, f"agents/main/{worker}/{problem}", repo.tip("main"))
        directory = solution_dir(worktree, problem, "cpu")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "solution.yaml").write_text(SOLUTION)
        (directory / "kernel.cpp").write_text(f"{KERNEL}// {text}\n")
        if action == "leave":
            repo.remove_worktree(worker, problem, force=True)
            return
        commit_trailers = trailers(run="main", worker=worker, agent="tuner", session="s1")
        submit(
            repo, worktree, problem=problem, target="cpu", message=text, commit_trailers=commit_trailers, base="main"
        )


if __name__ == "__main__":
    main(*sys.argv[1:5])
