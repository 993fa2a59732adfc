"""`harness review`, `pr` and `proof`: review of a candidate, its pull request, and the proof of the merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from harness.cli.completion_values import complete_branch, complete_problem
from harness.cli.display.output import echo, echo_document, echo_lines, emit, json_option
from harness.cli.display.progress import progress_bar
from harness.cli.display.results import print_judgement
from harness.cli.display.tables import Column, screen_width, table_lines
from harness.cli.options import run_option, target_option
from harness.errors import AnswerIsNo, ConfigurationError
from harness.git.repo import Repo
from harness.ledger.champions import MeasuredCandidate
from harness.ledger.index import Index
from harness.ledger.standings import known_problems, known_runs, known_targets, standings
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.printable import interval_of, markdown_text, printable
from harness.model.weaknesses import Weakness, for_scripts, weakness_mark
from harness.report.merging import Pull, main_branch, pick_remote, prepare, publish
from harness.report.proof import check_proof
from harness.report.proof_text import workload_table
from harness.report.review import Attempt, Review
from harness.report.review import review as collect
from harness.report.today import champions_waiting
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace

_WHAT_LENGTH = 80
_base = click.option(
    "--base", metavar="BRANCH", help="The branch to merge into; the default is the remote's main branch."
)


@click.command()
@click.argument("problem_or_branch", metavar="PROBLEM|BRANCH", required=False, shell_complete=complete_branch)
@target_option
@run_option
@_base
@click.option("--no-diff", is_flag=True, help="Omit the diff of the sources.")
@json_option
def review(
    problem_or_branch: str | None,
    *,
    target: str | None,
    run: str | None,
    base: str | None,
    no_diff: bool,
    as_json: bool,
) -> None:
    """Compare a candidate with the present solution: diff, numbers, provenance, warnings, earlier attempts.

    Without an argument: list the champions without a pull request.
    """
    with opened() as (_, config, repo, index):
        run = run or config.run
        base = base or main_branch(repo, config.coordination_branch)
        if problem_or_branch is None:
            _print_waiting(repo, index, config, run, target, base, as_json=as_json)
            return
        target = target or single_target(config, index, run)
        reviewed = collect(repo, index, problem_or_branch, base=base, target=target, run=run)
    if as_json:
        echo_document(_as_data(reviewed))
    else:
        _print(reviewed, diff=not no_diff)


@click.command()
@click.argument("problem", shell_complete=complete_problem)
@target_option
@run_option
@_base
@click.option("--remote", metavar="NAME", help="The remote to push to; the default is origin, if it exists.")
@click.option("--no-push", is_flag=True, help="Do not push the branch.")
@click.option("--replace", is_flag=True, help="Replace a branch with an older champion.")
@json_option
def pr(
    problem: str,
    *,
    target: str | None,
    run: str | None,
    base: str | None,
    remote: str | None,
    no_push: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Create a branch and a pull request, with its proof, from a problem's confirmed champion."""
    with opened() as (_, config, repo, index):
        run = run or config.run
        remote = pick_remote(repo, remote)
        base = base or main_branch(repo, config.coordination_branch, remote)
        target = target or single_target(config, index, run)
        coordination = config.coordination_branch
        pull = prepare(
            repo, index, problem, run=run, target=target, base=base, coordination=coordination, replace=replace
        )
        if remote and not no_push:
            publish(repo, pull, remote, coordination, replace=replace)
        elif pull.branch:
            pull.notes.append("not pushed: " + ("--no-push" if remote else "there is no remote"))
    if as_json:
        echo_document(_pull_data(pull))
    else:
        _print_pull(pull)


@click.command()
@click.argument("commits", metavar="BASE..HEAD")
@click.option("--ledger", metavar="REF", help="The ref with the ledger; the default is BASE.")
@click.option("--markdown", is_flag=True, help="Print the result as a comment for a pull request.")
@json_option
def proof(commits: str, *, ledger: str | None, markdown: bool, as_json: bool) -> None:
    """Check, without a device, that the ledger on BASE proves the solution that the commits of HEAD merge."""
    base, dots, head = commits.partition("..")
    if not dots or not base or not head.strip("."):
        raise click.UsageError(f"`{commits}` is not a range; expected BASE..HEAD, such as main..win/main/suite/name")
    with Repo(Workspace.find()) as repo:
        result = check_proof(repo, base, head.strip("."), ledger=ledger)
    entry = result.measured.counts if result.measured else None
    weak = result.measured.weaknesses if result.measured else ()
    if as_json:
        document = {
            name: getattr(result, name) for name in ("base", "head", "problem", "target", "tree", "faults", "notes")
        }
        document |= {"holds": result.holds, "seq": entry.seq if entry else None, "weaknesses": for_scripts(weak)}
        echo_document(document)
    else:
        bullet = "- " if markdown else "  "
        if markdown:
            echo(f"### {'The ledger proves this merge' if result.holds else 'Not proved'}\n")
        if entry is not None:
            echo(f"{_headline(entry, weak)}\n\n{workload_table(entry)}\n")
        for line in [*result.faults, *(f"note: {note}" for note in result.notes)]:
            echo(f"{bullet}{markdown_text(line, keep_code=True) if markdown else line}")
        if result.holds and result.problem and not markdown:
            echo(f"proved: {result.problem} for {result.target}, tree {(result.tree or '')[:12]}")
    if not result.holds:
        count = len(result.faults)
        raise AnswerIsNo(
            f"not proved: {result.faults[0]}" + (f" (and {count - 1} more)" if count > 1 else ""),
            remedy="create the branch with `harness pr PROBLEM`, which merges only the measured solution",
        )


@contextmanager
def opened(*, patience_s: float | None = None) -> Iterator[tuple[Workspace, Config, Repo, Index]]:
    """Yield workspace, configuration, repository and the refreshed index; print messages of the refresh to stderr.

    Args:
        patience_s: see `Index.refresh`.
    """
    workspace = Workspace.find()
    config = load_config(workspace)
    with Repo(workspace) as repo, Index(workspace, branch=config.coordination_branch) as index:
        repo.check_coordination_branch(config.coordination_branch)
        with progress_bar("reading the ledger") as progress:
            messages = index.refresh(repo, progress, patience_s=patience_s)
        echo_lines((f"harness: {message}" for message in messages), err=True)
        yield workspace, config, repo, index


def single_target(config: Config, index: Index, run: str) -> str:
    """Return the configured target, else the only target with entries of the run, else `cpu`.

    Raises:
        ConfigurationError: the run has entries for several targets.
    """
    targets = [config.target] if config.target else known_targets(index, run)
    if len(targets) > 1:
        raise ConfigurationError(f"run {run} has the targets {', '.join(targets)}", remedy="select one with --target")
    return targets[0] if targets else "cpu"


def check_entries(index: Index, config: Config, run: str, target: str | None) -> None:
    """Check that the ledger has entries of a run and a target, unless harness.yaml names them: no run may have begun.

    Args:
        index: refreshed by the caller.
        target: the target; None for any.

    Raises:
        AnswerIsNo: there are none; the remedy names the runs or targets that have entries.
    """
    targets = known_targets(index, run)
    if not targets and run != config.run:
        runs = ", ".join(known_runs(index))
        remedy = f"runs with entries: {runs}" if runs else "`harness start` makes entries"
        raise AnswerIsNo(f"the ledger has no entries of run {run}", remedy=remedy)
    if target is not None and target not in {*targets, config.target}:
        remedy = f"targets with entries: {', '.join(targets)}" if targets else "`harness start` makes entries"
        raise AnswerIsNo(f"the ledger has no entries of run {run} for the target {target}", remedy=remedy)


def _print_waiting(
    repo: Repo, index: Index, config: Config, run: str, target: str | None, base: str, *, as_json: bool
) -> None:
    check_entries(index, config, run, target)
    rows = []
    chosen = target or config.target
    for name in [chosen] if chosen else known_targets(index, run):
        table = standings(index, known_problems(index), name, run)
        waiting = champions_waiting(repo, table, run, name, base)
        rows += [
            {"champion": champion.description, "problem": champion.problem, "target": name, "seq": champion.seq}
            for champion in waiting
        ]
    emit(rows, as_json=as_json, empty="no champion waits for a pull request")
    if rows and not as_json:
        echo("\n`harness review PROBLEM` shows a champion, `harness pr PROBLEM` creates its branch")


def _headline(entry: Entry, weak: Sequence[Weakness]) -> str:
    summary = entry.summary
    if summary is None or summary.speedup is None or summary.speedup_ci95 is None:
        return f"{entry.problem} for {entry.target}: {entry.verdict}"
    score = f", score {summary.score:.3f}" if summary.score is not None else ""
    return (
        f"{entry.problem} for {entry.target}: {summary.speedup:.3f}x{weakness_mark(weak)} the fastest baseline "
        f"(95 % {interval_of(summary.speedup_ci95)}){score}; {entry.trust}"
    )


def _print(reviewed: Review, *, diff: bool) -> None:
    echo(f"{reviewed.problem} for {reviewed.target}", bold=True)
    on_branch = f" on {reviewed.branch}" if reviewed.branch else ""
    echo(f"candidate  {reviewed.commit[:12]} tree {reviewed.tree[:12]}{on_branch}")
    echo(f"entry      {_entry_line(reviewed.measured)}")
    present = f"tree {reviewed.present_tree[:12]}: {_entry_line(reviewed.present)}" if reviewed.present_tree else "none"
    echo(f"stands now {present}")
    for name, value in reviewed.provenance.items():
        echo(f"{name.lower():10} {printable(value)}")
    if reviewed.warnings:
        echo()
        for warning in reviewed.warnings:
            echo(f"warning: {printable(warning)}", fg="yellow")
    if reviewed.measured:
        echo()
        print_judgement(reviewed.measured.counts, reviewed.measured.weaknesses)
    _print_history(reviewed)
    if diff and reviewed.diff:
        echo(f"\n{reviewed.diff}")


def _print_history(reviewed: Review) -> None:
    """Print earlier attempts and lessons."""
    if reviewed.attempts:
        echo("\ntried before, the newest first")
        columns: tuple[Column[Attempt], ...] = (
            Column("seq", lambda attempt: str(attempt.seq)),
            Column("worker", lambda attempt: attempt.worker or "-", ((1, None),)),
            Column("verdict", lambda attempt: attempt.verdict or "-", min_width=12),
            Column("speed-up", lambda attempt: f"{attempt.speedup:.3f}x" if attempt.speedup else "-"),
            Column("what", lambda attempt: attempt.description[:_WHAT_LENGTH], min_width=24),
        )
        echo_lines(table_lines(reviewed.attempts, columns, screen_width()))
    if reviewed.lessons:
        echo("\nlessons, the newest first")
        for lesson in reviewed.lessons:
            echo(f"  {printable(lesson)}")


def _entry_line(measured: MeasuredCandidate | None) -> str:
    if measured is None:
        return "not in the ledger"
    entry = measured.counts
    kind = f"confirmation of seq {measured.evaluation.seq}" if measured.confirmation else "evaluation, unconfirmed"
    return f"seq {entry.seq} ({kind}), {entry.verdict}, {entry.trust}, {measured.hash[:19]}"


def _as_data(reviewed: Review) -> dict[str, Any]:
    fields = {**vars(reviewed), "attempts": [attempt.row() for attempt in reviewed.attempts]}
    for name in ("measured", "present"):
        measured: MeasuredCandidate | None = fields[name]
        if measured is not None:
            fields[name] = {"hash": measured.hash, **measured.counts.model_dump(mode="json")}
    return fields


def _pull_data(pull: Pull) -> dict[str, Any]:
    return {
        "problem": pull.winner.counts.problem,
        "seq": pull.winner.counts.seq,
        "hash": pull.winner.hash,
        "base": pull.base,
        "branch": pull.branch.name if pull.branch else None,
        "commit": pull.branch.commit if pull.branch else None,
        "made": pull.branch.is_new if pull.branch else False,
        **{name: getattr(pull, name) for name in ("remote", "url", "title", "body", "notes")},
    }


def _print_pull(pull: Pull) -> None:
    if pull.branch is not None:
        state = "created" if pull.branch.is_new else "unchanged"
        pushed = f", pushed to {pull.remote}" if pull.remote else ""
        echo(f"{pull.branch.name} at {pull.branch.commit[:12]}: {state}{pushed}, based on {pull.base}")
    if pull.url:
        echo(pull.url)
    for note in pull.notes:
        echo(f"note: {note}")
    if pull.branch is not None and not pull.url:
        echo(f"\n{pull.title}\n\n{pull.body}")
