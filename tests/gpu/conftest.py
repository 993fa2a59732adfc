"""One naive and one real judge per session on the GPU; without a GPU every test in this directory is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.model.judging import JudgeAnswer
from tests.gpu.cases import PROBLEMS, Attack, write_problem
from tests.gpu.honest_versions import HONEST_VERSIONS
from tests.judge.attacks.conftest import Case, Courts, Lines, start

_HERE = Path(__file__).parent


def missing_gpu_reason() -> str | None:
    """Return the reason why GPU tests cannot run here, without importing torch, which takes seconds."""
    if shutil.which("nvidia-smi") is None or not list(Path("/dev").glob("nvidia[0-9]*")):
        return "no CUDA device here: neither nvidia-smi nor /dev/nvidia0"
    return None


def evaluated(solution: Path, problem: Path, tmp_path: Path, within_s: float) -> str:
    """Return the verdict of `harness evaluate` on a solution, with a new home and cache."""
    return str(answer_on(solution, problem, tmp_path, within_s)["verdict"])


def answer_on(
    solution: Path, problem: Path, tmp_path: Path, within_s: float, half_width: float = 0.05
) -> dict[str, Any]:
    """Return the answer of `harness evaluate` against the eager reference, with a new home and cache."""
    command = [sys.executable, "-m", "harness", "evaluate", str(solution), "--problem", str(problem)]
    command += ["--device", "cuda", "--against", "eager", "--half-width", str(half_width), "--json"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing_gpu_reason()
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


class GpuCourts(Courts):
    """The courts of GPU code. One judge runs at a time: it would count another's processes as foreign ones."""

    start_judge: Callable[[tuple[str, ...]], Lines]
    """Function that starts a judge without the named defences (tests.gpu.undefended)."""
    off: tuple[str, ...] = ()
    """Defences of the running judge that are switched off."""

    def honest(self, attack: Case) -> Case:
        """Return the honest version of an attack, with the same clock in the naive judge."""
        assert isinstance(attack, Attack)
        honest = HONEST_VERSIONS[attack.version or attack.problem]
        return replace(honest, name=f"{honest.name}_{attack.naive_clock}", naive_clock=attack.naive_clock)

    def real(self, attack: Case, **settings: Any) -> JudgeAnswer:
        """Return the real judge's answer."""
        self._use(())
        return super().real(attack, **settings)

    def undefended(self, attack: Case, off: tuple[str, ...], **settings: Any) -> JudgeAnswer:
        """Return the answer of a judge without the named defences."""
        self._use(off)
        return super().real(attack, **settings)

    def forget(self, honest: Case) -> None:
        """Discard an honest solution's answer, so that it is judged again."""
        self._real.pop(honest.name, None)

    def _use(self, off: tuple[str, ...]) -> None:
        if off == self.off:
            return
        self.real_judge.close()
        self.real_judge, self.off = self.start_judge(off), off


@pytest.fixture(scope="session")
def courts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCourts]:
    directory = tmp_path_factory.mktemp("gpu-courts")
    locks, cache, home = (directory / name for name in ("locks", "cache", "home"))
    for place in (locks, cache, home):
        place.mkdir()
    environment = {"HARNESS_LOCK_DIR": str(locks), "HOME": str(home)}
    options = ["--device", "cuda", "--cache", str(cache), "--sandbox", "bubblewrap"]

    def start_judge(off: tuple[str, ...]) -> Lines:
        module = ["tests.gpu.undefended", ",".join(off)] if off else ["harness.judge"]
        log = directory / f"{'-'.join(off) or 'real'}.log"
        judge = start([*module, *options], environment, log)
        assert _first(judge, log)["event"] == "ready"
        return judge

    naive = partial(start, ["tests.gpu.naive"], environment, directory / "naive.log")
    problems = {name: write_problem(directory / "problems", name) for name in PROBLEMS}
    courts = GpuCourts(directory, naive, start_judge(()), problems, 0)
    courts.start_judge = start_judge
    courts.secret.write_text("private business")
    try:
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
