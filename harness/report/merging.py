"""Creation of a branch and a pull request from a confirmed champion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field

from harness.errors import AnswerIsNo, ConfigurationError, LedgerError, RepositoryError
from harness.git.branch_commits import resolve
from harness.git.problem_digests import digest_at
from harness.git.repo import Repo
from harness.ledger.champions import MeasuredCandidate, champion, unconfirmed_better, why_none
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.standings import known_targets
from harness.model.paths import merge_branch, solution_path
from harness.report.merge_branches import WinBranch, make_win_branch, push, remotes, text_of, web_address
from harness.report.proof_text import ENTRY_TRAILER, message, proof_text, subject

_GH_TIMEOUT_S = 120.0
_CITED = re.compile(rf"^{ENTRY_TRAILER}: \S+ seq (\d+) ", re.MULTILINE)


@dataclass
class Pull:
    """The branch and the pull request of a champion."""

    winner: MeasuredCandidate
    base: str
    """The branch to merge into."""
    branch: WinBranch | None
    """None if the base already has the solution."""
    title: str
    body: str
    remote: str | None = None
    url: str | None = None
    """URL of the pull request."""
    notes: list[str] = field(default_factory=list)


def main_branch(repo: Repo, coordination: str, remote: str | None = None) -> str:
    """Return the branch to merge into: the remote's main branch if a local branch has its name, else `coordination`.

    Args:
        coordination: the coordination branch.
        remote: name of the remote; None to choose one.
    """
    remote = pick_remote(repo, remote)
    answer = repo.git.ask("symbolic-ref", "--quiet", f"refs/remotes/{remote}/HEAD") if remote else None
    name = answer.text.removeprefix(f"refs/remotes/{remote}/") if answer and answer.code == 0 else None
    return name if name and resolve(repo.git, f"refs/heads/{name}") else coordination


def pick_remote(repo: Repo, name: str | None) -> str | None:
    """Return the remote to push to: the given one, else `origin`, else the only one, else None.

    Args:
        name: a remote; None to choose one.

    Raises:
        ConfigurationError: no remote has that name.
    """
    urls = remotes(repo)
    if name is not None and name not in urls:
        raise ConfigurationError(f"there is no remote `{name}`", remedy=f"git remote add {name} URL")
    if name or "origin" in urls:
        return name or "origin"
    return next(iter(urls)) if len(urls) == 1 else None


def prepare(
    repo: Repo,
    index: Index,
    problem: str,
    *,
    run: str,
    target: str,
    base: str,
    coordination: str,
    replace: bool = False,
) -> Pull:
    """Create the win branch of a problem's champion, unless it exists.

    Args:
        index: index of the ledger, refreshed by the caller.
        base: the branch to merge into.
        coordination: the coordination branch, which has the ledger.
        replace: replace a branch with an older champion.

    Raises:
        AnswerIsNo: the problem's form on `base` has no confirmed PASSED entry, or the branch has an older champion
            and `replace` is False.
        RepositoryError: the branch has commits of a person, or the champion's tree is missing.
    """
    tip = repo.tip(base)
    digest = digest_at(repo, tip, problem)
    if digest is None:
        raise ConfigurationError(f"there is no problem `{problem}` on {base}", remedy="harness problems list")
    winner = champion(index, problem, digest, target, run)
    if winner is None:
        raise why_none(index, problem, digest, target, run)
    _commit_spooled(repo, index, winner, coordination)
    path = solution_path(problem, target)
    pull = Pull(winner, base, None, subject(winner), proof_text(winner))
    rival = unconfirmed_better(index, winner)
    if rival is not None:
        pull.notes.append(
            f"seq {rival.seq} by {rival.worker} measured {rival.speedup:.3f}x and awaits its confirmation"
        )
    if repo.tree_of(tip, path) == winner.tree:
        pull.notes.append(f"{base} already has this solution: there is nothing to merge")
        return pull
    name = merge_branch(run, problem, target if len(known_targets(index, run)) > 1 else None)
    if not replace:
        _refuse_older(repo, name, winner)
    pull.branch = make_win_branch(repo, name, tip, path, winner.tree, message(winner), replace=replace)
    return pull


def _commit_spooled(repo: Repo, index: Index, winner: MeasuredCandidate, coordination: str) -> None:
    """Commit a confirmation that is only in the spool: a proof cites entries on the coordination branch."""
    entry = winner.counts
    sql = "SELECT committed FROM entries WHERE problem = ? AND seq = ?"
    if index.query(sql, (entry.problem, entry.seq)) == [(1,)]:
        return
    try:
        with Ledger(repo.workspace, repo, branch=coordination):
            pass  # the exit of the block commits the spool
    except ConfigurationError as error:
        raise AnswerIsNo(
            f"the confirmation (seq {entry.seq}) is not yet on {coordination}",
            remedy="the running daemon commits it within a minute: try again then",
        ) from error
    except LedgerError as error:
        raise LedgerError(f"the confirmation cannot be committed: {error.message}", remedy=error.remedy) from error


def _refuse_older(repo: Repo, name: str, winner: MeasuredCandidate) -> None:
    tip = resolve(repo.git, f"refs/heads/{name}")
    cited = _CITED.search(text_of(repo, tip)) if tip else None
    if cited and int(cited[1]) != winner.counts.seq:
        speedup = winner.counts.summary.speedup if winner.counts.summary else None
        raise AnswerIsNo(
            f"{name} has the champion of seq {cited[1]}, and a newer champion exists: seq {winner.counts.seq}, "
            f"{speedup:.3f}x",
            remedy=f"merge the branch, or replace it: `harness pr {winner.counts.problem} --replace`",
        )


def publish(repo: Repo, pull: Pull, remote: str, coordination: str, *, replace: bool = False) -> None:
    """Push the ledger and then the win branch, and open the pull request if GitHub's command is installed.

    Args:
        pull: the result of `prepare`; receives remote, URL and notes.
        coordination: the coordination branch.
        replace: force the push of the win branch.

    Raises:
        RepositoryError: the remote or GitHub's command refused.
    """
    if pull.branch is None:
        return
    push(repo, remote, {coordination: False, pull.branch.name: replace})
    pull.remote = remote
    web = web_address(remotes(repo).get(remote, ""))
    if web is None or not web.startswith("https://github."):
        pull.notes.append(f"{remote} is not on GitHub: open the pull request there with the text below")
    elif shutil.which("gh") is None:
        pull.notes.append(
            f"open the pull request: {web}/compare/{pull.base}...{pull.branch.name}?expand=1 (with GitHub's command "
            "`gh` installed, `harness pr` opens it)"
        )
    else:
        pull.url = _open(repo, pull, web)


def _open(repo: Repo, pull: Pull, web: str) -> str:
    """Return the URL of the open pull request; open it if there is none."""
    assert pull.branch is not None  # noqa: S101 - the caller checks it
    of_repository = ("--repo", web.removeprefix("https://"))
    fields = ("--json", "url,state", "--jq", 'select(.state=="OPEN").url')
    view = _gh(repo, "pr", "view", pull.branch.name, *of_repository, *fields)
    if view.returncode == 0 and view.stdout.strip():
        return view.stdout.strip()
    options = ("--base", pull.base, "--head", pull.branch.name, "--title", pull.title, "--body-file", "-")
    creation = _gh(repo, "pr", "create", *of_repository, *options, stdin=pull.body)
    if creation.returncode:
        raise RepositoryError(
            f"the branch is pushed, but `gh pr create` refused: {' '.join(creation.stderr.split())[:400]}",
            remedy="log in with `gh auth login`, then run `harness pr` again",
        )
    return creation.stdout.strip().splitlines()[-1]


def _gh(repo: Repo, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["gh", *arguments],
            cwd=repo.workspace.root,
            env={**environment, "GH_PROMPT_DISABLED": "1"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_GH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RepositoryError(f"`gh {' '.join(arguments[:2])}` did not answer within {_GH_TIMEOUT_S:.0f} s") from error
