"""Ledgers written by the code of each format version, stored in `fixtures/v<N>/`.

`python -m tests.ledger.fixture_ledgers tests/ledger/fixtures/v<N>` writes the fixture of the present version. A fixture
that exists is never written again: a later harness must read what an earlier one wrote, byte for byte.

A fixture holds `ledger/` and `spool/` as plain files, `repository.bundle` with every ref, and `standings.json`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.accounts import Account, Spent
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.standings import standings
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import draft, git, make_workspace, ticking

FIXTURES = Path(__file__).parent / "fixtures"
PROBLEMS = ("L1/softmax", "starter/rmsnorm_h4096", "starter/swiglu")
BUNDLE = "repository.bundle"
STANDINGS = "standings.json"
PROTOCOL = 1
"""The judge protocol of every entry of the existing fixtures."""
SPOOLED = 1
"""Documents that only the spool of a fixture holds."""


class _Work:
    """A workspace with problems and two candidates for each."""

    def __init__(self, root: Path) -> None:
        files = {f"problems/{problem}/definition.json": json.dumps({"name": problem}) for problem in PROBLEMS}
        self.workspace = make_workspace(root, files)
        self.candidates: dict[str, list[dict[str, Any]]] = {problem: [] for problem in PROBLEMS}
        for problem in PROBLEMS:
            digest = problem_digest(root / "problems" / problem)
            directory = f"problems/{problem}/solutions/cpu"
            git(root, "switch", "-q", "-c", f"agents/main/w01/{problem}")
            for number in range(2):
                (root / directory).mkdir(parents=True, exist_ok=True)
                (root / directory / "solution.yaml").write_text(f"notes: {problem} {number}\n")
                git(root, "add", "-A")
                git(root, "commit", "-q", "-m", f"try {number}")
                commit, tree = git(root, "rev-parse", "HEAD"), git(root, "rev-parse", f"HEAD:{directory}")
                self.candidates[problem].append(
                    {"problem": problem, "digest": digest, "commit": commit, "tree": tree, "worker": "w01"}
                )
            git(root, "switch", "-q", "main")


def make(root: Path) -> Workspace:
    """Write a small ledger with this version's code: every kind of document, in several commits and in the spool."""
    work = _Work(root)
    softmax, rmsnorm, swiglu = (work.candidates[problem] for problem in PROBLEMS)
    with Repo(work.workspace) as repo:
        with Ledger(work.workspace, repo, branch="main", clock=(clock := ticking())) as daemon:
            daemon.append(draft("baseline", **rmsnorm[0]))
            daemon.append(draft(**rmsnorm[0], speedup=1.2, cites=1))
            daemon.append(draft("confirmation", **rmsnorm[0], speedup=1.19, cites=2))
            daemon.append(draft("champion", **rmsnorm[0], cites=3))
            daemon.append(draft("baseline", **softmax[0]))
            daemon.append(draft(**softmax[0], verdict=Verdict.INCORRECT_NUMERICAL, cites=1))
        with Ledger(work.workspace, repo, branch="main", clock=clock, writer="planner") as planner:
            _records(planner)
        with Ledger(work.workspace, repo, branch="main", clock=clock) as daemon:
            daemon.append(draft(**rmsnorm[1], speedup=1.5, cites=1))
            daemon.append(draft("confirmation", **rmsnorm[1], speedup=1.45, cites=5))
            daemon.append(draft("champion", **rmsnorm[1], cites=6))
            daemon.append(draft("note", **rmsnorm[1]))
            daemon.append(draft("baseline", **swiglu[0]))
            daemon.append(draft(**swiglu[0], speedup=0.95, cites=1))
        killed = Ledger(work.workspace, repo, branch="main", clock=clock)
        killed.append(draft(**swiglu[1], speedup=1.3, cites=1))
        killed.close()
    return work.workspace


def _records(planner: Ledger) -> None:
    """Write the planner's documents: a decision, an account and a lesson."""
    row = {"worker": "w01", "problem": PROBLEMS[1], "wanted": "a first solution", "state": "active"}
    inputs = {"standings": [{"problem": PROBLEMS[1], "speedup": 1.2}]}
    decision = {"assignments": [row], "reasons": {"w01": "least covered"}}
    planner.append_record(
        "ledger/decisions.yaml",
        {"run": "main", "target": "cpu", "policy": "spread", "inputs": inputs, "decision": decision},
    )
    spent = Spent(usd=0.25, input_tokens=1200, output_tokens=300, turns=4, evaluations=2, seconds=61.5)
    account = Account(
        id="w01-1",
        run="main",
        worker="w01",
        problem=PROBLEMS[1],
        session="1",
        agent="claude",
        began="2026-11-21T02:00:00.000+00:00",
        model="a-model",
        ended="2026-11-21T02:01:01.500+00:00",
        spent=spent,
    )
    planner.append_record("ledger/accounts.yaml", account.record())
    lesson = {"id": "n1", "problem": PROBLEMS[1], "worker": "w01", "text": "unrolling by 8 is slower\nthan by 4"}
    planner.append_record(f"ledger/lessons/{PROBLEMS[1]}.yaml", lesson)


def standings_of(workspace: Workspace) -> list[Mapping[str, Any]]:
    """Return each problem's standing by the ledger's own judge protocol, which other versions must reproduce."""
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        messages = index.refresh(repo)
        assert messages == [], messages
        return [
            {
                "problem": standing.problem,
                "evaluations": standing.evaluations,
                "best": standing.best and [standing.best.seq, standing.best.speedup, standing.best.speedup_ci95_low],
                "champion": standing.champion and [standing.champion.seq, standing.champion.tree],
            }
            for standing in standings(index, PROBLEMS, "cpu", "main", protocol=PROTOCOL)
        ]


def store(workspace: Workspace, fixture: Path) -> None:
    """Keep a ledger as a fixture."""
    fixture.mkdir(parents=True)
    git(workspace.root, "bundle", "create", "-q", str(fixture / BUNDLE), "--all")
    shutil.copytree(workspace.root / "ledger", fixture / "ledger")
    shutil.copytree(workspace.spool, fixture / "spool", ignore=shutil.ignore_patterns("lock"))
    (fixture / STANDINGS).write_text(json.dumps(standings_of(workspace), indent=2) + "\n")


def restore(fixture: Path, root: Path) -> Workspace:
    """Make the workspace of a fixture: every ref, the checkout of main, and the spool."""
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    git(root, "fetch", "-q", "--update-head-ok", str(fixture / BUNDLE), "refs/*:refs/*")
    git(root, "reset", "-q", "--hard", "main")
    workspace = Workspace(root)
    shutil.copytree(fixture / "spool", workspace.spool)
    return workspace


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        store(make(Path(scratch) / "workspace"), Path(sys.argv[1]).resolve())
