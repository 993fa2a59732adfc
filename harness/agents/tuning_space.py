"""What a solution's `tune:` spans: every combination of values, each with the git tree it makes."""

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
"""Spaces up to this size are enumerated, so that all their trees are known; larger ones are sampled."""
_DRAWS = 2000
"""Random draws from a large space before it counts as exhausted."""

Params = dict[str, ParamValue]


@dataclass(frozen=True)
class Space:
    """The search space of one solution."""

    text: str
    """solution.yaml as it was found."""
    spots: Mapping[str, tuple[int, int]]
    """Where in it the values of its params stand."""
    values: Mapping[str, tuple[ParamValue, ...]]
    start: Params
    """The values as committed."""
    tree_of_text: Callable[[str], str]
    """solution.yaml -> tree id of the directory with it."""

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return math.prod(len(values) for values in self.values.values())

    def rendered(self, params: Params) -> str:
        """solution.yaml with these values. Equal values give equal bytes, wherever the search began."""
        return with_params(self.text, params, self.spots)

    def tree(self, params: Params) -> str:
        """The git tree id of the solution directory with these values."""
        return self.tree_of_text(self.rendered(params))

    def combinations(self) -> Iterator[Params]:
        """Every combination, in a fixed order."""
        for number in range(self.size):
            yield self._combination(number)

    def by_tree(self) -> dict[str, Params]:
        """Tree -> values for each combination of a space that is small enough to enumerate; {} for a larger one."""
        if self.size > _ENUMERABLE:
            return {}
        return {self.tree(params): params for params in self.combinations()}

    def draw(self, tried: Collection[str], draws: random.Random) -> Params | None:
        """A random combination whose tree is not among `tried`; None when there is none left."""
        if self.size <= _ENUMERABLE:
            numbers = list(range(self.size))
            draws.shuffle(numbers)
        else:
            numbers = [draws.randrange(self.size) for _ in range(_DRAWS)]
        for number in numbers:
            params = self._combination(number)
            if self.tree(params) not in tried:
                return params
        return None

    def _combination(self, number: int) -> Params:
        params: Params = {}
        for name, values in self.values.items():
            number, place = divmod(number, len(values))
            params[name] = values[place]
        return params


def read_space(directory: Path) -> Space:
    """The search space of the solution in a directory.

    Raises:
        FormatError: it is no valid solution.
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
