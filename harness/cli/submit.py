"""`harness submit`: commits the solution of the current worktree and waits for its evaluation."""

from __future__ import annotations

import threading

import click

from harness.cli.display.output import echo, echo_document, echo_json, json_option
from harness.cli.display.results import print_with_weaknesses
from harness.cli.options import POSITIVE
from harness.errors import EXIT_NO, AnswerIsNo
from harness.git.repo import Repo
from harness.ledger.candidates import ProblemCandidates
from harness.ledger.submission import locate, trailers, wait_for_outcome
from harness.ledger.submission import submit as commit
from harness.model.paths import problem_path
from harness.model.weaknesses import facts_of, weaknesses
from harness.workspace.configuration import load_config


@click.command()
@click.option("-m", "--message", default="Submit a solution", metavar="TEXT", help="What changed and why.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait for the verdict.")
@click.option("--target", metavar="NAME", help="The target; by default harness.yaml's, else cpu.")
@click.option(
    "--deadline",
    "deadline_s",
    type=POSITIVE,
    default=3600.0,
    show_default=True,
    metavar="S",
    help="Timeout in seconds.",
)
@json_option
def submit(message: str, target: str | None, deadline_s: float, *, wait: bool, as_json: bool) -> int:
    """Commit the solution of the current worktree and wait for its verdict. The exit code is 1 if it did not pass."""
    place = locate()
    config = load_config(place.workspace, {"target": target})
    target_name = config.target or "cpu"
    commit_trailers = trailers(run=config.run, worker=place.worker, agent="person", session="none")
    with Repo(place.workspace) as repo:
        repo.check_coordination_branch(config.coordination_branch)
        submission = commit(
            repo,
            place.worktree,
            problem=place.problem,
            target=target_name,
            message=message,
            commit_trailers=commit_trailers,
            base=config.coordination_branch,
            languages=config.languages,
        )
        if not as_json:
            echo(
                f"committed {submission.commit[:12]} on {submission.branch}"
                if not submission.unchanged
                else "nothing has changed"
            )
        if not wait:
            if as_json:
                document = {"commit": submission.commit, "tree": submission.tree, "branch": submission.branch}
                echo_document(document, indent=None)
            return 0
        tried = ProblemCandidates(place.workspace, repo, config, target_name)
        tried.begin(place.problem, place.worktree / problem_path(place.problem))
        try:
            entry = wait_for_outcome(
                place.workspace,
                place.problem,
                target_name,
                submission.tree,
                find_entry=lambda: tried.entry(submission.tree),
                stop=threading.Event(),
                deadline_s=deadline_s,
            )
        except TimeoutError as error:
            raise AnswerIsNo(str(error), remedy="is `harness start` or `harness daemon` running?") from error
    if entry is None:
        return EXIT_NO
    if as_json:
        echo_json(entry.model_dump_json(indent=2))
    else:
        print_with_weaknesses(entry, weaknesses(facts_of(entry)))
    return 0 if entry.verdict == "PASSED" else EXIT_NO
