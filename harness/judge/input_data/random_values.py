"""Random values of each role of `harness.judge.input_data.roles`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from harness.judge.input_data.roles import Purpose, Role


def dependent_values(purpose: Purpose, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return values that depend on each other: non-decreasing offsets, or distinct integers.

    If there are more values than integers below the bound, integers of the role DISTINCT repeat.

    Args:
        purpose: role OFFSETS or DISTINCT, with its upper bound.
        count: number of values.
        generator: source of randomness; its device is that of the values.

    Returns:
        int64 of shape [count].
    """
    bound = int(purpose.upper_bound)
    if purpose.role is Role.DISTINCT and count <= bound:
        return torch.randperm(bound, generator=generator, device=generator.device)[:count]
    values = _integers_below(max(1, bound + (purpose.role is Role.OFFSETS)), count, generator)
    if purpose.role is Role.OFFSETS:
        values = values.sort().values
        values[0], values[-1] = 0, bound if count > 1 else 0
    return values


def independent_values(purpose: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    """Return values of a role, of which any slice of whole rows has the same distribution.

    Args:
        purpose: the role, with its parameters.
        rows: number of rows.
        row: values of a row.
        generator: source of randomness; its device is that of the values.

    Returns:
        Tensor of shape [rows * row], whose dtype depends on the role; the caller converts it.
    """
    return _DRAWS.get(purpose.role, _normal)(purpose, rows, row, generator).view(-1)


def _integers_below(bound: int, count: int, generator: torch.Generator, lowest: int = 0) -> torch.Tensor:
    return torch.randint(lowest, bound, (count,), generator=generator, device=generator.device)


def _normal(purpose: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    # Every float format of a definition can represent the limits. One normal variate in a billion is beyond 6.
    return torch.randn(rows * row, generator=generator, device=generator.device).clamp_(-6, 6).mul_(purpose.std)


def _uniform(purpose: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    values = torch.rand(rows * row, generator=generator, device=generator.device)
    return values.mul_(purpose.upper_bound - purpose.lower_bound).add_(purpose.lower_bound)


def _around_one(_: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    distance = torch.rand(rows * row, generator=generator, device=generator.device).mul_(0.4).add_(0.1)
    return distance.mul_(_integers_below(2, rows * row, generator).mul_(2).sub_(1)).add_(1)


def _mask(purpose: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    is_kept = torch.rand(rows * row, generator=generator, device=generator.device) < 0.75
    return torch.where(is_kept, 0.0, -1e4) if purpose.role is Role.ADDITIVE_MASK else is_kept


def _angle(purpose: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    angles = torch.rand(rows * row, generator=generator, device=generator.device).mul_(2 * math.pi)
    return torch.cos(angles) if purpose.role is Role.COSINE else torch.sin(angles)


def _probability(_: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, row, generator=generator, device=generator.device).softmax(dim=-1)


def _integer(purpose: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    lower_bound = 1 if purpose.role is Role.LENGTHS else int(purpose.lower_bound)
    upper_bound = int(purpose.upper_bound) + (purpose.role is Role.LENGTHS)
    return _integers_below(max(lower_bound + 1, upper_bound), rows * row, generator, lower_bound)


def _boolean(_: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    return _integers_below(2, rows * row, generator)


def _bits(_: Purpose, rows: int, row: int, generator: torch.Generator) -> torch.Tensor:
    return _integers_below(256, rows * row, generator).to(torch.uint8).view(torch.float4_e2m1fn_x2)


_DRAWS: dict[Role, Callable[[Purpose, int, int, torch.Generator], torch.Tensor]] = {
    Role.AROUND_ONE: _around_one,
    Role.PROBABILITY: _probability,
    Role.BOOLEAN: _boolean,
    Role.BITS: _bits,
    **dict.fromkeys((Role.MASK, Role.ADDITIVE_MASK), _mask),
    **dict.fromkeys((Role.COSINE, Role.SINE), _angle),
    **dict.fromkeys((Role.DECAY, Role.POSITIVE, Role.NEGATIVE, Role.UNIFORM), _uniform),
    **dict.fromkeys((Role.INDEX, Role.LENGTHS, Role.INTEGER), _integer),
}
