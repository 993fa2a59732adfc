"""From a confirmed champion to a branch and a pull request that a person can merge."""

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
from harness.report.merge_branches import (
    WinBranch,
    default_branch,
    make_win_branch,
    push,
    remotes,
    text_of,
    web_address,
)
from harness.report.proof_text import ENTRY_TRAILER, message, proof_text, subject

_GH_S = 120.0
_CITED = re.compile(rf"^{ENTRY_TRAILER}: \S+ seq (\d+) ", re.MULTILINE)


@dataclass
class Pull:
    """A champion on its way into the main branch."""

    winner: MeasuredCandidate
    base: str
    """The branch it is to be merged into."""
    branch: WinBranch | None
    """null: it stands on the base already."""
    title: str
    body: str
    remote: str | None = None
    url: str | None = None
    """Of the pull request."""
    notes: list[str] = field(default_factory=list)


def main_branch(repo: Repo, coordination: str, remote: str | None) -> str:
    """What solutions are merged into: the remote's main branch where it is known here, else the coordination branch."""
    return default_branch(repo, remote) or coordination


def pick_remote(repo: Repo, named: str | None) -> str | None:
    """The remote to push to: the one named, `origin`, or the only one.

    Raises:
        ConfigurationError: there is no remote of that name.
    """
    known = remotes(repo)
    if named is not None and named not in known:
        raise ConfigurationError(f"there is no remote `{named}`", remedy=f"git remote add {named} URL")
    if named or "origin" in known:
        return named or "origin"
    return next(iter(known)) if len(known) == 1 else None


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
    """Make the win branch of a problem's champion, or find it made.

    Raises:
        AnswerIsNo: there is no confirmed PASSED entry of the problem as it is on `base`, or the branch carries an
            older champion and `replace` is false.
        RepositoryError: the branch carries something of a person, or the champion's tree is gone.
    """
    tip = repo.tip(base)
    digest = digest_at(repo, tip, problem)
    if digest is None:
        raise ConfigurationError(f"there is no problem `{problem}` on {base}", remedy="harness problems list")
    winner = champion(index, problem, digest, target, run)
    if winner is None:
        raise why_none(index, problem, digest, target, run)
    _commit_spooled(repo, index, winner, coordination)
    place = solution_path(problem, target)
    pull = Pull(winner, base, None, subject(winner), proof_text(winner))
    rival = unconfirmed_better(index, winner)
    if rival is not None:
        pull.notes.append(
            f"seq {rival.seq} by {rival.worker} measured {rival.speedup:.3f}x and awaits its confirmation"
        )
    if repo.tree_of(tip, place) == winner.tree:
        pull.notes.append(f"{base} has this very solution already: nothing to merge")
        return pull
    name = merge_branch(run, problem, target if len(known_targets(index, run)) > 1 else None)
    if not replace:
        _refuse_older(repo, name, winner)
    pull.branch = make_win_branch(repo, name, tip, place, winner.tree, message(winner), replace=replace)
    return pull


def _commit_spooled(repo: Repo, index: Index, winner: MeasuredCandidate, coordination: str) -> None:
    """A proof cites what is on the coordination branch: a confirmation that waits in the spool is committed first."""
    entry = winner.counts
    sql = "SELECT committed FROM entries WHERE problem = ? AND seq = ?"
    if index.query(sql, (entry.problem, entry.seq)) == [(1,)]:
        return
    try:
        with Ledger(repo.workspace, repo, branch=coordination):
            pass  # leaving it commits what is spooled
    except ConfigurationError as error:
        raise AnswerIsNo(
            f"the confirmation (seq {entry.seq}) is entered and not yet on {coordination}",
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
            f"{name} carries the champion of seq {cited[1]}, and a newer champion exists: seq {winner.counts.seq}, "
            f"{speedup:.3f}x",
            remedy=f"merge it as it is, or make it anew: `harness pr {winner.counts.problem} --replace`",
        )


def publish(repo: Repo, pull: Pull, remote: str, coordination: str, *, replace: bool = False) -> None:
    """Push the ledger, then the branch that is proved by it, and open the pull request where there is a way.

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
            "`gh` installed this is done for you)"
        )
    else:
        pull.url = _open(repo, pull, web)


def _open(repo: Repo, pull: Pull, web: str) -> str:
    """The pull request's address: of the one there is, or of a new one."""
    assert pull.branch is not None  # noqa: S101 - the caller has looked
    where = ("--repo", web.removeprefix("https://"))
    seen = _gh(
        repo, "pr", "view", pull.branch.name, *where, "--json", "url,state", "--jq", 'select(.state=="OPEN").url'
    )
    if seen.returncode == 0 and seen.stdout.strip():
        return seen.stdout.strip()
    given = ("--base", pull.base, "--head", pull.branch.name, "--title", pull.title, "--body-file", "-")
    made = _gh(repo, "pr", "create", *where, *given, stdin=pull.body)
    if made.returncode:
        raise RepositoryError(
            f"the branch is pushed, and `gh pr create` refused: {' '.join(made.stderr.split())[:400]}",
            remedy="`gh auth status` says whether you are logged in; `harness pr` again goes on from here",
        )
    return made.stdout.strip().splitlines()[-1]


def _gh(repo: Repo, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["gh", *arguments],
            cwd=repo.workspace.root,
            env={**kept, "GH_PROMPT_DISABLED": "1"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_GH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RepositoryError(f"`gh {' '.join(arguments[:2])}` did not answer within {_GH_S:.0f} s") from error
