"""Standings that are computed again only where entries have changed, for processes that ask for them often."""

from __future__ import annotations

from collections.abc import Sequence

from harness.ledger.index import Index
from harness.ledger.standings import Standing, standings

_MANY = 3
"""One pass over the whole ledger costs less than single problems when at least a third of them has changed."""


class StandingsCache:
    """The standings of one target and run, kept from call to call. One thread.

    Args:
        index: refreshed by the caller.
        target: as for `standings`.
        run: as for `standings`.
    """

    def __init__(self, index: Index, target: str | None, run: str | None) -> None:
        self._index, self._target, self._run = index, target, run
        self._known: dict[str, Standing] = {}
        self._revision: tuple[int, int] | None = None

    def standings(self, problems: Sequence[str]) -> tuple[Standing, ...]:
        """Return every problem's standing, in the order given.

        Raises:
            LedgerError: the index cannot be read.
        """
        revision = self._index.revision()  # before the entries: what comes meanwhile is read again the next time
        changed = self._index.changed_since(self._revision) if self._revision is not None else None
        self._known = {} if changed is None else {name: one for name, one in self._known.items() if name not in changed}
        missing = [problem for problem in problems if problem not in self._known]
        together = [missing] if _MANY * len(missing) > len(problems) else [[problem] for problem in missing]
        for group in together:
            self._known |= {one.problem: one for one in standings(self._index, group, self._target, self._run)}
        self._revision = revision
        return tuple(self._known[problem] for problem in problems)
