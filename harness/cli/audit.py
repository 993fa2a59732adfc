"""`harness audit`: checks of the ledger, and repeated measurements of its entries."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from harness.cli.devices import choose_devices
from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.cli.display.progress import progress_bar
from harness.cli.options import COUNT
from harness.errors import AnswerIsNo
from harness.git.problem_digests import digest_at
from harness.git.repo import Repo
from harness.ledger.audit.audit import Audit
from harness.ledger.audit.audit import audit as run_audit
from harness.ledger.audit.history import since_when
from harness.ledger.audit.rerun import Rerun, choose, compare, sessions_of
from harness.ledger.index import Index
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.judging import JudgeAnswer, JudgeRequest
from harness.model.paths import LEDGER, problem_path, solution_path
from harness.model.printable import count_of, interval_of, shortened
from harness.model.sessions import Spread
from harness.workspace.blocking_judge import JudgeProcess, judge_process
from harness.workspace.configuration import data_root_of, load_config
from harness.workspace.directories import Workspace

_LONGEST_CELL = 60


@click.command()
@click.option("--since", metavar="WHEN", help="Check only entries since then: 2d, 12h, a date, or a commit.")
@click.option("--rerun", type=COUNT, metavar="N", help="Also measure N entries again on a device.")
@click.option("--top", is_flag=True, help="With --rerun: the N fastest entries instead of N random ones.")
@click.option("--seed", type=int, help="With --rerun: seed of the random choice, to repeat it.")
@click.option("--device", help="With --rerun: the device; by default harness.yaml's first.")
@json_option
def audit(
    *, since: str | None, rerun: int | None, top: bool, seed: int | None, device: str | None, as_json: bool
) -> None:
    """Check that the ledger is complete and unchanged: chain, heads, format, git objects, problem digests, numbers.

    Prints each break, and exits with 1 if there is one. Chains and heads are always checked from the first document.
    """
    if rerun is None and (top or seed is not None or device is not None):
        raise click.UsageError("--top, --seed and --device select what --rerun measures; add --rerun N")
    workspace = Workspace.find()
    reruns: list[Rerun] = []
    spread: Spread | None = None
    branch = load_config(workspace).coordination_branch
    with Repo(workspace) as repo:
        repo.check_coordination_branch(branch)
        start = since_when(repo, since) if since else None
        with progress_bar("auditing") as progress:
            result = run_audit(workspace, repo, branch=branch, progress=progress, since=start)
        if rerun is not None:
            reruns, spread = _measure_again(workspace, repo, rerun, top=top, seed=seed, device=device)
    not_reproduced = [entry for entry in reruns if not entry.holds]
    if as_json:
        document = {
            "whole": not result.breaks,
            **asdict(result),
            "breaks": [chain_break.record() for chain_break in result.breaks],
            "reruns": [asdict(entry) for entry in reruns],
        }
        echo_document(document)
    else:
        _print(result)
        if spread is not None:
            _print_reruns(reruns, spread)
    if result.breaks:
        raise AnswerIsNo(
            f"the ledger on {result.branch} has {count_of(len(result.breaks), 'break')}",
            remedy=f"`git log -p {result.branch} -- {LEDGER}/` shows who changed what",
        )
    if not_reproduced:
        raise AnswerIsNo(
            f"{len(not_reproduced)} of {len(reruns)} entries could not be reproduced: "
            + ", ".join(f"{entry.problem} seq {entry.seq}" for entry in not_reproduced),
            remedy="repeat --rerun on an idle device; then inspect the entry with `harness log PROBLEM`",
        )


def _print(result: Audit) -> None:
    if result.breaks:
        rows = []
        for chain_break in result.breaks:
            texts = {key: "" if value is None else str(value) for key, value in chain_break.record().items()}
            rows.append(texts | {key: shortened(texts[key], _LONGEST_CELL) for key in ("expected", "found")})
        emit(rows, as_json=False)
        echo()
    state = "" if result.breaks else "whole: "
    spooled = f" ({result.spooled} of them in the spool)" if result.spooled else ""
    echo(
        f"{state}{count_of(result.entries, 'entry', 'entries')} and {count_of(result.records, 'record')} "
        f"in {count_of(result.files, 'file')} on {result.branch} at {result.commit[:12]}{spooled}"
    )
    for line in result.checked:
        echo(f"  {line}")
    for note in result.notes:
        echo(f"note: {note}")


def _print_reruns(reruns: Sequence[Rerun], spread: Spread) -> None:
    source = (
        f"from {spread.pairs} pairs of evaluation and confirmation"
        if spread.pairs
        else "an assumption, because the ledger has too few confirmations"
    )
    echo(f"\nmeasured again; between sessions a speed-up varies by {spread.deviation:.2%} ({source})")
    rows = [
        {
            "problem": entry.problem,
            "seq": entry.seq,
            "recorded": _times(entry.recorded),
            "expected": interval_of(entry.expected),
            "measured": _times(entry.measured) if entry.measured else entry.verdict,
            "": "as recorded" if entry.holds else "OFF",
            "note": entry.note,
        }
        for entry in reruns
    ]
    emit(rows, as_json=False, empty="no entry of a present problem could be measured on this device")


def _measure_again(
    workspace: Workspace, repo: Repo, number: int, *, top: bool, seed: int | None, device: str | None
) -> tuple[list[Rerun], Spread]:
    """Judge entries of the ledger again; return the results and the spread between sessions."""
    config = load_config(workspace)
    tip = repo.tip(config.coordination_branch)
    with Index(workspace, branch=config.coordination_branch) as index:
        index.refresh(repo)
        device_name = device or choose_devices(config).devices[0]
        with judge_process(device_name, workspace.cache, config.judge.sandbox) as judge:
            target = judge.ready.target
            chosen = choose(index, target, lambda problem: digest_at(repo, tip, problem), number, top=top, seed=seed)
            spread = sessions_of(index, target)
            reruns = []
            for entry in chosen:
                echo(f"measuring {entry.problem} seq {entry.seq} again", err=True)
                answer = _judge(judge, repo, tip, entry, config)
                reruns.append(compare(entry, answer, spread, together=len(chosen)))
    return reruns, spread


def _judge(judge: JudgeProcess, repo: Repo, tip: str, entry: Entry, config: Config) -> JudgeAnswer:
    assert entry.candidate is not None  # noqa: S101 - only measured candidates are chosen
    data_root = data_root_of(repo.workspace, config)
    with tempfile.TemporaryDirectory(prefix="kernel-harness-") as scratch:
        problem = repo.export(tip, problem_path(entry.problem), Path(scratch) / entry.problem)
        path = solution_path(entry.problem, entry.target)
        request = JudgeRequest(
            id=f"{entry.problem}-{entry.seq}",
            kind="confirmation",
            problem=entry.problem,
            problem_dir=str(problem),
            problem_digest=entry.problem_digest,
            data_root=str(data_root) if data_root else None,
            solution_dir=str(repo.export(entry.candidate.commit, path, Path(scratch) / "solution")),
            baseline={workload.uuid: workload.variant for workload in entry.workloads if workload.variant},
            half_width=config.judge.half_width(entry.target),
            max_judge_s=config.judge.max_judge_s,
        )
        return judge.ask(request, lambda _: None)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"
