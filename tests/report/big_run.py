"""Synthetic runs of any size: a ledger with baselines, gains, confirmations, failures, moves and accounts."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.formats.ledger_documents import HEADER, hash_of, render, render_entry
from harness.formats.ledger_heads import Head, render_heads
from harness.model.entry import Candidate, Entry, EntryDraft
from harness.model.interval import summarise, workload_interval
from harness.model.judging import Cost, WorkloadResult
from harness.model.paths import HEADS, ledger_file
from harness.model.verdict import EntryKind, Trust, Verdict
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import draft, make_workspace

BEGIN = datetime(2026, 10, 30, 8, 0, tzinfo=UTC)
_WORKLOADS, _BLOCKS = 2, 12
_FAILURES = (
    [Verdict.INCORRECT_NUMERICAL] * 9 + [Verdict.COMPILE_ERROR] * 7 + [Verdict.RUNTIME_ERROR] * 3
    + [Verdict.TIMEOUT] * 2 + [Verdict.INCORRECT_SHAPE] + [Verdict.REWARD_HACK] + [Verdict.SUSPECT]
)  # fmt: skip
_OPERATIONS = ("rmsnorm", "softmax", "gemm_bf16", "gqa_decode", "swiglu", "rope", "topk_routing", "conv1d", "layernorm")


@dataclass
class _Problem:
    """True values of one problem; measurements add noise to them."""

    key: str
    baseline_us: float
    bound_us: float
    skill: float
    """ln of the speed-up that the problem approaches with many evaluations."""
    reached: float = -0.35
    seq: int = 0


class _Writer:
    """Writes ledger files with valid chains."""

    def __init__(self, workspace: Workspace) -> None:
        self._root = workspace.root
        self._raws: dict[str, list[bytes]] = {}
        self._heads: dict[str, Head] = {}

    def add(self, file: str, at: datetime, make: Any) -> int:
        """Append the document of `make(seq, prev, at)` and return its seq."""
        raws = self._raws.setdefault(file, [])
        stamp = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        raws.append(make(len(raws) + 1, hash_of(raws[-1]) if raws else None, stamp))
        self._heads[file] = Head(seq=len(raws), hash=hash_of(raws[-1]), at=stamp)
        return len(raws)

    def write(self) -> None:
        for file, raws in self._raws.items():
            path = self._root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(HEADER + b"".join(raws))
        (self._root / HEADS).write_bytes(render_heads(self._heads))


def make_run(
    root: Path, *, problems: int, entries: int, days: float = 21.0, workers: int = 12, seed: int = 3
) -> Workspace:
    """Create a workspace whose ledger on main has about `entries` entries of run `main`, target `h200`."""
    workspace = make_workspace(root)
    rng = random.Random(seed)
    writer = _Writer(workspace)
    run_problems = [_problem(rng, number) for number in range(problems)]
    at, step = BEGIN, timedelta(days=days) / entries
    for problem in run_problems:
        _enter(writer, problem, at, kind="baseline")
    entry_count, present = problems, dict.fromkeys((f"w{number:02d}" for number in range(1, workers + 1)), "")
    place = {worker: run_problems[number % problems] for number, worker in enumerate(present)}
    while entry_count < entries:
        at += step
        worker = f"w{rng.randrange(workers) + 1:02d}"
        if not present[worker] or rng.random() < 0.03:
            place[worker] = _next(rng, run_problems)
            present[worker] = place[worker].key
            _move(writer, at, present, worker)
        entry_count += _evaluate(rng, writer, place[worker], at, worker)
        if rng.random() < 0.02:
            _account(rng, writer, at, worker)
    writer.write()
    from tests.ledger.ledgers import git

    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a run that is over")
    return workspace


def _problem(rng: random.Random, number: int) -> _Problem:
    baseline = math.exp(rng.gauss(5.0, 1.4))
    skill = rng.gauss(0.38, 0.42)
    headroom = max(skill + abs(rng.gauss(0.25, 0.2)), 0.08)
    key = f"L{number % 4 + 1}/{_OPERATIONS[number % len(_OPERATIONS)]}_{number:03d}"
    return _Problem(key, baseline, baseline * math.exp(-headroom), skill)


def _next(rng: random.Random, run_problems: list[_Problem]) -> _Problem:
    return min(rng.sample(run_problems, min(6, len(run_problems))), key=lambda problem: problem.seq)


def _evaluate(rng: random.Random, writer: _Writer, problem: _Problem, at: datetime, worker: str) -> int:
    """Enter one evaluation, and after a gain its confirmation and champion; return the number of entries."""
    if rng.random() < 0.3:
        _enter(writer, problem, at, worker=worker, verdict=rng.choice(_FAILURES), rng=rng)
        return 1
    tried = problem.reached + rng.gauss(0.0, 0.08) + 0.06 * max(0.0, problem.skill - problem.reached)
    evaluation = _enter(writer, problem, at, worker=worker, log=tried, rng=rng)
    if tried <= max(problem.reached, 0.0) + 0.012 or tried > problem.skill:
        problem.reached = max(problem.reached, min(tried, problem.skill))
        return 1
    problem.reached = tried
    common = (writer, problem, at + timedelta(seconds=20))
    confirmation = _enter(*common, worker=worker, log=tried - 0.002, rng=rng, kind="confirmation", cites=evaluation)
    _enter(*common, worker=worker, rng=rng, kind="champion", cites=confirmation)
    return 3


def _enter(
    writer: _Writer,
    problem: _Problem,
    at: datetime,
    *,
    kind: str = "evaluation",
    worker: str = "w01",
    log: float = 0.0,
    verdict: Verdict = Verdict.PASSED,
    cites: int | None = None,
    rng: random.Random | None = None,
) -> int:
    rng = rng or random.Random(1)
    body = draft(kind, problem=problem.key, worker=worker, cites=cites, workloads=[])
    candidate = Candidate(
        commit=f"{rng.getrandbits(160):040x}", tree=f"{rng.getrandbits(160):040x}",
        branch=f"agents/main/{worker}/{problem.key}", worker=worker, language="cuda",
    )  # fmt: skip
    values: dict[str, Any] = {**dict(body), "kind": EntryKind(kind), "target": "h200", "verdict": verdict}
    if kind == "baseline":
        times = {
            "eager": problem.baseline_us * 2.1,
            "compile": problem.baseline_us,
            "baseline": problem.baseline_us * 1.08,
        }
        sealed = {
            "eager": problem.baseline_us * 1.7,
            "compile": problem.baseline_us,
            "baseline": problem.baseline_us * 1.2,
        }
        tables = {"baselines": times, "sealed_baselines": sealed}
        uuids = [f"{problem.key}-{number}" for number in range(_WORKLOADS)]
        values |= {"candidate": None, **{name: dict.fromkeys(uuids, table) for name, table in tables.items()}}
    elif kind == "champion":
        values |= {"candidate": candidate, "verdict": None, "workloads": ()}
    else:
        results = tuple(_result(problem, number, log, verdict, rng) for number in range(_WORKLOADS))
        values |= {"candidate": candidate, "workloads": results, "summary": summarise(results)}
        values |= {"cost": Cost(build_s=2.0, judge_s=rng.uniform(3, 14)), "cites": cites or 1}
        values |= {"trust": Trust.LAUNCH_BOUND if problem.baseline_us < 12 else Trust.SEALED}
        values |= {"reason": None if verdict is Verdict.PASSED else f"workload {problem.key}-0: as it happens"}
    problem.seq += 1
    fields = {name: values[name] for name in EntryDraft.model_fields}
    return writer.add(
        ledger_file(problem.key),
        at,
        lambda seq, prev, stamp: render_entry(Entry.model_construct(**fields, seq=seq, prev=prev, at=stamp)),
    )


def _result(problem: _Problem, number: int, log: float, verdict: Verdict, rng: random.Random) -> WorkloadResult:
    name = f"{problem.key}-{number}"
    if verdict is not Verdict.PASSED:
        return WorkloadResult(uuid=name, verdict=verdict, reason="as it happens")
    ratios = tuple(round(rng.gauss(log, 0.008), 6) for _ in range(_BLOCKS))
    speedup, interval = workload_interval(ratios)
    latency = problem.baseline_us / speedup
    share = 1 + (latency - problem.bound_us) / (problem.baseline_us - problem.bound_us)
    return WorkloadResult(
        uuid=name, verdict=verdict, latency_us=latency, baseline_us=problem.baseline_us, speedup=speedup,
        speedup_ci95=interval, log_ratios=ratios, sol_us=problem.bound_us, floor_us=problem.bound_us * 0.8,
        score=1 / share if share > 0 else None, matched=1.0, checked=256, calls=256, blocks=_BLOCKS, variant="compile",
    )  # fmt: skip


def _move(writer: _Writer, at: datetime, present: dict[str, str], moved: str) -> None:
    rows = [
        {"worker": worker, "problem": problem, "state": "active", "wanted": "faster"}
        for worker, problem in present.items()
        if problem
    ]
    record = {
        "run": "main",
        "target": "h200",
        "policy": "gain-bandit/1",
        "inputs": {"problems": [{"problem": problem, "evaluations": 1} for problem in present.values()]},
        "decision": {"assignments": rows, "reasons": {moved: "most headroom to the bound for its cost"}},
    }
    writer.add(
        "ledger/decisions.yaml", at, lambda seq, prev, stamp: render({"seq": seq, "prev": prev, **record, "at": stamp})
    )


def _account(rng: random.Random, writer: _Writer, at: datetime, worker: str) -> None:
    record = {
        "id": f"{rng.getrandbits(64):016x}", "run": "main", "worker": worker,
        "problem": "x/y", "usd": rng.uniform(1, 9),
        "began": at.isoformat(), "ended": at.isoformat(timespec="milliseconds"),
    }  # fmt: skip
    writer.add(
        "ledger/accounts.yaml", at, lambda seq, prev, stamp: render({"seq": seq, "prev": prev, **record, "at": stamp})
    )


def _arguments() -> Iterator[Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--problems", type=int, default=235)
    parser.add_argument("--entries", type=int, default=20_000)
    yield parser.parse_args()


if __name__ == "__main__":
    options = next(_arguments())
    make_run(options.root, problems=options.problems, entries=options.entries)
