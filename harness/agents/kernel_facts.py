"""Facts about a problem for an agent's first prompt: baseline times, bounds, the champion's times, the device.

Times come from the ledger. A separate process (`harness.sol.describe`) computes the bounds, once for each problem and
target.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.device_description import DeviceDescription
from harness.model.entry import Entry
from harness.model.judging import Baselines
from harness.model.problem import Problem
from harness.model.verdict import EntryKind
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, read_record

_DESCRIBE_S = 180.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelFacts:
    """Times and bounds of one problem on one target."""

    description: DeviceDescription
    baselines: Baselines = field(default_factory=dict)
    """Workload uuid -> variant -> microseconds per call, launches included."""
    sealed_baselines: Baselines = field(default_factory=dict)
    """The same without launches, for sealed and recorded solutions; empty where there is one clock."""
    champion: Entry | None = None
    """The evaluation or confirmation entry of the champion."""

    @property
    def champion_us(self) -> Mapping[str, float]:
        """Return workload uuid -> microseconds per call of the champion."""
        works = self.champion.workloads if self.champion else ()
        return {work.uuid: work.latency_us for work in works if work.latency_us is not None}


def read_facts(workspace: Workspace, index: Index, problem: Problem, target: str, champion: Row | None) -> KernelFacts:
    """Return the times and bounds of a problem.

    Args:
        workspace: its cache directory stores the bounds.
        index: index of the ledger, refreshed by the caller.
        problem: loaded from the worker's worktree.
        champion: the champion's confirmation; None without a champion.
    """
    rows = index.rows(problem.key, target=target, kind=EntryKind.BASELINE)
    present = [row for row in rows if row.problem_digest == problem.digest]
    baseline = index.entry(problem.key, present[-1].seq) if present else None
    return KernelFacts(
        description=_description(workspace, problem, target),
        baselines=baseline.baselines if baseline else {},
        sealed_baselines=baseline.sealed_baselines if baseline else {},
        champion=index.entry(champion.problem, champion.seq) if champion else None,
    )


def _description(workspace: Workspace, problem: Problem, target: str) -> DeviceDescription:
    """Return bounds and device, from the cache or computed now; both are empty if this host cannot compute them."""
    empty = DeviceDescription(target=target)
    if os.environ.get("HARNESS_JUDGE_COMMAND"):
        return empty  # another program judges, perhaps on a machine with other hardware
    file = workspace.cache / "bounds" / f"{problem.digest.removeprefix('sha256:')[:24]}-{target}.json"
    stored = read_record(file, DeviceDescription)
    if stored is not None:
        return stored
    request = {
        "problem_dir": str(problem.directory),
        "problem": problem.key,
        "data_root": str(problem.data_root) if problem.data_root else None,
        "target": target,
        "cache": str(workspace.cache),
    }
    command = ["nice", "-n", "5", sys.executable, "-m", "harness.sol.describe", json.dumps(request)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DESCRIBE_S, check=True)
        description = DeviceDescription.model_validate_json(done.stdout)
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        reason = error.stderr.strip()[-300:] if isinstance(error, subprocess.CalledProcessError) else error
        logger.warning("%s has no bounds in its prompt: %s", problem.key, reason)
        return empty
    atomic_write(file, description.model_dump_json())
    return description
