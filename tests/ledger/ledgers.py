"""Workspaces with a real repository, and entries as the daemon drafts them."""

from __future__ import annotations

import math
import os
import random
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.ledger.ledger import Ledger
from harness.model.entry import Candidate, EntryDraft
from harness.model.interval import summarise, workload_interval
from harness.model.judging import JUDGE_PROTOCOL, Cost, DeviceRecord, EnvironmentRecord, Summary, WorkloadResult
from harness.model.verdict import EntryKind, Trust, Verdict
from harness.workspace.directories import Workspace

PROBLEM = "starter/rmsnorm_h4096"
DIGEST = "sha256:" + "b" * 64
JUDGE = "sha256:" + "e" * 64
START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def git(root: Path, *arguments: str, stdin: bytes | None = None) -> str:
    """Run git with a separate configuration, as a person does."""
    identity = {
        "GIT_AUTHOR_NAME": "p",
        "GIT_AUTHOR_EMAIL": "p@x",
        "GIT_COMMITTER_NAME": "p",
        "GIT_COMMITTER_EMAIL": "p@x",
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = ["git", "-C", str(root), *arguments]
    completed = subprocess.run(command, env=environment, input=stdin, capture_output=True, check=True, timeout=240)
    return completed.stdout.decode().strip()


def make_workspace(root: Path, files: dict[str, str] | None = None) -> Workspace:
    """Make a repository on branch main with harness.yaml and `files` committed."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    for name, text in {"harness.yaml": "run: main\n", ".gitignore": "/.harness/\n", **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    return Workspace(root)


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[bool]:
    """Yield true with a small file system mounted at `at`; false if this process may not mount one (in a container)."""
    at.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(at)], check=True)


@contextmanager
def required_small_disk(at: Path, size: str) -> Iterator[None]:
    """Mount a small file system at `at`; skip the test if this process may not mount one."""
    with small_disk(at, size) as mounted:
        if not mounted:
            pytest.skip("this process may not mount a file system: that takes root, and a container that allows it")
        yield


def ticking(start: datetime = START, step_s: float = 1.0) -> Callable[[], datetime]:
    """Return a clock that advances by `step_s` each time it is read."""
    ticks = iter(range(10**9))
    return lambda: start + timedelta(seconds=step_s * next(ticks))


def workload(
    speedup: float = 1.5, *, spread: float = 0.01, blocks: int = 12, seed: int = 1, verdict: Verdict = Verdict.PASSED
) -> WorkloadResult:
    """Return one workload's result with consistent numbers."""
    rng = random.Random(seed)
    name = str(uuid.UUID(int=seed))
    if verdict is not Verdict.PASSED:
        return WorkloadResult(uuid=name, verdict=verdict, reason="3 of 4096 elements are off")
    ratios = tuple(rng.gauss(math.log(speedup), spread) for _ in range(blocks))
    measured, interval = workload_interval(ratios)
    baseline, sol = 12.0, 3.0
    latency = baseline / measured
    return WorkloadResult(
        uuid=name,
        verdict=verdict,
        latency_us=latency,
        baseline_us=baseline,
        speedup=measured,
        speedup_ci95=interval,
        log_ratios=ratios,
        claimed_us=latency,
        subtracted_us=0.1,
        sol_us=sol,
        floor_us=2.0,
        score=1 / (1 + (latency - sol) / (baseline - sol)),
        max_abs_error=1e-5,
        max_rel_error=1.2e-3,
        matched=1.0,
        checked=256,
        calls=256,
        blocks=blocks,
        discarded=0,
        variant="eager",
    )


def draft(
    kind: str = "evaluation",
    *,
    tree: str = "d" * 40,
    commit: str = "c" * 40,
    speedup: float = 1.5,
    verdict: Verdict = Verdict.PASSED,
    problem: str = PROBLEM,
    digest: str = DIGEST,
    worker: str = "w01",
    run: str = "main",
    cites: int | None = None,
    trust: Trust = Trust.BOUNDED,
    judge: str = JUDGE,
    judge_protocol: int = JUDGE_PROTOCOL,
    workloads: Sequence[WorkloadResult] | None = None,
) -> EntryDraft:
    """Return the draft of an entry as the daemon makes it from a judge's answer."""
    environment = EnvironmentRecord(harness="0.1.0", judge=judge, python="3.11", torch="2.13.0", sandbox="bubblewrap")
    device = DeviceRecord.model_validate(
        {"name": "EPYC", "id": "cpu:3", "clocks_mhz": [2400.0, 2450.5], "handshake_us": 90.0}
    )
    passed = verdict is Verdict.PASSED
    if workloads is None:
        workloads = [
            workload(speedup, seed=1),
            workload(speedup * 1.1, seed=2, verdict=Verdict.PASSED if passed else verdict),
        ]
    candidate = Candidate(
        commit=commit, tree=tree, branch=f"agents/{run}/{worker}/{problem}", worker=worker, language="cpp"
    )
    fixed = {"run": run, "problem": problem, "problem_digest": digest, "target": "cpu"}
    if kind == "baseline":
        times = {str(uuid.UUID(int=seed)): {"eager": 12.0, "compile": 12.5} for seed in (1, 2)}
        return EntryDraft.model_validate(
            {
                **fixed,
                "kind": kind,
                "device": device,
                "environment": environment,
                "judge_protocol": judge_protocol,
                "verdict": Verdict.PASSED,
                "trust": trust,
                "baselines": times,
                "summary": Summary(passed=2, of=2),
                "cost": Cost(judge_s=1.0),
            }
        )
    if kind == "champion":
        return EntryDraft.model_validate({**fixed, "kind": kind, "candidate": candidate, "cites": cites})
    if kind == "note":
        return EntryDraft.model_validate({**fixed, "kind": kind, "note": "the device was replaced"})
    return EntryDraft(
        run=run,
        problem=problem,
        problem_digest=digest,
        target="cpu",
        kind=EntryKind(kind),
        cites=cites,
        candidate=candidate,
        device=device,
        environment=environment,
        judge_protocol=judge_protocol,
        verdict=verdict,
        reason=None if passed else "3 of 4096 elements are off",
        trust=trust,
        workloads=tuple(workloads),
        summary=summarise(workloads),
        cost=Cost(build_s=0.5, judge_s=2.5),
    )


def fill(ledger: Ledger, count: int = 3) -> None:
    """Append evaluations of distinct trees."""
    for number in range(count):
        ledger.append(draft(tree=f"{number:040x}"))
