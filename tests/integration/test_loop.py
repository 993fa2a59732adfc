"""A run without stand-ins: real problems, the real judge, two tuners."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.model.verdict import EntryKind, Verdict
from tests.site import Site, clean_environment, git

HARNESS = (sys.executable, "-m", "harness")


@pytest.mark.slow
def test_a_fresh_workspace_makes_a_starter_problem_faster(tmp_path: Path) -> None:
    root = tmp_path / "fresh workspace"
    subprocess.run(
        [*HARNESS, "init", str(root)],
        cwd=tmp_path,
        env=clean_environment(),
        check=True,
        timeout=240,
        capture_output=True,
    )
    site = Site(root, tmp_path / "scratch", stub=False)
    try:
        start = ("start", "--workers", "2", "--agent", "tuner", "--device", "cpu")
        completed = site.run(*start, "--problem", "starter/rmsnorm*", "--max-evaluations", "8", deadline_s=1200)
        assert completed.returncode == 0, completed.stdout
        entries = site.entries()
        evaluations = [entry for entry in entries if entry.kind is EntryKind.EVALUATION]
        assert len(evaluations) == 8
        assert len({entry.candidate.tree for entry in evaluations if entry.candidate}) == 8
        assert {entry.verdict for entry in evaluations} == {Verdict.PASSED}
        assert {entry.problem for entry in entries} == {"starter/rmsnorm_h4096"}
        branches = git(root, "branch", "--list", "--format=%(refname:short)", "agents/*").split()
        assert branches == [f"agents/main/{worker}/starter/rmsnorm_h4096" for worker in ("w01", "w02")]
        assert git(root, "status", "--porcelain") == ""
        audit = site.run("audit")
        assert audit.returncode == 0, audit.stdout
        status = json.loads(site.run("status", "--json").stdout)
        standing = next(row for row in status["problems"] if row["problem"] == "starter/rmsnorm_h4096")
        assert standing["champion"]["speedup_ci95"][0] > 1.0, "a confirmed speed-up whose interval is above 1"
        site.no_strays()
    finally:
        site.close()
