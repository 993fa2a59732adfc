"""The search space of a solution's `tune:`: all combinations of values, and the git tree of each."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.formats.solutions import SOLUTION_NAME, load_solution, param_positions, with_params
from harness.git.tree_ids import tree_files, tree_id
from harness.model.solution import ParamValue

_ENUMERABLE = 4096
"""Largest number of combinations that are enumerated with their trees; larger spaces are sampled."""
_MAX_DRAWS = 2000
"""Random draws from a large space after which it counts as exhausted."""

Params = dict[str, ParamValue]


@dataclass(frozen=True)
class Space:
    """The search space of one solution."""

    text: str
    """solution.yaml at the start of the search."""
    spots: Mapping[str, tuple[int, int]]
    """Parameter -> begin and end of its value in `text`."""
    values: Mapping[str, tuple[ParamValue, ...]]
    start: Params
    """The committed values."""
    tree_of_text: Callable[[str], str]
    """Return the tree id of the directory with this text of solution.yaml."""

    @property
    def size(self) -> int:
        """Return the number of combinations."""
        return math.prod(len(values) for values in self.values.values())

    def rendered(self, params: Params) -> str:
        """Return solution.yaml with these values. Equal values give equal bytes, for any start of the search."""
        return with_params(self.text, params, self.spots)

    def tree(self, params: Params) -> str:
        """Return the git tree id of the solution directory with these values."""
        return self.tree_of_text(self.rendered(params))

    def combinations(self) -> Iterator[Params]:
        """Yield all combinations in a fixed order."""
        for number in range(self.size):
            yield self._combination(number)

    def by_tree(self) -> dict[str, Params]:
        """Return tree id -> values of all combinations; {} for a space of more than 4,096 combinations."""
        if self.size > _ENUMERABLE:
            return {}
        return {self.tree(params): params for params in self.combinations()}

    def draw(self, tried: Collection[str], generator: random.Random) -> Params | None:
        """Return a random combination that was not tried; None if none is found.

        Args:
            tried: tree ids.
            generator: source of the random numbers.
        """
        if self.size <= _ENUMERABLE:
            numbers = list(range(self.size))
            generator.shuffle(numbers)
        else:
            numbers = [generator.randrange(self.size) for _ in range(_MAX_DRAWS)]
        for number in numbers:
            params = self._combination(number)
            if self.tree(params) not in tried:
                return params
        return None

    def _combination(self, number: int) -> Params:
        params: Params = {}
        for name, values in self.values.items():
            number, index = divmod(number, len(values))
            params[name] = values[index]
        return params


def read_space(directory: Path) -> Space:
    """Return the search space of the solution in a directory.

    Raises:
        FormatError: the solution is not valid.
    """
    spec = load_solution(directory).spec
    files = tree_files(directory)
    text = (directory / SOLUTION_NAME).read_bytes().decode()
    return Space(
        text=text,
        spots=param_positions(text),
        values=spec.tune,
        start={name: spec.params[name] for name in spec.tune},
        tree_of_text=lambda text: tree_id(files, {SOLUTION_NAME: text.encode()}),
    )
