"""Solutions of other workers, shown to an agent: files in its sandbox, and differences between two attempts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.ledger.candidates import TriedCandidate
from harness.model.printable import one_line
from harness.model.verdict import Verdict
from harness.workspace.files import replace_files

DIRECTORY = "others"
_MAX_WORKERS = 4
_MAX_LINES = 150
_LONGEST_MESSAGE = 160

Sources = Callable[[str], Mapping[str, str]]
"""Commit -> the text files of its solution directory, by name."""


def best_of_others(history: Sequence[TriedCandidate], worker: str, champion: str | None) -> dict[str, TriedCandidate]:
    """Return the solutions to show by directory name: the champion and the fastest of each other worker, best first.

    Args:
        history: all candidates of the problem.
        worker: the reader, whose own attempts are omitted.
        champion: the champion's tree id.
    """
    passed = [tried for tried in history if tried.verdict is Verdict.PASSED and tried.speedup and tried.commit]
    ranked = sorted(passed, key=lambda tried: -(tried.speedup or 0.0))
    best = next((tried for tried in ranked if tried.tree == champion), None)
    chosen = {"champion": best} if best is not None else {}
    for attempt in ranked:
        if attempt.worker not in {worker, *chosen} and attempt.tree != champion and len(chosen) <= _MAX_WORKERS:
            chosen[attempt.worker] = attempt
    return chosen


def show_others(reading: Path, chosen: Mapping[str, TriedCandidate], sources: Sources) -> None:
    """Write the chosen solutions and a table of them to a directory that the agent can only read.

    Args:
        reading: the directory that the sandbox mounts; `others/` in it is replaced.
        chosen: the result of `best_of_others`.
    """
    files: dict[str, bytes] = {}
    lines = ["| directory | speed-up | worker | commit | message |", "| --- | --- | --- | --- | --- |"]
    for name, attempt in chosen.items():
        files |= {f"{name}/{file}": text.encode() for file, text in sources(attempt.commit).items()}
        message = one_line(attempt.message, _LONGEST_MESSAGE).replace("|", "/")
        lines.append(f"| {name}/ | {attempt.speedup:.3f}x | {attempt.worker} | {attempt.commit[:10]} | {message} |")
    table = "\n".join(lines) + "\n" if chosen else "No solution of another worker has passed yet.\n"
    replace_files(reading / DIRECTORY, {**files, "README.md": table.encode()})


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return the unified diff of two solutions, truncated to 150 lines.

    Args:
        old: file name -> text of the first solution.
        new: file name -> text of the second solution.
    """
    lines: list[str] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name, "").splitlines(), new.get(name, "").splitlines()
        lines += difflib.unified_diff(before, after, f"before/{name}", f"after/{name}", lineterm="", n=2)
    omitted = [f"... and {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else []
    return "\n".join([*lines[:_MAX_LINES], *omitted])
