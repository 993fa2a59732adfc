"""`--since`, as people say it: an age, a date, or a commit of the coordination branch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from harness.errors import ConfigurationError
from harness.git.branch_commits import resolve
from harness.git.repo import Repo
from harness.model.entry import stamp

_AGE = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since_when(repo: Repo, text: str, *, now: datetime | None = None) -> str:
    """The moment that `text` means, as entries write theirs (UTC, milliseconds).

    Raises:
        ConfigurationError: it is no age (`2d`, `12h`), no date (ISO 8601), and no commit here.
    """
    age = _AGE.fullmatch(text.strip())
    if age:
        return stamp((now or datetime.now(UTC)) - timedelta(**{_UNITS[age[2]]: int(age[1])}))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        commit = resolve(repo.git, text)
        if commit is None:
            raise ConfigurationError(
                f"`{text}` is no age (2d, 12h), no date (2026-11-20, 2026-11-20T08:00) and no commit here",
                where="--since",
            ) from None
        return stamp(datetime.fromtimestamp(repo.commit(commit).at, UTC))
    return stamp(at if at.tzinfo else at.replace(tzinfo=UTC))
