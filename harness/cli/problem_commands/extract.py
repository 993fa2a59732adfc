"""`harness problems extract`: creates problems from the code of production models."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.model.printable import count_of, first_names
from harness.workspace.directories import Workspace

if TYPE_CHECKING:
    from harness.corpus.extraction import ExtractedProblem, ExtractionLog

_EXAMPLES = 3


@click.command()
@click.argument("architectures", nargs=-1, metavar="[ARCHITECTURE|CONFIG.json|PACKAGE.MODULE:FUNCTION]...")
@click.option("--list", "list_them", is_flag=True, help="List the architectures, and extract nothing.")
@click.option("--table", is_flag=True, help="Extract all architectures of the table of checkpoints.")
@click.option("--only", multiple=True, metavar="GLOB", help="Extract only problems whose key or name matches.")
@click.option(
    "--direction",
    type=click.Choice(["both", "forward", "backward"]),
    default="both",
    show_default=True,
    help="`backward` alone adds the gradients of existing forward problems.",
)
@click.option("--into", type=click.Path(path_type=Path), help="Directory of problems (default: the workspace's).")
@click.option("--dry-run", is_flag=True, help="Extract and verify problems, but do not write them.")
@click.option("--replace", is_flag=True, help="Overwrite existing problems.")
@json_option
def extract(
    architectures: tuple[str, ...],
    *,
    list_them: bool,
    table: bool,
    only: tuple[str, ...],
    direction: str,
    into: Path | None,
    dry_run: bool,
    replace: bool,
    as_json: bool,
) -> int:
    """Create problems from the modules of models, without weights and downloads.

    An architecture is a name of `--list`, a config.json of transformers, or a function of your own. The function takes
    a batch size and a sequence length, and returns a module and the arguments of its `forward`; it runs without a
    sandbox. Each problem is verified against the original module before it is written.
    """
    from harness.corpus.checkpoints import checkpoint_table

    if list_them:
        _print_architectures(only, as_json=as_json)
        return 0
    names = [*architectures, *(checkpoint_table().architectures if table else ())]
    if not names:
        raise click.UsageError("name an architecture, or list them with --list")
    for name in names:
        if ":" in name:
            echo(f"running the code of {name} without a sandbox", err=True)
    directory = into if into is not None else Workspace.find().problems
    log = _extract_all(names, directory, only, direction, replace=replace, write=not dry_run)
    if as_json:
        echo_document({
            "problems": [_row(problem) for problem in log.problems],
            "skipped": [vars(item) for item in log.skipped],
            "seconds": {name: round(seconds, 2) for name, seconds in log.seconds.items()},
        })  # fmt: skip
    else:
        _print_summary(log, directory, dry_run=dry_run)
    return 0 if log.problems else 1


def _extract_all(
    names: Sequence[str], directory: Path, only: Sequence[str], direction: str, *, replace: bool, write: bool
) -> ExtractionLog:
    from harness.corpus.architectures import resolve_architecture
    from harness.corpus.extraction import ExtractionLog, ExtractionOptions, extract_architecture
    from harness.corpus.problem_files import known_graphs, write_problem

    log = ExtractionLog(graphs=known_graphs(directory))
    resolved = [resolve_architecture(name) for name in names]
    for number, architecture in enumerate(resolved, start=1):
        prefix = f"[{number}/{len(resolved)}] "
        extracted = extract_architecture(
            architecture,
            log,
            ExtractionOptions(
                only=lambda key: _matches(key, only),
                forward=direction != "backward",
                backward=direction != "forward",
                progress=lambda line, prefix=prefix: echo(prefix + line, err=True),  # type: ignore[misc]
            ),
        )
        for problem in extracted:
            exists = write and not write_problem(problem, directory, replace=replace)
            echo(f"{prefix}{problem.key}" + (" (exists, not replaced)" if exists else ""), err=True)
    return log


def _matches(key: str, globs: Sequence[str]) -> bool:
    name = key.partition("/")[2]
    return not globs or any(fnmatch.fnmatchcase(key, glob) or fnmatch.fnmatchcase(name, glob) for glob in globs)


def _print_architectures(globs: Sequence[str], *, as_json: bool) -> None:
    from harness.corpus.architectures import known_architectures
    from harness.corpus.checkpoints import checkpoint_table

    table = checkpoint_table().architectures
    rows = [
        {
            "architecture": name,
            "library": library,
            "family": table[name].family if name in table else None,
            "checkpoint": table[name].checkpoint if name in table else None,
        }
        for name, library in known_architectures().items()
        if not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)
    ]
    columns = {
        "architecture": lambda row: row["architecture"],
        "library": lambda row: row["library"],
        "family": lambda row: row["family"] or "-",
        "checkpoint": lambda row: row["checkpoint"] or "default configuration",
    }
    emit(rows, as_json=as_json, columns=columns, empty="no architecture matches")


def _row(problem: ExtractedProblem) -> dict[str, object]:
    return {
        "problem": problem.key,
        "op_type": problem.definition["op_type"],
        "workloads": len(problem.workloads),
        "graph": problem.graph,
        "description": problem.definition["description"],
    }


def _print_summary(log: ExtractionLog, directory: Path, *, dry_run: bool) -> None:
    rows = [
        {"problem": problem.key, "kind": problem.definition["op_type"], "workloads": len(problem.workloads)}
        for problem in log.problems
    ]
    emit(rows, as_json=False, empty="no problem")
    if log.skipped:
        echo("\nskipped, by reason")
        reasons = Counter(sorted(item.reason for item in log.skipped))
        for reason, number in reasons.most_common():
            examples = [f"{item.architecture} {item.module}" for item in log.skipped if item.reason == reason]
            echo(f"  {number:4}  {reason}: {first_names(examples, _EXAMPLES)}")
    workloads = sum(len(problem.workloads) for problem in log.problems)
    where = "nothing is written (--dry-run)" if dry_run else f"in {directory}"
    echo(
        f"\n{count_of(len(log.problems), 'problem')} with {count_of(workloads, 'workload')} "
        f"from {count_of(len(log.seconds), 'architecture')} in {sum(log.seconds.values()):.0f} s, "
        f"{count_of(len(log.skipped), 'module')} skipped; {where}"
    )
