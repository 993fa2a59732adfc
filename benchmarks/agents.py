"""Measure the load of many agents on one host: `python -m benchmarks.agents [--workers 16] [--turns 20]`.

Real SDK, CLI, sandbox, gateway, planner and daemon; a scripted model on the loopback and the stub judge. Overhead of a
turn is from the model's last byte to the next request of the same session: the CLI, a Read, and twice the gateway.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.agents import agents_site as its
from tests.scripted_model import ModelRequest, Say, ScriptedModel, Step, Use, scripted
from tests.site import Site, git, make_site

LIMIT_MIB, LIMIT_MS = 400, 150
"""Limits of the largest CLI's memory, and of the median overhead of a turn without the model's time."""
_LONGEST_S = 600.0
_WORKER = ["-m", "harness", "worker"]


def script(turns: int) -> list[Step]:
    """Return turns that each read another line, then write a note, which the planner records."""
    reads = [Use("Read", {"file_path": "/task/COORDINATION.md", "offset": n + 1, "limit": 2}) for n in range(turns - 2)]
    return [*reads, Use("mcp__harness__note", {"text": "it was read"}), Say("Done."), Say("Done."), Say("Done.")]


class Memory:
    """Peak resident set of every CLI and worker process below a process, read twice a second."""

    def __init__(self, below: int) -> None:
        self._below, self._stop = below, threading.Event()
        self._peak_mib: dict[str, dict[int, float]] = {"cli": {}, "worker": {}}
        self._thread = threading.Thread(target=self._watch, name="memory")
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            for pid, command in its.processes_below(self._below):
                program, *words = command.split() or [""]
                kind = "cli" if Path(program).name == "claude" else "worker" if words[:3] == _WORKER else ""
                with suppress(OSError, IndexError):  # it has just ended
                    if kind:
                        status = Path(f"/proc/{pid}/status").read_text()
                        self._peak_mib[kind][pid] = int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def peaks_mib(self, kind: str) -> list[float]:
        """Return the peaks of all processes of the kind `cli` or `worker`."""
        return list(self._peak_mib[kind].values()) or [math.nan]


@dataclass(frozen=True)
class Run:
    """Measurements of a run of agents."""

    workers: int
    complete_sessions: int
    """Number of sessions with all turns."""
    requests: tuple[ModelRequest, ...]
    turn_ms: list[float]
    cli_mib: list[float]
    worker_mib: list[float]
    seconds: float
    output: str


def complete_sessions(requests: Iterable[ModelRequest], turns: int) -> int:
    """Return the number of sessions with all turns.

    Args:
        requests: requests to the model.
        turns: number of requests of a complete session.
    """
    return sum(count >= turns for count in Counter(request.session for request in requests).values())


def run_agents(site: Site, workers: int, turns: int) -> Run:
    """Start all workers and wait until each has taken its turns, or for ten minutes.

    Args:
        site: the workspace.
        workers: number of workers.
        turns: turns of each session.
    """
    started_at = time.monotonic()
    with scripted(lambda _: script(turns)) as model:
        process = site.start("start", "--workers", str(workers), extra=its.environment(model))
        memory = Memory(process.pid)
        while complete_sessions(tuple(model.requests), turns) < workers and process.poll() is None:
            if time.monotonic() - started_at > _LONGEST_S:
                break
            time.sleep(0.5)
        seconds = time.monotonic() - started_at
        process.terminate()
        output, _ = process.communicate(timeout=120)
        memory.close()
        peaks = memory.peaks_mib("cli"), memory.peaks_mib("worker")
        complete = complete_sessions(model.requests, turns)
        return Run(workers, complete, tuple(model.requests), overheads_ms(model), *peaks, seconds, output)


def overheads_ms(model: ScriptedModel) -> list[float]:
    """Return the milliseconds of each turn from the answer's last byte to the session's next request."""
    overheads = []
    by_session: dict[str, list[ModelRequest]] = defaultdict(list)
    for request in model.requests:
        by_session[request.session].append(request)
    for requests_of_session in by_session.values():
        for before, after in itertools.pairwise(requests_of_session):
            sent = model.sent.get(id(before))
            if sent is not None:
                overheads.append((after.at - sent) * 1e3)
    return overheads


def figures(site: Site, run: Run) -> dict[str, object]:
    """Return the printed figures of a run and of its workspace.

    Args:
        site: the workspace after the run.
        run: the run's measurements.
    """
    firsts = {request.session: request.at for request in reversed(run.requests)}
    fsck = git(site.root, "fsck", "--no-dangling", "--no-progress")
    return {
        "workers": run.workers,
        "sessions with every turn": run.complete_sessions,
        "requests": len(run.requests),
        "seconds": round(run.seconds, 1),
        "first to last connect s": round(max(firsts.values()) - min(firsts.values()), 1) if firsts else None,
        "overhead per turn ms, median": round(statistics.median(run.turn_ms), 1),
        "overhead per turn ms, 95 %": round(statistics.quantiles(run.turn_ms, n=20)[-1], 1),
        "CLI peak MiB, largest": round(max(run.cli_mib), 1),
        "CLI peak MiB, median": round(statistics.median(run.cli_mib), 1),
        "worker process peak MiB, largest": round(max(run.worker_mib), 1),
        "coordination commits": int(git(site.root, "rev-list", "--count", "main")),
        "ledger and repository whole": site.run("audit").returncode == 0 and not fsck,
        "strays": len(site.strays()),
    }


def main() -> int:
    """Run the benchmark and return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-agents-"))
    site = Site(root / "site", root / "scratch")
    make_site(site.root, tuple(f"t/p{number:02d}" for number in range(options.workers)))
    its.configure(site, "policy: {slice_evaluations: 1}\nagent: {kind: claude, per_session: {repeats: 100}}")
    run = run_agents(site, options.workers, options.turns)
    figures_by_name = figures(site, run)
    site.close()
    for name, value in figures_by_name.items():
        print(f"{name:36} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures_by_name, indent=1))
    good = run.complete_sessions >= options.workers and figures_by_name["ledger and repository whole"]
    good = good and max(run.cli_mib) <= LIMIT_MIB and statistics.median(run.turn_ms) <= LIMIT_MS
    if not good:
        print(run.output[-3000:])
    shutil.rmtree(root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
