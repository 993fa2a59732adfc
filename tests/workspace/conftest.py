"""The stub judge, and requests for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.model.judging import JudgeRequest


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """Make the parts of a problem with two workloads that the stub reads."""
    directory = tmp_path / "problem"
    directory.mkdir()
    (directory / "definition.json").write_text("{}")
    (directory / "workload.jsonl").write_text('{"uuid": "u1"}\n{"uuid": "u2"}\n')
    return directory


def request_for(problem: Path, source: str = "", *, number: str = "1") -> JudgeRequest:
    """Return a request to judge one source file."""
    solution = problem.parent / f"solution{number}"
    solution.mkdir()
    (solution / "kernel.cpp").write_text(source)
    return JudgeRequest(
        id=number,
        kind="evaluation",
        problem="t/p",
        problem_dir=str(problem),
        problem_digest="sha256:0",
        solution_dir=str(solution),
        baseline={"u1": "eager", "u2": "compile"},
    )


def group_of(pid: int) -> list[int]:
    """Return the processes of a process group, without zombies."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members
