"""Description of the wrong elements of an output: their rows, columns or tiles, and the difference of their values.

A pattern often identifies the mistake: rows beyond the last full tile, a transposed operand, sums in too few bits. It
is computed only after a comparison has failed, so its cost does not matter.
"""

from __future__ import annotations

import math

import torch

_LARGEST = 1 << 24
"""Number of elements above which only positions are described, not values."""
_MOST_RANGES = 4
"""Number of index ranges that a description lists."""
_LEAST_PERIODS = 4
"""An axis has at least so many periods where a period is reported."""
_TILES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes of tiles, and periods, that are recognised."""
_SIMILAR = 0.3
"""Smallest ratio of two root mean squares that are called similar."""
_UNRELATED, _CLOSE = 0.2, 0.999
"""Correlation below which values are unrelated, and above which they are the expected values with a small error."""
_MOSTLY = 0.5
"""Share of wrong elements above which the order of the values is examined."""
_NEARLY = 0.9
"""Share of wrong elements above which a region counts as wrong: some elements of it are right by accident."""


def describe_failure(actual: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """Return the pattern of an output's wrong elements, as the rest of a sentence.

    Args:
        actual: the candidate's output as float32 or integers, of the output's shape.
        expected: the reference's output, of the same dtype and shape.
        wrong: bool of the same shape; true for the elements beyond the tolerance.
    """
    count, total = int(wrong.sum()), wrong.numel()
    if count == 0:
        return "no element alone is beyond the tolerance"
    positions = _positions(wrong, count)
    values = _values(actual, expected, wrong) if total <= _LARGEST else ""
    return f"{positions}; {values}" if values else positions


def _positions(wrong: torch.Tensor, count: int) -> str:
    total = wrong.numel()
    if count == total:
        return "every element is wrong" if total > 1 else "the only element is wrong"
    if count == 1:
        return f"one element of {total:,} is wrong"
    return _region(wrong, count)


def _region(wrong: torch.Tensor, count: int) -> str:
    """Describe the affected rows and columns; a row is one index of all axes but the last."""
    total = wrong.numel()
    matrix = wrong.reshape(-1, wrong.shape[-1]) if wrong.dim() > 1 else wrong.reshape(1, -1)
    rows, columns = matrix.any(dim=1), matrix.any(dim=0)
    if matrix.shape[0] == 1:
        return f"{count:,} of {total:,} elements are wrong: {_set('element', columns)}"
    share = count / (int(rows.sum()) * int(columns.sum()))
    if share > _NEARLY and bool(rows.all()) and bool(columns.all()):
        return f"nearly every element is wrong ({count:,} of {total:,})"
    if share > _NEARLY and bool(columns.all()):
        return f"whole rows are wrong: {_set('row', rows)}"
    if share > _NEARLY and bool(rows.all()):
        return f"whole columns are wrong: {_set('column', columns)}"
    inside = "all" if share == 1.0 else f"{share:.0%}"
    return (
        f"{count:,} of {total:,} elements are wrong: {inside} of those in {_set('row', rows)} and "
        f"{_set('column', columns)}"
    )


def _set(name: str, present: torch.Tensor) -> str:
    """Describe indices of an axis: a range, the rest after the last full tile, a period, or a few ranges."""
    size, indices = present.numel(), present.nonzero().flatten().tolist()
    if len(indices) == size:
        return f"every {name}"
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        edges = [str(tile) for tile in _TILES if last == size - 1 and first == size // tile * tile]
        tail = f", exactly those beyond the last multiple of {' or '.join(edges)}" if edges else ""
        index_range = f"{name} {first}" if first == last else f"{name}s {first} to {last}"
        return f"{index_range} of {size}{tail}"
    for period in (period for period in _TILES if _LEAST_PERIODS * period <= size):
        residues = sorted({index % period for index in indices})
        if len(residues) <= period // 2 and len(indices) == sum(len(range(r, size, period)) for r in residues):
            listed = f"{', '.join(map(str, residues[:8]))}{' ...' * (len(residues) > 8)}"
            return f"{name}s whose index modulo {period} is {listed}"
    ranges = _ranges(indices)
    listed = ", ".join(f"{begin}" if begin == end else f"{begin} to {end}" for begin, end in ranges[:_MOST_RANGES])
    unlisted = f" and {len(ranges) - _MOST_RANGES} more ranges" if len(ranges) > _MOST_RANGES else ""
    return f"{len(indices)} of {size} {name}s ({listed}{unlisted})"


def _ranges(indices: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges


def _values(actual: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """Describe the relation of the wrong values to the expected ones."""
    if not actual.dtype.is_floating_point:
        actual, expected = actual.double(), expected.double()
    x, y = actual[wrong], expected[wrong]
    if bool(x.isnan().all()):
        return "all of them are NaN: never written, or computed from the output's content before the call"
    if not bool(x.isfinite().all()):
        return f"{int((~x.isfinite()).sum()):,} of them are not finite"
    if not bool(x.any()):
        return "all of them are zero"
    if x.numel() < 2:
        return ""
    if int(wrong.sum()) > _MOSTLY * wrong.numel():
        order = _order(actual, expected)
        if order:
            return order
    return _relation(x.double(), y.double())


def _order(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Describe the order of right values that are in another order; return "" for other values."""
    if expected.dim() < 2 or 1 in expected.shape[-2:]:
        return ""
    rows, columns = expected.shape[-2:]
    turned = actual.reshape(*expected.shape[:-2], columns, rows).mT
    if bool(torch.isclose(turned, expected, rtol=1e-2, atol=1e-5).double().mean() > _CLOSE):
        return "the values are right in transposed order: the last two axes are exchanged"
    return ""


def _relation(x: torch.Tensor, y: torch.Tensor) -> str:
    error_rms, rms = float((x - y).square().mean().sqrt()), float(y.square().mean().sqrt())
    correlation = _correlation(x, y)
    if rms > 0 and correlation is not None and abs(correlation) < _UNRELATED:
        size = float(x.square().mean().sqrt()) / rms
        if _SIMILAR < size < 1 / _SIMILAR:
            return (
                "the values have the expected size and are unrelated to the expected ones (correlation "
                f"{correlation:.2f}): other elements were read, as from a transposed or wrongly strided operand"
            )
        return (
            f"the values are {size:.2g} times the expected size and unrelated to the expected ones (correlation "
            f"{correlation:.2f}): sums that were not reset, memory that was not initialised, or a wrong address"
        )
    factor = float((x * y).sum() / y.square().sum()) if rms > 0 else math.nan
    if rms > 0 and float((x - factor * y).square().mean().sqrt()) < 0.02 * abs(factor) * rms and abs(factor - 1) > 0.01:
        return f"actual = {factor:.4g} * expected: a factor is missing or applied twice"
    shift = float((x - y).mean())
    if error_rms > 0 and float((x - y - shift).square().mean().sqrt()) < 0.02 * abs(shift):
        return f"actual = expected {'+' if shift > 0 else '-'} {abs(shift):.4g}: a constant is missing or added twice"
    if rms > 0 and correlation is not None and correlation > _CLOSE:
        return (
            f"the values are right but imprecise (root mean square error {error_rms / rms:.1e} of the expected): sums "
            "or intermediate values in too few bits, or a small term is missing"
        )
    part = f", correlation {correlation:.2f}" if correlation is not None else ""
    return f"root mean square error {error_rms:.3g}, of the expected values {rms:.3g}{part}"


def _correlation(x: torch.Tensor, y: torch.Tensor) -> float | None:
    if x.numel() < 8:
        return None
    correlation = float(torch.corrcoef(torch.stack((x, y)))[0, 1])
    return None if math.isnan(correlation) else correlation
