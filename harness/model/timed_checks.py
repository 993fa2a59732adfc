"""Numbers of calls whose outputs the judge compares, and the text about them for agents."""

from __future__ import annotations

import math

ORDINARY_ROUNDS = 10
"""Correctness calls with ordinary inputs."""
MAX_CHECKED, MIN_CHECKED = 11, 4
"""Calls of a long timed batch that are checked: of a problem with one workload, and of one with many. Twelve blocks
have 264 or 96 of them."""

CHECKS_TEXT = f"""\
Every call has fresh inputs and poisoned outputs. Before any timing, {ORDINARY_ROUNDS} calls with ordinary inputs and
each stress case are checked. On a GPU each timed call is timed alone, and its output is checked. On a CPU calls are
timed in batches, and a random sample of each batch is checked, which is drawn after the clock has stopped:
{MAX_CHECKED} calls for a problem with one workload, down to {MIN_CHECKED} with many. Baseline and candidate alternate
in A B B A blocks on one pinned device."""
"""Markdown for COORDINATION.md."""


def checked_calls(workloads: int) -> int:
    """Return the largest number of calls that are checked of a timed batch whose calls are not separate.

    It is divided by the square root of the number of workloads, so that all workloads together have at least the checks
    of a single one. With the fewest, 96 in twelve blocks, a candidate that computes 3 % of its calls wrongly passes a
    workload with a probability of 0.97 ** 96 = 5 %, and gains 3 %.

    Args:
        workloads: number of the problem's workloads.
    """
    return max(MIN_CHECKED, round(MAX_CHECKED / math.sqrt(workloads)))
