"""Both judges on the GPU, one of each a session; without a GPU every test here is skipped and says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.gpu.cases import HONEST, PROBLEMS, write_problem
from tests.judge.attacks.conftest import Case, Courts, Lines, start

_HERE = Path(__file__).parent


def why_not() -> str | None:
    """Why GPU tests cannot run here; asked without torch, which takes seconds."""
    if shutil.which("nvidia-smi") is None or not list(Path("/dev").glob("nvidia[0-9]*")):
        return "no CUDA device here: neither nvidia-smi nor /dev/nvidia0"
    return None


def evaluated(solution: Path, problem: Path, tmp_path: Path, within_s: float) -> str:
    """The verdict of `harness evaluate` on a solution, in a home and a cache of its own."""
    command = [sys.executable, "-m", "harness", "evaluate", str(solution), "--problem", str(problem)]
    command += ["--device", "cuda", "--against", "eager", "--half-width", "0.05", "--json"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return str(json.loads(done.stdout)["verdict"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


class GpuCourts(Courts):
    """The same courts for GPU code."""

    def honest(self, attack: Case) -> Case:
        """The honest solution of the same problem."""
        return HONEST[attack.problem]


@pytest.fixture(scope="session")
def courts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCourts]:
    directory = tmp_path_factory.mktemp("gpu-courts")
    locks, cache, home = (directory / name for name in ("locks", "cache", "home"))
    for made in (locks, cache, home):
        made.mkdir()
    environment = {"HARNESS_LOCK_DIR": str(locks), "HOME": str(home)}
    arguments = ["harness.judge", "--device", "cuda", "--cache", str(cache), "--sandbox", "bubblewrap"]
    real = start(arguments, environment, directory / "real.log")
    naive = partial(start, ["tests.gpu.naive"], environment, directory / "naive.log")
    problems = {name: write_problem(directory / "problems", name) for name in PROBLEMS}
    courts = GpuCourts(directory, naive, real, problems, 0)
    courts.secret.write_text("nobody's business")
    try:
        ready = _first(real, directory / "real.log")
        assert ready["event"] == "ready"
        yield courts
    finally:
        courts.close()


def _first(real: Lines, log: Path) -> dict[str, object]:
    begin = time.monotonic()
    try:
        first: dict[str, object] = json.loads(real.answer())
    except AssertionError:
        pytest.fail(f"the judge did not start within {time.monotonic() - begin:.0f} s: {log.read_text()[-2000:]}")
    return first
