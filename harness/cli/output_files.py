"""`harness report` and `harness export`: a page about a run, and a champion as SOL-ExecBench's solution.json."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from harness.cli.completion_values import complete_problem
from harness.cli.display.output import echo, echo_json
from harness.cli.merge_commands import check_entries, opened, single_target
from harness.cli.options import OUTPUT_FILE, run_option, target_option
from harness.errors import AnswerIsNo, ConfigurationError
from harness.formats.bounded import PROBLEM_BYTES, load_json
from harness.formats.problems import DEFINITION_NAME, list_problems
from harness.formats.solution_json import solution_document
from harness.formats.solutions import load_solution
from harness.git.problem_digests import digest_at
from harness.ledger.champions import champion, measured, why_none
from harness.ledger.standings import known_problems
from harness.model.paths import problem_path, solution_path
from harness.model.printable import count_of
from harness.report.collect import collect
from harness.report.merge_branches import remotes, web_address
from harness.report.merging import pick_remote
from harness.report.page import render
from harness.report.proof_text import subject
from harness.workspace.files import atomic_write


@click.command()
@click.option("-o", "--output", type=OUTPUT_FILE, default=Path("report.html"))
@run_option
@target_option
@click.option("--commit-url", metavar="URL", help="URL of a commit's page, with {} for the id.")
def report(output: Path, *, run: str | None, target: str | None, commit_url: str | None) -> None:
    """Write an HTML file about a run: headline, trajectories, table, steps, spend. The file works offline."""
    with opened() as (workspace, config, repo, index):
        run = run or config.run
        check_entries(index, config, run, target)
        remote = pick_remote(repo, None)
        web = web_address(remotes(repo).get(remote, "")) if remote else None
        if commit_url is None and web is not None:
            commit_url = f"{web}/-/commit/{{}}" if "gitlab" in web else f"{web}/commit/{{}}"
        if commit_url is not None and ("{}" not in commit_url or not commit_url.startswith(("https://", "http://"))):
            raise ConfigurationError(f"`{commit_url}` is not a URL with {{}} in it", where="--commit-url")
        data = collect(
            repo,
            index,
            branch=config.coordination_branch,
            problems=sorted({*list_problems(workspace.problems, config.problems), *known_problems(index)}),
            run=run,
            target=target or single_target(config, index, run),
            commit_url=commit_url,
        )
    atomic_write(output.absolute(), render(data))
    shown = count_of(len(data["problems"]), "problem")
    echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {shown}; open it in a browser")


@click.command()
@click.argument("problem", shell_complete=complete_problem)
@click.option("-o", "--output", type=OUTPUT_FILE, help="File; the default is standard output.")
@run_option
@target_option
@click.option("--merged", is_flag=True, help="Export the solution on the coordination branch instead of the champion.")
def export(problem: str, *, output: Path | None, run: str | None, target: str | None, merged: bool) -> None:
    """Write a problem's champion as SOL-ExecBench's solution.json (pytorch, triton, cute_dsl and cuda_cpp)."""
    with opened() as (_, config, repo, index), tempfile.TemporaryDirectory(prefix="kernel-harness-") as scratch:
        run, tip = run or config.run, repo.tip(config.coordination_branch)
        target = target or single_target(config, index, run)
        path, digest = solution_path(problem, target), digest_at(repo, tip, problem)
        definition = repo.read(tip, f"{problem_path(problem)}/{DEFINITION_NAME}")
        if digest is None or definition is None:
            raise ConfigurationError(f"there is no problem `{problem}`", remedy="harness problems list")
        if merged:
            commit, tree = tip, repo.tree_of(tip, path)
            if tree is None:
                raise AnswerIsNo(f"{config.coordination_branch} has no solution of {problem} for {target}")
            winner = measured(index, problem, tree, target)
        else:
            winner = champion(index, problem, digest, target, run)
            if winner is None or winner.evaluation.candidate is None:
                raise why_none(index, problem, digest, target, run)
            commit, tree = winner.evaluation.candidate.commit, winner.tree
        solution = load_solution(repo.export(commit, path, Path(scratch) / "solution"))
        document = load_json(definition, where=f"{problem_path(problem)}/definition.json", max_bytes=PROBLEM_BYTES)
        name, axes = document["name"], document.get("axes", {})
        worker = winner.evaluation.candidate.worker if winner and winner.evaluation.candidate else "unknown"
        exported = solution_document(
            solution,
            name=f"{name}_{run}_{tree[:8]}",
            definition=name,
            author=f"kernel-harness {run}/{worker}",
            description=f"{subject(winner)}; tree {tree}" if winner else f"tree {tree}; not in the ledger",
            target=target,
            constants={name: axis["value"] for name, axis in axes.items() if axis["type"] == "const"},
        )
    text = json.dumps(exported, indent=2)
    if output is None:
        echo_json(text)
    else:
        atomic_write(output.absolute(), f"{text}\n")
        echo(f"{output}: {exported['name']}", err=True)
