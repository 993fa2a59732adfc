"""The time of `--since`: from an age, a date, or a commit of the coordination branch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from harness.errors import ConfigurationError
from harness.git.branch_commits import resolve
from harness.git.repo import Repo
from harness.model.entry import stamp

_AGE = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since_when(repo: Repo, text: str, *, present: datetime | None = None) -> str:
    """Return the time that `text` means, in the format of entries (UTC, milliseconds).

    Args:
        repo: the workspace's repository.
        text: an age (`2d`, `12h`), a date (ISO 8601) or a commit.
        present: the present time; the default is the system's.

    Raises:
        ConfigurationError: the text is none of these, or the repository lacks the commit.
    """
    age = _AGE.fullmatch(text.strip())
    if age:
        return stamp((present or datetime.now(UTC)) - timedelta(**{_UNITS[age[2]]: int(age[1])}))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        commit = resolve(repo.git, text)
        if commit is None:
            raise ConfigurationError(
                f"`{text}` is not an age (2d, 12h), a date (2026-11-20, 2026-11-20T08:00) or a commit here",
                where="--since",
            ) from None
        return stamp(datetime.fromtimestamp(repo.commit(commit).at, UTC))
    return stamp(at if at.tzinfo else at.replace(tzinfo=UTC))
