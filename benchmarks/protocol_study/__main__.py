"""Run the study of timing protocols: `python -m benchmarks.protocol_study --out FILE`.

A cell is one protocol with one adversary. Its line in the results file is written when it ends, so that a run can be
resumed. A judge without output for too long is killed, and its cell is recorded as failed. Another judge runs the
remaining cells.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .cells import Cell, select, shard
from .results import load, remaining, render

_SILENCE_S = 25.0
"""Maximum time without a new line in the results file; every cell is shorter, including the start of a judge."""
_LOOK_S = 0.25


def main() -> None:
    """Run the remaining selected cells, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--adversary", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--out", type=Path, default=Path("protocol_study.jsonl"))
    parser.add_argument("--resume", action="store_true", help="keep the file's results, run what is missing or failed")
    parser.add_argument("--shard", default="0/1", help="INDEX/COUNT: every COUNT-th cell")
    parser.add_argument(
        "--calls", type=int, default=0, help="calls per cell (a smoke test), instead of each cell's own"
    )
    parser.add_argument("--first", action="store_true", help="only the first cell of each protocol and adversary")
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no cell after so many seconds")
    parser.add_argument("--dry-run", action="store_true", help="every process and message, without a GPU")
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    parser.add_argument("--render", action="store_true", help="print the tables of an existing file and stop")
    options = parser.parse_args()
    protocols, adversaries = (
        [part for part in text.split(",") if part] for text in (options.protocol, options.adversary)
    )
    index, count = (int(part) for part in options.shard.split("/"))
    cells = shard(select(protocols, adversaries, calls=options.calls), index, count)
    if options.first:
        cells = list({(cell.protocol, cell.adversary): cell for cell in reversed(cells)}.values())[::-1]
    if options.list:
        print("\n".join(cell.identity for cell in cells))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not options.render:
        if not options.resume:
            options.out.unlink(missing_ok=True)
        run(cells, options.out, options.budget_s, dry=options.dry_run)
    print(render(load(options.out)))


def run(cells: Sequence[Cell], out: Path, budget_s: float, *, dry: bool) -> None:
    """Run cells in judge processes until none remains or the time limit is reached.

    Args:
        cells: the selected cells.
        out: file of results.
        budget_s: seconds after which no cell starts.
        dry: use `DryGpu` instead of a GPU.
    """
    deadline = time.monotonic() + budget_s
    attempted: set[str] = set()
    left = remaining(cells, load(out), retry_failed=True)
    while left and time.monotonic() < deadline:
        _one_judge(left, out, deadline, dry=dry)
        done = {record["cell"] for record in load(out)}
        first = next((cell for cell in left if cell.identity not in done), None)
        if first is None:
            return
        if time.monotonic() < deadline:  # the judge ended, or was ended, in this cell
            _record_failure(out, first, "the judge process ended or was silent for too long")
        attempted |= done | {first.identity}
        left = [cell for cell in left if cell.identity not in attempted]


def _one_judge(cells: Sequence[Cell], out: Path, deadline: float, *, dry: bool) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as listed:
        json.dump([asdict(cell) for cell in cells], listed)
        listed.flush()
        command = [
            sys.executable,
            "-u",
            "-m",
            "benchmarks.protocol_study.judge",
            "--cells",
            listed.name,
            "--out",
            str(out),
        ]
        limit = max(1, int(min(deadline - time.monotonic(), 3600)))
        process = subprocess.Popen(
            ["timeout", "-k", "5", str(limit), *command, *(["--dry-run"] if dry else [])],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        size, changed = -1, time.monotonic()
        try:
            while process.poll() is None:
                if out.exists() and out.stat().st_size != size:
                    size, changed = out.stat().st_size, time.monotonic()
                if time.monotonic() - changed > _SILENCE_S:
                    break
                time.sleep(_LOOK_S)
        finally:
            _end_descendants(process.pid)
            process.wait()


def _end_descendants(pid: int) -> None:
    """Kill a process and its descendants: each runner has its own process group."""
    pending, descendants = [pid], [pid]
    while pending:
        parent = pending.pop()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(words[1]) == parent and int(stat.parent.name) not in descendants:
                pending.append(int(stat.parent.name))
                descendants.append(int(stat.parent.name))
    for descendant in descendants:
        try:
            os.kill(descendant, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _record_failure(out: Path, cell: Cell, reason: str) -> None:
    record = {"cell": cell.identity, "fields": asdict(cell), "status": "failed", "reason": reason, "seconds": 0}
    with out.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
