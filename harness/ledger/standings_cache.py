"""A cache of standings for processes that read them often: a problem is computed again after its entries changed."""

from __future__ import annotations

from collections.abc import Sequence

from harness.ledger.index import Index
from harness.ledger.standings import Standing, standings

_MANY = 3
"""One pass over the whole ledger costs less than single problems when at least a third of them has changed."""


class StandingsCache:
    """The standings of one target and run, cached between calls. Not thread-safe.

    Args:
        index: refreshed by the caller.
        target: as for `standings`.
        run: as for `standings`.
    """

    def __init__(self, index: Index, target: str | None, run: str | None) -> None:
        self._index, self._target, self._run = index, target, run
        self._cached: dict[str, Standing] = {}
        self._revision: tuple[int, int] | None = None

    def standings(self, problems: Sequence[str]) -> tuple[Standing, ...]:
        """Return every problem's standing, in the given order.

        Raises:
            LedgerError: the index cannot be read.
        """
        revision = self._index.revision()  # before the entries: a later entry is read again the next time
        changed = self._index.changed_since(self._revision) if self._revision is not None else None
        self._cached = (
            {}
            if changed is None
            else {name: standing for name, standing in self._cached.items() if name not in changed}
        )
        missing = [problem for problem in problems if problem not in self._cached]
        together = [missing] if _MANY * len(missing) > len(problems) else [[problem] for problem in missing]
        for group in together:
            self._cached |= {
                standing.problem: standing for standing in standings(self._index, group, self._target, self._run)
            }
        self._revision = revision
        return tuple(self._cached[problem] for problem in problems)
