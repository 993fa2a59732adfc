"""Measure how many candidates of a real tuner run are judged in a minute, on each device and together.

    python -m benchmarks.tuner_run [--device DEVICE | --cluster ADDRESS] [--minutes 3] [--problem GLOB]... [--workers 6]

A run's first minutes belong to the baselines, which take longer with empty caches. So the rate of a device counts from
the end of its first evaluation or confirmation to the end of its last one. Run it once with `--device cuda` and one
visible GPU, and once with `--cluster auto` on a host with several; compare the rates and the numbers of evaluations.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness.git.repo import Repo
from harness.ledger.create_workspace import create_workspace
from harness.ledger.ledger import read_records
from harness.model.paths import ledger_file
from harness.workspace.directories import Workspace

_END_S = 120.0
"""Seconds that a run may take beyond its limit, to start and to judge what is queued."""


@dataclass
class DeviceRun:
    """Work of one device: the time of each evaluation or confirmation that was timed, and the number of baselines."""

    timed_at: list[datetime] = field(default_factory=list)
    judged_s: list[float] = field(default_factory=list)
    """Seconds that the judge built and judged, for each time in `timed_at`."""
    evaluations: int = 0
    baselines: int = 0

    @property
    def busy(self) -> float:
        """Share of the time from the first to the last one in which the judge built or judged one of them."""
        if len(self.timed_at) < 2:
            return 0.0
        first = min(range(len(self.timed_at)), key=self.timed_at.__getitem__)
        return (sum(self.judged_s) - self.judged_s[first]) / (max(self.timed_at) - self.timed_at[first]).total_seconds()

    @property
    def rate(self) -> float:
        """Evaluations and confirmations in a minute, from the first to the last."""
        if len(self.timed_at) < 2:
            return 0.0
        seconds = (max(self.timed_at) - min(self.timed_at)).total_seconds()
        return 60.0 * (len(self.timed_at) - 1) / seconds


def by_device(entries: Iterable[Mapping[str, Any]]) -> dict[str, DeviceRun]:
    """Return the work of each device.

    Args:
        entries: documents of the ledger. Candidates that were answered from the ledger are not counted.
    """
    devices: dict[str, DeviceRun] = defaultdict(DeviceRun)
    for entry in entries:
        if entry["kind"] not in {"baseline", "evaluation", "confirmation"} or entry.get("answered_from"):
            continue
        device = entry["device"]
        run = devices[" ".join(str(device[key]) for key in ("host", "name", "id") if device.get(key))]
        if entry["kind"] == "baseline":
            run.baselines += 1
            continue
        run.evaluations += entry["kind"] == "evaluation"
        run.timed_at.append(datetime.fromisoformat(str(entry["at"])))
        cost = entry.get("cost") or {}
        run.judged_s.append(float(cost.get("build_s", 0)) + float(cost.get("judge_s", 0)))
    return dict(devices)


def table(devices: Mapping[str, DeviceRun]) -> str:
    """Return one row for each device, and one for all together, whose rate is the sum of the rates.

    Args:
        devices: the work of each device, by its name.
    """
    rows = [
        (
            name,
            run.baselines,
            run.evaluations,
            len(run.timed_at) - run.evaluations,
            f"{run.rate:.1f}",
            f"{run.busy:.0%}",
        )
        for name, run in sorted(devices.items())
    ]
    runs = devices.values()
    evaluations, timed = sum(run.evaluations for run in runs), sum(len(run.timed_at) for run in runs)
    rate = f"{sum(run.rate for run in runs):.1f}"
    rows.append(("all", sum(run.baselines for run in runs), evaluations, timed - evaluations, rate, ""))
    return tabulate(rows, headers=("device", "baselines", "evaluations", "confirmations", "a minute", "busy"))


def run_tuner(root: Path, problems: Sequence[str], arguments: Sequence[str], minutes: float) -> dict[str, DeviceRun]:
    """Run tuners in a new workspace, and return the work of each device.

    Args:
        root: directory of the workspace.
        problems: patterns of the problems; their suites are copied.
        arguments: further arguments of `harness start`.
        minutes: limit of the run.

    Raises:
        subprocess.CalledProcessError: `harness start` failed; its output was printed.
        subprocess.TimeoutExpired: it did not end.
    """
    workspace = create_workspace(root / "tuner", suites=sorted({glob.partition("/")[0] for glob in problems})).workspace
    patterns = [argument for glob in problems for argument in ("--problem", glob)]
    limit = ("--max-minutes", str(minutes))
    subprocess.run(
        [sys.executable, "-m", "harness", "start", "--agent", "tuner", *limit, *patterns, *arguments],
        cwd=workspace.root,
        stdin=subprocess.DEVNULL,
        timeout=60.0 * minutes + _END_S,
        check=True,
    )
    return by_device(_entries(workspace))


def _entries(workspace: Workspace) -> list[dict[str, Any]]:
    keys = [
        "/".join(path.parent.parts[-2:]) for path in sorted((workspace.root / "problems").glob("*/*/definition.json"))
    ]
    with Repo(workspace) as repo:
        return [entry for key in keys for entry in read_records(workspace, repo, ledger_file(key), branch="main")]


def main() -> None:
    """Run the tuners, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cluster")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--problem", action="append", help="pattern SUITE/NAME; may be given often")
    options = parser.parse_args()
    judges = ("--cluster", options.cluster) if options.cluster else ("--device", options.device)
    problems = options.problem or ["starter/swiglu*", "moe/topk*"]
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        arguments = ["--workers", str(options.workers), *judges]
        devices = run_tuner(Path(directory), problems, arguments, options.minutes)
    sys.stdout.write(table(devices) + "\n")


if __name__ == "__main__":
    main()
