"""A judge of a GPU on a machine with the Multi-Process Service.

A process with the daemon's name stands in for it, because a real daemon would change every program that uses this
machine's GPUs. Other judges of this machine refuse to work while this test runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gpu.cases import HONEST, write_problem
from tests.gpu.conftest import evaluated


@contextmanager
def mps_daemon(directory: Path) -> Iterator[None]:
    program = directory / "nvidia-cuda-mps-control"
    shutil.copyfile(shutil.which("sleep") or "/bin/sleep", program)
    program.chmod(0o755)
    with subprocess.Popen([program, "600"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_nothing_is_judged_beside_mps_and_the_next_candidate_is(tmp_path: Path) -> None:
    problem = write_problem(tmp_path / "problems", "norm")
    solution = HONEST["norm"].write(tmp_path / "solution", {})
    active = re.escape("the Multi-Process Service (MPS) is active")
    with mps_daemon(tmp_path), pytest.raises(AssertionError, match=active):
        evaluated(solution, problem, tmp_path, 100.0)
    assert evaluated(solution, problem, tmp_path, 100.0) == "PASSED"
