"""Solutions that passed here, kept as what the trusted launcher loads: cubins, and a plan for each workload.

Being kept is the proof of having passed: the judge writes this part of its cache, and no sandbox can. A profile is made
from it, without any process of the candidate.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.judge.build.builder import content_key
from harness.judge.sides import Staged
from harness.judge.version import judge_version
from harness.model.problem import Problem
from harness.model.solution import Solution

_MOST = 256
"""Solutions that are kept; the oldest are removed."""
_PLAN = "replay.json"
_FILES = ("kernel.cubin", "names.json")


@dataclass(frozen=True)
class Replay:
    """Files and plans of one solution, as the trusted launcher loads them."""

    directory: Path
    artefacts: tuple[str, ...]
    """Directories below it, each with a cubin and its kernels' names."""
    plans: Mapping[str, Mapping[str, Any]]
    """Workload uuid -> `ResolvedPlan` as plain data."""

    @property
    def symbols(self) -> dict[str, str]:
        """Name of a kernel in the plan -> its symbol."""
        found: dict[str, str] = {}
        for name in self.artefacts:
            found |= load_json_file(self.directory / name / "names.json")["symbols"]
        return found

    def copy_artefacts(self, stage: Path) -> list[Path]:
        """Copy the cubins and names below a directory, and return their directories."""
        copies = []
        for number, name in enumerate(self.artefacts):
            target = stage / f"replay-{number}"
            target.mkdir()
            for file in _FILES:
                shutil.copyfile(self.directory / name / file, target / file)
            copies.append(target)
        return copies


@dataclass(frozen=True)
class _ReplayStage:
    """Takes the place of a runner's stage, so that staging writes to the cache."""

    stage: Path

    def inside(self, path: Path) -> str:
        return str(path.relative_to(self.stage)) if path != self.stage else "."


def replay_key(problem: Problem, solution: Solution, device_name: str) -> str:
    """Name of a solution's replay: its content, the problem's, this judge's version and the kind of device."""
    return content_key(solution, [problem.digest, judge_version(), device_name])


def keep_replay(cache_dir: Path, key: str, staged: Staged) -> None:
    """Keep a sealed or recorded solution that passed."""
    store = cache_dir / "replays"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix="incoming-") as scratch:
        incoming = Path(scratch) / "replay"
        incoming.mkdir()
        words = staged.put(_ReplayStage(incoming))
        (incoming / _PLAN).write_text(json.dumps({"artefacts": words["artefacts"], "plans": dict(staged.plans)}))
        (incoming / "sha256").write_text(_digest(incoming, words["artefacts"]))
        shutil.rmtree(store / key, ignore_errors=True)
        incoming.rename(store / key)
    kept = sorted((path for path in store.iterdir() if not path.name.startswith("incoming-")), key=_kept_at)
    for path in kept[:-_MOST]:
        shutil.rmtree(path, ignore_errors=True)


def find_replay(cache_dir: Path, key: str) -> Replay | None:
    """Return the replay of this key; None if the solution has not passed here, or its files are damaged."""
    directory = cache_dir / "replays" / key
    with contextlib.suppress(OSError, FormatError, KeyError):
        content = load_json_file(directory / _PLAN)
        if (directory / "sha256").read_text() == _digest(directory, content["artefacts"]):
            return Replay(directory, tuple(content["artefacts"]), content["plans"])
    return None


def _kept_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another judge has removed it
        return 0.0


def _digest(directory: Path, artefacts: object) -> str:
    assert isinstance(artefacts, list)  # noqa: S101 - staging a sealed solution names its directories
    digest = hashlib.sha256((directory / _PLAN).read_bytes())
    for name in artefacts:
        for file in _FILES:
            digest.update((directory / str(name) / file).read_bytes())
    return digest.hexdigest()
