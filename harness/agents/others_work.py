"""Solutions of others as an agent reads them: files in its sandbox, and differences between two attempts."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.ledger.candidates import TriedCandidate
from harness.model.truncate import one_line
from harness.model.verdict import Verdict
from harness.workspace.files import atomic_write

DIRECTORY = "others"
_MOST_WORKERS = 4
_MOST_LINES = 150
_MESSAGE = 160

Sources = Callable[[str], Mapping[str, str]]
"""Commit -> the text files of its solution directory, by name."""


def best_of_others(history: Sequence[TriedCandidate], worker: str, champion: str | None) -> dict[str, TriedCandidate]:
    """Choose what to show: directory name -> the champion, and the fastest of each other worker, the best first.

    Args:
        history: every candidate of the problem.
        worker: whose own attempts are left out.
        champion: the champion's tree.
    """
    passed = [each for each in history if each.verdict is Verdict.PASSED and each.speedup and each.commit]
    ranked = sorted(passed, key=lambda each: -(each.speedup or 0.0))
    best = next((each for each in ranked if each.tree == champion), None)
    chosen = {"champion": best} if best is not None else {}
    for attempt in ranked:
        if attempt.worker not in {worker, *chosen} and attempt.tree != champion and len(chosen) <= _MOST_WORKERS:
            chosen[attempt.worker] = attempt
    return chosen


def show_others(reading: Path, chosen: Mapping[str, TriedCandidate], sources: Sources) -> None:
    """Write the chosen solutions below a directory that the agent sees read-only, with a list of what they are.

    Args:
        reading: the directory that the sandbox shows; `others/` in it is replaced.
        chosen: of `best_of_others`.
        sources: reads a commit's solution.
    """
    root = reading / DIRECTORY
    root.mkdir(parents=True, exist_ok=True)
    wanted: dict[Path, str] = {}
    lines = ["| directory | speed-up | worker | commit | message |", "| --- | --- | --- | --- | --- |"]
    for name, attempt in chosen.items():
        wanted |= {root / name / file: text for file, text in sources(attempt.commit).items()}
        message = one_line(attempt.message, _MESSAGE).replace("|", "/")
        lines.append(f"| {name}/ | {attempt.speedup:.3f}x | {attempt.worker} | {attempt.commit[:10]} | {message} |")
    wanted[root / "README.md"] = "\n".join(lines) + "\n" if chosen else "No solution of others has passed yet.\n"
    for there in [path for path in root.rglob("*") if path.is_file() and path not in wanted]:
        there.unlink()
    for there in [path for path in root.iterdir() if path.is_dir() and path.name not in chosen]:
        shutil.rmtree(there)
    for file, text in wanted.items():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            atomic_write(file, text)


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Unified differences between two solutions, cut to a limited number of lines."""
    lines: list[str] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name, "").splitlines(), new.get(name, "").splitlines()
        lines += difflib.unified_diff(before, after, f"before/{name}", f"after/{name}", lineterm="", n=2)
    more = [f"... and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *more])
