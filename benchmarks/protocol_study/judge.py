"""The judge process: runs the calls of each cell by its protocol, and writes one line for each cell.

`python -m benchmarks.protocol_study.judge --cells CELLS --out RESULTS [--dry-run]`, started by the package's command.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cells import Cell
from .cycles import Cycles, Side, stop_processes
from .doorbell import (
    EMPTY,
    SEQUENCE,
    STOP,
    NoAnswerError,
)
from .results import COLUMNS

_EMPTIES = 30


class Judge:
    """Runs all calls of a cell."""

    def __init__(self, cycles: Cycles) -> None:
        self.cycles = cycles

    def run(self, cell: Cell) -> dict[str, Any]:
        """Run all calls of a cell and return its record."""
        self._take_core(pinned=cell.pinned)
        self.cycles.begin()
        record = self._run_pair(cell) if cell.pair else self._run_alone(cell)
        self.cycles.gpu.synchronize(self.cycles.stream)
        counts = self.cycles.gpu.read_ints(self.cycles.counts, 2 * self.cycles.row)
        record["wrong"], record["changed"] = counts[::2], counts[1::2]
        return record

    def _run_alone(self, cell: Cell) -> dict[str, Any]:
        adversary = cell.adversary
        if cell.protocol == "events":
            adversary = {"honest": "sealed", "l2_last": "sealed_last"}[adversary]
        with self.cycles.side(cell, adversary) as side:
            kernel_us = (
                self.cycles.kernel_us(side.sets, side.elements, side.rounds) if cell.adversary == "honest" else 0.0
            )
            if cell.protocol == "v1":
                rows = self._repeat(cell, lambda: self.cycles.batch(side))
                empties = []
            else:
                empties = [self.cycles.cycle(side, kind=EMPTY) for _ in range(_EMPTIES)]
                rows = self._repeat(cell, lambda: self._held_cycle(side))
            record = {"kernel_us": kernel_us, "rounds": side.rounds, "calls": rows, "empty": empties}
            self._request_stop(side)
        return record

    def _held_cycle(self, side: Side) -> list[float]:
        """Run a call: half of the calls without a hold, the others with one of 0 to 1 ms, and some with a probe."""
        draw = random.random()
        if draw < 0.5:
            return self.cycles.cycle(side)
        if draw < 0.85:
            return self.cycles.cycle(side, hold_us=random.uniform(0, 1000))
        return self.cycles.cycle(side, hold_us=500.0, probe=True)

    def _repeat(self, cell: Cell, measure: Any) -> list[list[float]]:  # noqa: ANN401 - a closure
        deadline = time.monotonic() + cell.seconds
        rows: list[list[float]] = []
        while len(rows) < cell.calls and (time.monotonic() < deadline or len(rows) < 15):
            rows.append([round(value, 2) for value in measure()])
        return rows

    def _run_pair(self, cell: Cell) -> dict[str, Any]:
        """Time the baseline alone, then in turns with the candidate."""
        with self.cycles.side(cell, "honest", page=1) as baseline:
            before = self._repeat(cell, lambda: self.cycles.cycle(baseline))
            with self.cycles.side(cell, cell.adversary, page=0, rounds=baseline.rounds) as candidate:
                calls: list[list[float]] = []
                beside: list[list[float]] = []
                idle: list[float] = []
                deadline = time.monotonic() + 1.5 * cell.seconds
                while len(calls) < cell.calls and (time.monotonic() < deadline or len(calls) < 10):
                    calls.append([round(value, 2) for value in self.cycles.cycle(candidate)])
                    if cell.stopped:
                        stop_processes(candidate.pid)
                        idle.append(round(self.cycles.probe(), 2))
                    beside.append([round(value, 2) for value in self.cycles.cycle(baseline)])
                    if cell.stopped:
                        os.killpg(candidate.pid, signal.SIGCONT)
            after = self._repeat(cell, lambda: self.cycles.cycle(baseline))
            self._request_stop(baseline)
        return {"calls": calls, "before": before, "beside": beside, "after": after, "idle_probe_us": idle, "empty": []}

    def _request_stop(self, side: Side) -> None:
        bell = side.bell
        sequence = bell.request(STOP)
        bell.words[SEQUENCE] = sequence
        with contextlib.suppress(NoAnswerError):
            bell.wait_done(sequence, 1.0)

    def _take_core(self, *, pinned: bool) -> None:
        pinned = pinned and self.cycles.can_pin
        os.sched_setaffinity(0, {self.cycles.cores[-3]} if pinned else set(self.cycles.cores))
        policy, priority = (os.SCHED_FIFO, 10) if pinned else (os.SCHED_OTHER, 0)
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, policy, os.sched_param(priority))


def main() -> None:
    """Run cells one after the other, and write one JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    cells = [Cell(**fields) for fields in json.loads(options.cells.read_text())]
    cycles = Cycles(dry=options.dry_run)
    judge = Judge(cycles)
    gc.disable()
    facts = cycles.gpu.facts()
    for cell in cells:
        begin = time.monotonic()
        record: dict[str, Any] = {"cell": cell.identity, "fields": asdict(cell), "device": facts, "columns": COLUMNS}
        try:
            record |= {"status": "ok", **judge.run(cell)}
        except Exception as error:  # noqa: BLE001 - the border of a cell
            record |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        record["seconds"] = round(time.monotonic() - begin, 2)
        with options.out.open("a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
        print(f"{record['seconds']:5.2f} s {record['status']} {cell.identity} {record.get('reason', '')}", flush=True)
        gc.collect()
        if record["status"] == "failed" and "CUDA" in record["reason"].upper() and "NoAnswer" not in record["reason"]:
            raise SystemExit(3)  # the context may be broken: the command starts another judge
    cycles.service.close()


if __name__ == "__main__":
    main()
