"""Store solutions that passed on this judge, in the form that the trusted launcher loads: cubins and plans.

A stored solution is the proof that it passed: only the judge can write this part of its cache, and no sandbox can. A
profile is made from the stored files, without any process of the candidate.
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
from harness.judge.sides import Stage, Staged
from harness.judge.version import judge_version
from harness.model.problem import Problem
from harness.model.solution import Solution

_MAX_REPLAYS = 256
"""Number of stored solutions; the oldest are removed."""
_PLAN = "replay.json"
_FILES = ("kernel.cubin", "names.json")


@dataclass(frozen=True)
class Replay:
    """Files and plans of one solution for the trusted launcher."""

    directory: Path
    artefacts: tuple[str, ...]
    """Names of directories below `directory`, each with a cubin and its kernels' names."""
    plans: Mapping[str, Mapping[str, Any]]
    """Workload uuid -> `ResolvedPlan` as plain data."""

    @property
    def symbols(self) -> dict[str, str]:
        """Name of a kernel in the plan -> its symbol."""
        symbols: dict[str, str] = {}
        for name in self.artefacts:
            symbols |= load_json_file(self.directory / name / "names.json")["symbols"]
        return symbols

    def copy_artefacts(self, stage: Path) -> list[Path]:
        """Copy the cubins and names to new directories below `stage`, and return these directories."""
        copies = []
        for number, name in enumerate(self.artefacts):
            target = stage / f"replay-{number}"
            target.mkdir()
            for file in _FILES:
                shutil.copyfile(self.directory / name / file, target / file)
            copies.append(target)
        return copies


def replay_key(problem: Problem, solution: Solution, device_name: str) -> str:
    """Return the key of a solution's replay: a digest of solution, problem, judge version and device name.

    Args:
        problem: the problem.
        solution: the solution.
        device_name: name of the device.
    """
    return content_key(solution, [problem.digest, judge_version(), device_name])


def store_replay(cache_dir: Path, key: str, staged: Staged) -> None:
    """Store a sealed or recorded solution that passed, and remove the oldest replays.

    Args:
        cache_dir: the judge's cache.
        key: see `replay_key`.
        staged: the solution.
    """
    store = cache_dir / "replays"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix="incoming-") as scratch:
        incoming = Path(scratch) / "replay"
        incoming.mkdir()
        artefacts = list(staged.put(Stage(incoming, lambda path: str(path.relative_to(incoming)))).artefacts)
        (incoming / _PLAN).write_text(json.dumps({"artefacts": artefacts, "plans": dict(staged.plans)}))
        (incoming / "sha256").write_text(_digest(incoming, artefacts))
        shutil.rmtree(store / key, ignore_errors=True)
        incoming.rename(store / key)
    replays = sorted((path for path in store.iterdir() if not path.name.startswith("incoming-")), key=_stored_at)
    for path in replays[:-_MAX_REPLAYS]:
        shutil.rmtree(path, ignore_errors=True)


def find_replay(cache_dir: Path, key: str) -> Replay | None:
    """Return a stored replay; None if the solution has not passed on this judge, or its files are damaged.

    Args:
        cache_dir: the judge's cache.
        key: see `replay_key`.
    """
    directory = cache_dir / "replays" / key
    with contextlib.suppress(OSError, FormatError, KeyError):
        content = load_json_file(directory / _PLAN)
        if (directory / "sha256").read_text() == _digest(directory, content["artefacts"]):
            return Replay(directory, tuple(content["artefacts"]), content["plans"])
    return None


def _stored_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another judge has removed it
        return 0.0


def _digest(directory: Path, artefacts: object) -> str:
    assert isinstance(artefacts, list)  # noqa: S101 - the message of a sealed solution has its directories
    digest = hashlib.sha256((directory / _PLAN).read_bytes())
    for name in artefacts:
        for file in _FILES:
            digest.update((directory / str(name) / file).read_bytes())
    return digest.hexdigest()
