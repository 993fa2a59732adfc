"""Checks of the ledger against git's own history, besides the ledger's own chain; and the time of `--since`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from harness.errors import ConfigurationError, HarnessError
from harness.formats.ledger_documents import Document, field_of
from harness.formats.ledger_heads import HEADER, Head, end_of, read_heads
from harness.git.branch_commits import own_commits, resolve
from harness.git.repo import Repo
from harness.ledger.ledger import ledger_contents
from harness.model.entry import stamp
from harness.model.paths import HEADS, LEDGER

_LONG_IN_THE_SPOOL = timedelta(hours=6)
"""The harness commits every minute. A longer interval in one commit is noted; a commit can be delayed."""
_AGE = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
FormerHead = tuple[str, str, Head]
"""The commit, the file, and the file's head in that commit."""


def pushed_copy(repo: Repo, branch: str) -> tuple[str, str] | None:
    """Return the name and commit of the branch on `origin` (or the only remote) at the last fetch or push, or None.

    Args:
        branch: the branch's short name.
    """
    copies = {name: oid for name, oid in repo.refs("refs/remotes/").items() if name.partition("/")[2] == branch}
    if len(copies) > 1:
        copies = {name: oid for name, oid in copies.items() if name.startswith("origin/")}
    return next(iter(copies.items()), None)


def authors(repo: Repo, tip: str, path: str) -> Counter[str]:
    """Return author's address -> number of commits that changed something at a path, without merges.

    Args:
        tip: the commit whose history is searched.
        path: relative to the repository's root.
    """
    plain = ("--no-merges", "--no-show-signature", "--no-mailmap", "--format=%ae")
    return Counter(repo.git.run("log", *plain, tip, "--", path).text.split())


def former_heads(repo: Repo, tip: str) -> list[FormerHead]:
    """Return every head that was ever committed up to a commit, newest first.

    Args:
        tip: the commit whose history is searched.
    """
    former = []
    former_lines: set[bytes] = set()
    for commit in repo.history(tip, HEADS):
        lines = set((repo.read(commit, HEADS) or b"").splitlines(keepends=True)) - former_lines
        former_lines |= lines
        try:
            heads = read_heads(HEADER + b"".join(sorted(line for line in lines if line[:1] == b'"')))
        except HarnessError:
            continue  # a heads file that was broken and has been repaired
        former += [(commit, file, head) for file, head in heads.items()]
    return former


def replaced_history(
    repo: Repo, branch: str, tip: str, former: Sequence[FormerHead], copy: tuple[str, str] | None
) -> Iterator[str]:
    """Yield sentences about commits of the ledger that the branch's history had once and lacks now.

    After a rebase by a person each commit has a counterpart, and the new history has all heads that were ever
    committed. A history that shares no commit with the old one, or lacks heads of it, was replaced.

    Args:
        repo: a repository that is not a shallow clone.
        branch: the coordination branch.
        former: the tip's `former_heads`.
        copy: the name and commit of the branch on a remote at the last fetch or push.
    """
    history = set(repo.git.run("rev-list", tip).text.split())
    heads = {(file, head) for _, file, head in former}
    # A reset of the branch is itself a break.
    records = [] if repo.lost_appends(branch) else own_commits(repo.git, branch)
    explained: set[str] = set()
    for name, commit in [*([copy] if copy else []), *records]:
        if commit in history or commit in explained or not repo.has_object(commit) or repo.is_ancestor(tip, commit):
            continue
        explained |= set(repo.git.run("rev-list", commit, f"^{tip}").text.split())
        lost = [head for _, file, head in former_heads(repo, commit) if (file, head) not in heads]
        if repo.git.ask("merge-base", commit, tip).code:
            difference = "shares no commit with it"
        elif lost:
            difference = f"lacks {len(lost)} of the heads that were committed up to there"
        else:
            continue
        yield (
            f"the history of {branch} was replaced: {name} has commit {commit[:12]}, and the history {difference}. "
            f"See the former history with `git log {commit[:12]} -- {LEDGER}/`; "
            f"`git branch former-{branch} {commit[:12]}` keeps it"
        )


def invented_beginnings(repo: Repo, tip: str) -> Iterator[str]:
    """Yield sentences about first commits that already hold ledger documents: the harness begins with an empty ledger.

    Args:
        repo: a repository that is not a shallow clone.
        tip: the commit whose history is searched.
    """
    for root in repo.git.run("rev-list", "--max-parents=0", tip).text.split():
        contents = ledger_contents(repo, root)
        contents.pop(HEADS, None)
        count = 0
        for name, content in contents.items():
            with suppress(HarnessError):  # not a ledger file: the audit of the files names it
                end = end_of(content, name)
                count += end.seq if end else 0
        if count:
            yield (
                f"the history was replaced: its first commit {root[:12]} already holds {count} ledger documents, and "
                "a ledger begins empty. Look for the former history in other clones and on the remote"
            )


def late_commits(former: Sequence[FormerHead], chains: Mapping[str, Sequence[Document]]) -> Iterator[str]:
    """Yield sentences about commits of documents that were written hours apart.

    Args:
        former: the heads that were ever committed.
    """
    spans: dict[str, timedelta] = {}
    for file, documents in chains.items():
        times = {document.seq: field_of(document.raw, "at") for document in documents}
        before = 0
        for seq, commit in sorted({(head.seq, commit) for commit, name, head in former if name == file}):
            first, last = times.get(before + 1), times.get(seq)
            before = seq
            if first and last:
                span = datetime.fromisoformat(last) - datetime.fromisoformat(first)
                spans[commit] = max(span, spans.get(commit, span))
    for commit, span in spans.items():
        if span >= _LONG_IN_THE_SPOOL:
            hours = span.total_seconds() / 3600
            yield (
                f"commit {commit[:12]} entered documents that were written over {hours:.0f} hours, and the harness "
                "commits every minute: it could not commit during that time, or the history was made later"
            )


def since_when(repo: Repo, text: str, *, present: datetime | None = None) -> str:
    """Return the time that `text` means, in the format of entries (UTC, milliseconds).

    Args:
        text: an age (`2d`, `12h`), a date (ISO 8601) or a commit.
        present: the present time; the default is the system's.

    Raises:
        ConfigurationError: the text is none of these, or the repository lacks the commit.
    """
    try:
        age = _AGE.fullmatch(text.strip())
        if age:
            return stamp((present or datetime.now(UTC)) - timedelta(**{_UNITS[age[2]]: int(age[1])}))
        at = datetime.fromisoformat(text)
        return stamp(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (OverflowError, ValueError):  # an age or a date outside the years 1 to 9999, or none
        commit = resolve(repo.git, text)
    if commit is None:
        raise ConfigurationError(
            f"`{text}` is not an age (2d, 12h), a date (2026-11-20, 2026-11-20T08:00) or a commit here",
            where="--since",
        )
    return stamp(datetime.fromtimestamp(repo.commit(commit).at, UTC))
