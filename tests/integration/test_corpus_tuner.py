"""A tuner with the real judge on problems of the corpus without a solution, at small sizes on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.model.verdict import EntryKind, Verdict
from tests.site import Site, clean_environment, git

HARNESS = (sys.executable, "-m", "harness")
PROBLEMS = ("ssm/causal_conv1d_update", "llm/add_rmsnorm")


@pytest.mark.slow
def test_a_tuner_works_on_problems_without_a_solution(tmp_path: Path) -> None:
    root = tmp_path / "small"
    extraction = subprocess.run(
        [*HARNESS, "init", str(root), "--problems", "ssm,llm", "--profile", "small"],
        cwd=tmp_path,
        env=clean_environment(),
        check=True,
        timeout=240,
        capture_output=True,
        text=True,
    )
    assert "omitted" in extraction.stdout, "some weights are too large for the profile"
    config = root / "harness.yaml"
    config.write_text(config.read_text() + "policy: {slice_evaluations: 1}\n")
    for key in PROBLEMS:  # the first workload alone: each is compiled for the baseline
        workloads = root / "problems" / key / "workload.jsonl"
        workloads.write_text(workloads.read_text().splitlines(keepends=True)[0])
    git(root, "commit", "-qam", "Shorter slices, one workload each")
    site = Site(root, tmp_path / "scratch", stub=False)
    try:
        start = ("start", "--workers", "1", "--agent", "tuner", "--device", "cpu", "--max-evaluations", "4")
        completed = site.run(*start, *(word for key in PROBLEMS for word in ("--problem", key)), deadline_s=1800)
        assert completed.returncode == 0, completed.stdout
        evaluations = [entry for entry in site.entries() if entry.kind is EntryKind.EVALUATION]
        passed = {entry.problem for entry in evaluations if entry.verdict is Verdict.PASSED}
        assert passed == set(PROBLEMS), completed.stdout
        assert {entry.verdict for entry in evaluations} <= {Verdict.PASSED, Verdict.TIMEOUT}, completed.stdout
        site.no_strays()
    finally:
        site.close()
