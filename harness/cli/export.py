"""`harness export`: a champion as SOL-ExecBench's solution.json."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from harness.cli.completion_values import complete_problem
from harness.cli.display.output import echo, echo_json
from harness.cli.merge_commands import opened, the_target


@click.command()
@click.argument("problem", shell_complete=complete_problem)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="By default: standard output.")
@click.option("--run", metavar="NAME", help="The run; by default harness.yaml's.")
@click.option("--target", metavar="NAME", help="The target; by default harness.yaml's, else the run's only.")
@click.option("--merged", is_flag=True, help="The solution that stands on the coordination branch, not the champion.")
def export(problem: str, *, output: Path | None, run: str | None, target: str | None, merged: bool) -> None:
    """Write a problem's champion as SOL-ExecBench's solution.json (pytorch, triton, cute_dsl and cuda_cpp)."""
    from harness.errors import AnswerIsNo, ConfigurationError
    from harness.formats.bounded import PROBLEM_BYTES, load_json
    from harness.formats.export_solutions import solution_document
    from harness.formats.problems import DEFINITION_NAME
    from harness.formats.solutions import load_solution
    from harness.git.problem_digests import digest_at
    from harness.ledger.champions import champion, measured, why_none
    from harness.model.paths import problem_path, solution_path
    from harness.report.proof_text import subject
    from harness.workspace.files import atomic_write

    with opened() as (_, config, repo, index), tempfile.TemporaryDirectory(prefix="kernel-harness-") as scratch:
        run, tip = run or config.run, repo.tip(config.coordination_branch)
        target = target or the_target(config, index, run)
        place, digest = solution_path(problem, target), digest_at(repo, tip, problem)
        definition = repo.read(tip, f"{problem_path(problem)}/{DEFINITION_NAME}")
        if digest is None or definition is None:
            raise ConfigurationError(f"there is no problem `{problem}`", remedy="harness problems list")
        if merged:
            commit, tree = tip, repo.tree_of(tip, place)
            if tree is None:
                raise AnswerIsNo(f"{config.coordination_branch} has no solution of {problem} for {target}")
            found = measured(index, problem, tree, target)
        else:
            found = champion(index, problem, digest, target, run)
            if found is None or found.evaluation.candidate is None:
                raise why_none(index, problem, digest, target, run)
            commit, tree = found.evaluation.candidate.commit, found.tree
        solution = load_solution(repo.export(commit, place, Path(scratch) / "solution"))
        whole = load_json(definition, where=f"{problem_path(problem)}/definition.json", max_bytes=PROBLEM_BYTES)
        named, axes = whole["name"], whole.get("axes", {})
        worker = found.evaluation.candidate.worker if found and found.evaluation.candidate else "unknown"
        document = solution_document(
            solution,
            name=f"{named}_{run}_{tree[:8]}",
            definition=named,
            author=f"kernel-harness {run}/{worker}",
            description=f"{subject(found)}; tree {tree}" if found else f"tree {tree}; not in the ledger",
            target=target,
            constants={axis: told["value"] for axis, told in axes.items() if told["type"] == "const"},
        )
    text = json.dumps(document, indent=2) + "\n"
    if output is None:
        echo_json(text, nl=False)
    else:
        atomic_write(output.absolute(), text)
        echo(f"{output}: {document['name']}", err=True)
