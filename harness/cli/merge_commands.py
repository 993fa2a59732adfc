"""`harness review`, `pr` and `proof`: from an agent's branch to a merge that a person can believe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from harness.cli.completion_values import complete_branch, complete_problem
from harness.cli.display.output import echo, echo_json, emit, json_option
from harness.model.printable import markdown_text, printable
from harness.model.weaknesses import for_scripts, weakness_mark

if TYPE_CHECKING:
    from harness.git.repo import Repo
    from harness.ledger.champions import MeasuredCandidate
    from harness.ledger.index import Index
    from harness.model.config import Config
    from harness.model.entry import Entry
    from harness.model.weaknesses import Weakness
    from harness.report.merging import Pull
    from harness.report.review import Attempt, Review
    from harness.workspace.directories import Workspace

_WHAT_LENGTH = 80
_target = click.option(
    "--target", metavar="NAME", help="Whose solution; by default harness.yaml's, else the run's only."
)
_run = click.option("--run", metavar="NAME", help="The run; by default harness.yaml's.")
_base = click.option("--base", metavar="BRANCH", help="What it is merged into; by default the remote's main branch.")


@click.command()
@click.argument("what", metavar="PROBLEM|BRANCH", required=False, shell_complete=complete_branch)
@_target
@_run
@_base
@click.option("--no-diff", is_flag=True, help="Leave the difference of the sources out.")
@json_option
def review(
    what: str | None, *, target: str | None, run: str | None, base: str | None, no_diff: bool, as_json: bool
) -> None:
    """Show a candidate against the solution that stands: diff, numbers, provenance, warnings, what was tried before.

    Without an argument: the champions that no pull request carries yet.
    """
    from harness.report.merging import main_branch, pick_remote
    from harness.report.review import review as collect

    with opened() as (workspace, config, repo, index):
        del workspace
        run = run or config.run
        base = base or main_branch(repo, config.coordination_branch, pick_remote(repo, None))
        if what is None:
            _waiting(repo, index, config, run, base, as_json=as_json)
            return
        found = collect(repo, index, what, base=base, target=target or the_target(config, index, run), run=run)
    if as_json:
        echo_json(json.dumps(_as_data(found), indent=2, default=str))
    else:
        _print(found, diff=not no_diff)


@click.command()
@click.argument("problem", shell_complete=complete_problem)
@_target
@_run
@_base
@click.option("--remote", metavar="NAME", help="Where to push; by default origin, where there is one.")
@click.option("--no-push", is_flag=True, help="Leave the branch here.")
@click.option("--replace", is_flag=True, help="Make a branch anew that carries an older champion.")
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
    """Turn a problem's confirmed champion into a branch and a pull request that carries its proof."""
    from harness.report.merging import main_branch, pick_remote, prepare, publish

    with opened() as (_, config, repo, index):
        run = run or config.run
        remote = pick_remote(repo, remote)
        base = base or main_branch(repo, config.coordination_branch, remote)
        target = target or the_target(config, index, run)
        coordination = config.coordination_branch
        pull = prepare(
            repo, index, problem, run=run, target=target, base=base, coordination=coordination, replace=replace
        )
        if remote and not no_push:
            publish(repo, pull, remote, coordination, replace=replace)
        elif pull.branch:
            pull.notes.append("not pushed: " + ("as you asked" if remote else "there is no remote"))
    if as_json:
        echo_json(json.dumps(_pull_data(pull), indent=2))
    else:
        _print_pull(pull)


@click.command()
@click.argument("commits", metavar="BASE..HEAD")
@click.option("--ledger", metavar="REF", help="Where the ledger is, if not on BASE.")
@click.option("--markdown", is_flag=True, help="Print the finding as a pull request's comment.")
@json_option
def proof(commits: str, *, ledger: str | None, markdown: bool, as_json: bool) -> None:
    """Check without a device that the ledger on BASE proves what the commits of HEAD would merge."""
    from harness.errors import AnswerIsNo
    from harness.git.repo import Repo
    from harness.report.proof import check_proof
    from harness.report.proof_text import workload_table
    from harness.workspace.directories import Workspace

    base, dots, head = commits.partition("..")
    if not dots or not base or not head.strip("."):
        raise click.UsageError(f"`{commits}` is no range; expected BASE..HEAD, such as main..win/main/suite/name")
    with Repo(Workspace.find()) as repo:
        found = check_proof(repo, base, head.strip("."), ledger=ledger)
    entry = found.found.counts if found.found else None
    weak = found.found.weaknesses if found.found else ()
    if as_json:
        shown = {
            name: getattr(found, name) for name in ("base", "head", "problem", "target", "tree", "faults", "notes")
        }
        shown |= {"holds": found.holds, "seq": entry.seq if entry else None, "weaknesses": for_scripts(weak)}
        echo_json(json.dumps(shown, indent=2))
    else:
        bullet = "- " if markdown else "  "
        if markdown:
            echo(f"### {'The ledger proves this merge' if found.holds else 'Not proved'}\n")
        if entry is not None:
            echo(f"{_headline(entry, weak)}\n\n{workload_table(entry)}\n")
        for line in [*found.faults, *(f"note: {note}" for note in found.notes)]:
            echo(f"{bullet}{markdown_text(line, keep_code=True) if markdown else line}")
        if found.holds and found.problem and not markdown:
            echo(f"proved: {found.problem} for {found.target}, tree {(found.tree or '')[:12]}")
    if not found.holds:
        count = len(found.faults)
        raise AnswerIsNo(
            f"not proved: {found.faults[0]}" + (f" (and {count - 1} more)" if count > 1 else ""),
            remedy="make the branch with `harness pr PROBLEM`; it merges nothing but what was measured",
        )


@contextmanager
def opened(*, patience_s: float | None = None) -> Iterator[tuple[Workspace, Config, Repo, Index]]:
    """The refreshed index of the workspace here; what was unusual about it goes to stderr.

    `patience_s` is that of `Index.refresh`.
    """
    from harness.cli.display.progress import progress_bar
    from harness.git.repo import Repo
    from harness.ledger.index import Index
    from harness.workspace.configuration import load_config
    from harness.workspace.directories import Workspace

    workspace = Workspace.find()
    config = load_config(workspace)
    with Repo(workspace) as repo, Index(workspace, branch=config.coordination_branch) as index:
        with progress_bar("reading the ledger") as progress:
            messages = index.refresh(repo, progress, patience_s=patience_s)
        for message in messages:
            echo(f"harness: {message}", err=True)
        yield workspace, config, repo, index


def the_target(config: Config, index: Index, run: str) -> str:
    """harness.yaml's target, or the only one that the run has entries for.

    Raises:
        ConfigurationError: there are several.
    """
    from harness.errors import ConfigurationError
    from harness.ledger.standings import known_targets

    known = [config.target] if config.target else known_targets(index, run)
    if len(known) > 1:
        raise ConfigurationError(f"run {run} has the targets {', '.join(known)}", remedy="say which with --target")
    return known[0] if known else "cpu"


def _waiting(repo: Repo, index: Index, config: Config, run: str, base: str, *, as_json: bool) -> None:
    from harness.ledger.standings import known_problems, known_targets, standings
    from harness.report.today import champions_waiting

    rows = []
    for target in [config.target] if config.target else known_targets(index, run):
        table = standings(index, known_problems(index), target, run)
        waiting = champions_waiting(repo, table, run, target, base)
        rows += [{"champion": one.what, "problem": one.problem, "target": target, "seq": one.seq} for one in waiting]
    emit(rows, as_json=as_json, empty="no champion waits for a pull request")
    if rows and not as_json:
        echo("\n`harness review PROBLEM` shows one, `harness pr PROBLEM` makes its branch")


def _headline(entry: Entry, weak: Sequence[Weakness]) -> str:
    summary = entry.summary
    if summary is None or summary.speedup is None or summary.speedup_ci95 is None:
        return f"{entry.problem} for {entry.target}: {entry.verdict}"
    low, high = summary.speedup_ci95
    score = f", score {summary.score:.3f}" if summary.score is not None else ""
    return (
        f"{entry.problem} for {entry.target}: {summary.speedup:.3f}x{weakness_mark(weak)} the fastest baseline "
        f"(95 % {low:.3f} to {high:.3f}){score}; {entry.trust}"
    )


def _print(found: Review, *, diff: bool) -> None:
    from harness.cli.display.results import print_judgement

    echo(f"{found.problem} for {found.target}", bold=True)
    echo(f"candidate  {found.commit[:12]} tree {found.tree[:12]}" + (f" on {found.branch}" if found.branch else ""))
    echo(f"entry      {_entry_line(found.measured)}")
    standing = "none" if found.present_tree is None else f"tree {found.present_tree[:12]}: {_entry_line(found.present)}"
    echo(f"stands now {standing}")
    for name, value in found.provenance.items():
        echo(f"{name.lower():10} {printable(value)}")
    if found.warnings:
        echo()
        for warning in found.warnings:
            echo(f"warning: {printable(warning)}", fg="yellow")
    if found.measured:
        echo()
        print_judgement(found.measured.counts, found.measured.weaknesses)
    _print_before(found)
    if diff and found.diff:
        echo(f"\n{found.diff}")


def _print_before(found: Review) -> None:
    """The way to this candidate."""
    from harness.cli.display.tables import Column, screen_width, table_lines

    if found.attempts:
        echo("\ntried before, the newest first")
        columns: tuple[Column[Attempt], ...] = (
            Column("seq", lambda one: str(one.seq)),
            Column("worker", lambda one: one.worker or "-", ((1, None),)),
            Column("verdict", lambda one: one.verdict or "-", least=12),
            Column("speed-up", lambda one: f"{one.speedup:.3f}x" if one.speedup else "-"),
            Column("what", lambda one: one.what[:_WHAT_LENGTH], least=24),
        )
        for line in table_lines(found.attempts, columns, screen_width()):
            echo(line)
    if found.lessons:
        echo("\nlessons, the newest first")
        for lesson in found.lessons:
            echo(f"  {printable(lesson)}")


def _entry_line(measured: MeasuredCandidate | None) -> str:
    if measured is None:
        return "not in the ledger"
    entry = measured.counts
    which = f"confirmation of seq {measured.evaluation.seq}" if measured.confirmation else "evaluation, unconfirmed"
    return f"seq {entry.seq} ({which}), {entry.verdict}, {entry.trust}, {measured.hash[:19]}"


def _as_data(found: Review) -> dict[str, Any]:
    fields = {**vars(found), "attempts": [asdict(one) for one in found.attempts]}
    for name in ("measured", "present"):
        one: MeasuredCandidate | None = fields[name]
        fields[name] = None if one is None else {"hash": one.hash, **one.counts.model_dump(mode="json")}
    return fields


def _pull_data(pull: Pull) -> dict[str, Any]:
    return {
        "problem": pull.winner.counts.problem,
        "seq": pull.winner.counts.seq,
        "hash": pull.winner.hash,
        "base": pull.base,
        "branch": pull.branch.name if pull.branch else None,
        "commit": pull.branch.commit if pull.branch else None,
        "made": pull.branch.made if pull.branch else False,
        "remote": pull.remote,
        "url": pull.url,
        "title": pull.title,
        "body": pull.body,
        "notes": pull.notes,
    }


def _print_pull(pull: Pull) -> None:
    if pull.branch is not None:
        made = "made" if pull.branch.made else "there already"
        pushed = f", pushed to {pull.remote}" if pull.remote else ""
        echo(f"{pull.branch.name} at {pull.branch.commit[:12]}: {made}{pushed}, off {pull.base}")
    if pull.url:
        echo(pull.url)
    for note in pull.notes:
        echo(f"note: {note}")
    if pull.branch is not None and not pull.url:
        echo(f"\n{pull.title}\n\n{pull.body}")
