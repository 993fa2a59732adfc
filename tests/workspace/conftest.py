"""The stub judge, and requests for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.model.judging import JudgeRequest


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A problem with two workloads, as far as the stub reads one."""
    directory = tmp_path / "problem"
    directory.mkdir()
    (directory / "definition.json").write_text("{}")
    (directory / "workload.jsonl").write_text('{"uuid": "u1"}\n{"uuid": "u2"}\n')
    return directory


def request_for(problem: Path, source: str = "", *, number: str = "1") -> JudgeRequest:
    """A request to judge one source file."""
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
    """Processes (not zombies) of a process group."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members
