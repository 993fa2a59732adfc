"""Secret random inputs, drawn again for every call.

For each distribution, an evaluation creates a pool of random values from secret seeds. A tensor is then filled at the
speed of a copy: slices of the pool at secret offsets, multiplied by a secret factor near 1 or -1. The factor changes
every value, so that a candidate that has read the pool cannot look up the results of a unary function. A sum or a norm
is multiplied by the same factor, so it can be looked up. For host code of a candidate, which can keep the pool, each
slice of activations, weights and most other floats is therefore the sum of two slices at independent offsets, with
secret weights: it would have to search the whole pool for both, which takes longer than the computation.
`harness.judge.input_data.roles` defines the roles.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from harness.judge.input_data.copies import BatchedCopy, Piece
from harness.judge.input_data.custom_inputs import CustomInputs, checked_input
from harness.judge.input_data.layout import layout_of
from harness.judge.input_data.random_values import dependent_values, independent_values
from harness.judge.input_data.roles import Purpose, Role, purpose_of
from harness.judge.reference import Reference, Value
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage
from harness.model.problem import Problem, SafetensorsInput, ScalarInput, Workload
from harness.sol.problem_tensors import tensor_of_file, torch_dtype

_SMALLEST_POOL, _LARGEST_POOL = 1 << 16, 1 << 22
"""Smallest and largest number of values of a pool."""
_SIGNED = frozenset({Role.NORMAL, Role.BIAS, Role.WEIGHT})
"""Roles whose factor may be negative."""
_UNSIGNED = (Role.AROUND_ONE, Role.POSITIVE, Role.NEGATIVE, Role.DECAY)
_FACTORS = {**dict.fromkeys(_SIGNED, 0.1), **dict.fromkeys(_UNSIGNED, 0.03)}
"""Roles whose slices are multiplied by a factor -> largest difference of the factor's magnitude from 1."""
_MIXED = _SIGNED | {Role.POSITIVE, Role.NEGATIVE, Role.DECAY}
"""Roles whose slices are sums of two slices of the pool. A sum of two normal variates is normal, and an average of two
values is within the same bounds. AROUND_ONE is not mixed: an average of its values may be 1."""
_SCALABLE = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_DEPENDENT = frozenset({Role.OFFSETS, Role.DISTINCT})
"""Roles whose values depend on each other, so that a slice of a pool would be invalid; they are drawn for each call."""


@dataclass(frozen=True)
class _Plan:
    """A random input of a workload."""

    name: str
    purpose: Purpose
    dtype: torch.dtype
    shape: tuple[int, ...]
    scalar: bool


class InputSource:
    """Source of the inputs of one evaluation.

    When one set of a workload has been filled, several threads may refill others, unless its inputs are custom.

    Args:
        problem: the problem.
        reference: the problem's loaded reference, with the entry point of custom inputs; None loads it if it is needed.
        seed: seed for tests; None uses the operating system's randomness.
        device: device of the filled tensors; the CPU by default.
        copy_all: copies many pieces at once on this device; None if each is copied separately.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        reference: Reference | None = None,
        seed: int | None = None,
        device: torch.device | None = None,
        copy_all: BatchedCopy | None = None,
    ) -> None:
        self._problem = problem
        self._device = device or torch.device("cpu")
        self._custom_inputs = CustomInputs(problem, reference, self._device)
        self._copy_all = copy_all
        self.random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311
        self._pools: dict[tuple[Purpose, torch.dtype, int], torch.Tensor] = {}
        self._pool_of: dict[int, torch.Tensor] = {}
        """Pool by the id of a plan; the plans exist as long as this object."""
        self._plans: dict[str, tuple[_Plan, ...]] = {}
        self._files: dict[tuple[str, str], torch.Tensor] = {}
        self.for_host_code = True
        """False if only sealed or recorded code receives the inputs: it keeps nothing from one call to the next."""

    @timed_as(JudgeStage.FILL)
    def draw(self, workload: Workload) -> dict[str, Value]:
        """Return new inputs of a workload by name, in declaration order: tensors and Python scalars.

        Raises:
            FormatError: an input cannot be created as the problem defines it.
        """
        if workload.is_custom:
            return self._custom(workload)
        layout = layout_of(self._problem, workload)
        tensors = {
            field.name: torch.empty(
                field.shape, dtype=field.torch_dtype, device="cpu" if field.scalar else self._device
            )
            for field in layout.inputs
        }
        self.refill(workload, tensors)
        return dict(zip(tensors, layout.input_values(tensors), strict=True))

    @timed_as(JudgeStage.FILL)
    def refill(self, workload: Workload, into: Mapping[str, torch.Tensor]) -> None:
        """Overwrite tensors with new inputs.

        Args:
            workload: workload of the inputs.
            into: contiguous tensors by name; a Python scalar's tensor is 0-d.

        Raises:
            FormatError: an input cannot be created as the problem defines it.
        """
        if workload.is_custom:
            for name, value in self._custom(workload).items():
                _put(into[name], value)
            return
        self._fill_specified(workload, into)
        slices: dict[str, list[tuple[int, int]]] = {}
        for plan in self._random_inputs(workload):
            self._fill(plan, into[plan.name], slices, None)

    def refill_all(self, workload: Workload, sets: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Overwrite several sets of tensors with new inputs, with `copy_all` if there is one.

        Args:
            workload: workload of the inputs.
            sets: see `refill`.

        Raises:
            FormatError: an input cannot be created as the problem defines it.
        """
        if self._copy_all is None or workload.is_custom:
            for into in sets:
                self.refill(workload, into)
            return
        pieces: list[Piece] = []
        slices: list[dict[str, list[tuple[int, int]]]] = [{} for _ in sets]
        for into in sets:
            self._fill_specified(workload, into)
        for plan in self._random_inputs(workload):
            if self._is_one_slice(plan, self._copy_all):
                self._fill_all(plan, [into[plan.name].data_ptr() for into in sets], pieces)
                continue
            for into, slices_of_set in zip(sets, slices, strict=True):
                self._fill(plan, into[plan.name], slices_of_set, pieces)
        self._flush(pieces)

    def fills_at_once(self, workload: Workload) -> bool:
        """Return true if `refill_all` is faster than calls of `refill` on several processors.

        Args:
            workload: workload of the inputs.
        """
        if self._copy_all is None or self._device.type != "cpu":
            return self._copy_all is not None
        from_files = any(isinstance(specified, SafetensorsInput) for specified in workload.inputs.values())
        plans = self._random_inputs(workload)
        return not from_files and not workload.is_custom and all(self._is_batched(plan) for plan in plans)

    def _is_batched(self, plan: _Plan) -> bool:
        """Return true if an input is filled by pieces, or is a scalar."""
        has_factor = plan.purpose.role in _FACTORS and plan.dtype in _SCALABLE
        scalable = self._copy_all is not None and plan.dtype in self._copy_all.scalable
        return plan.scalar or (plan.purpose.role not in _DEPENDENT and (scalable or not has_factor))

    def _flush(self, pieces: list[Piece] | None) -> None:
        if pieces and self._copy_all is not None:
            self._copy_all(pieces)
            pieces.clear()

    def _fill_specified(self, workload: Workload, into: Mapping[str, torch.Tensor]) -> None:
        """Fill the inputs that the workload specifies: scalars, and tensors of files."""
        for name, specified in workload.inputs.items():
            if isinstance(specified, ScalarInput):
                into[name].fill_(specified.value)
            elif isinstance(specified, SafetensorsInput):
                _put(into[name], self._from_file(workload, name, specified))

    def _is_one_slice(self, plan: _Plan, copy_all: BatchedCopy) -> bool:
        """Return true if an input is one piece with a factor, independent of all other inputs."""
        count, role = math.prod(plan.shape), plan.purpose.role
        if plan.scalar or not count or role not in _FACTORS or plan.dtype not in copy_all.scalable:
            return False
        if self._is_mixed(plan) and not copy_all.adds:
            return False
        return count <= len(self._pool_for(plan, count, 1)) // 2

    def _fill_all(self, plan: _Plan, targets: Sequence[int], pieces: list[Piece]) -> None:
        """Add the copies for one input of many sets; it is fast per set, because a batch of 2 ms can need 128 sets."""
        count, purpose = math.prod(plan.shape), plan.purpose
        pool, role = self._pool_for(plan, count, 1), purpose.role
        begin, size, offsets = pool.data_ptr(), plan.dtype.itemsize, len(pool) - count + 1
        width, signed, mixed = _FACTORS[role], role in _SIGNED, self._is_mixed(plan)
        words = iter(struct.unpack(f"={4 * len(targets)}Q", self.random.randbytes(32 * len(targets))))
        for target, position, word, second_position, share in zip(targets, words, words, words, words, strict=False):
            factor = (1 + width * ((word >> 11) * 2.0**-52 - 1)) * purpose.std
            factor, source = -factor if signed and word & 1 else factor, begin + position % offsets * size
            if not mixed:
                pieces.append(Piece(source, target, count, plan.dtype, factor))
                continue
            first, second = _weights(role, (share >> 11) * 2.0**-53)
            second_source = begin + second_position % offsets * size
            pieces.append(Piece(source, target, count, plan.dtype, first * factor, second_source, second * factor))

    def _random_inputs(self, workload: Workload) -> tuple[_Plan, ...]:
        plans = self._plans.get(workload.uuid)
        if plans is None:
            definition, sizes = self._problem.definition, self._problem.sizes(workload)
            plans = self._plans[workload.uuid] = tuple(
                _Plan(
                    name,
                    purpose_of(name, definition, sizes),
                    torch_dtype(spec.dtype),
                    self._problem.shape(spec, sizes),
                    spec.shape is None,
                )
                for name, spec in definition.inputs.items()
                if not isinstance(workload.inputs.get(name), ScalarInput | SafetensorsInput)
            )
        return plans

    def _fill(
        self, plan: _Plan, target: torch.Tensor, slices: dict[str, list[tuple[int, int]]], pieces: list[Piece] | None
    ) -> None:
        """Fill one random input; copies that can be batched are only added to `pieces`, unless it is None."""
        role, count = plan.purpose.role, target.numel()
        if count == 0:
            return
        if plan.scalar:
            target.fill_(_scalar(plan, self.random))
            return
        flat = target.view(-1)
        if role in _DEPENDENT:
            generator = torch.Generator(self._device).manual_seed(self.random.getrandbits(63))
            flat.copy_(dependent_values(plan.purpose, count, generator))
            return
        row = plan.shape[-1] if plan.shape and role is Role.PROBABILITY else 1
        pool = self._pool_for(plan, count, row)
        pair = plan.name.lower().replace("cos", "sin") if role in {Role.COSINE, Role.SINE} else plan.name
        if pair not in slices:
            slices[pair] = list(_slices(count, len(pool), row, self.random))
        begin = 0
        for offset, length in slices[pair]:
            factor, part = self._factor(plan), flat[begin : begin + length]
            first = pool[offset : offset + length]
            if factor is not None and self._is_mixed(plan):
                second_offset = self.random.randrange(len(pool) - length + 1)
                second = pool[second_offset : second_offset + length]
                weights = _weights(role, self.random.random())
                self._add(first, second, part, (weights[0] * factor, weights[1] * factor), pieces)
            elif pieces is not None and self._copies_with(factor, plan.dtype):
                pieces.append(Piece(first.data_ptr(), part.data_ptr(), length, plan.dtype, factor))
            else:
                _copy(first, part, factor)
            begin += length
        if role in {Role.MASK, Role.ADDITIVE_MASK} and plan.shape:
            self._flush(pieces)
            target.view(-1, plan.shape[-1])[:, 0] = 0 if role is Role.ADDITIVE_MASK else 1

    def _is_mixed(self, plan: _Plan) -> bool:
        return self.for_host_code and plan.purpose.role in _MIXED and plan.dtype in _SCALABLE

    def _copies_with(self, factor: float | None, dtype: torch.dtype) -> bool:
        """Return true if `copy_all` can make copies with this factor."""
        return self._copy_all is not None and (factor is None or dtype in self._copy_all.scalable)

    def _add(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        target: torch.Tensor,
        factors: tuple[float, float],
        pieces: list[Piece] | None,
    ) -> None:
        """Write the sum of two slices, each multiplied by its factor, or add it to `pieces` if that is possible."""
        adds = self._copy_all is not None and self._copy_all.adds
        if pieces is not None and adds and self._copies_with(factors[0], target.dtype):
            addresses = first.data_ptr(), target.data_ptr()
            pieces.append(Piece(*addresses, target.numel(), target.dtype, factors[0], second.data_ptr(), factors[1]))
            return
        torch.mul(first, factors[0], out=target)
        target.add_(second, alpha=factors[1])

    def _factor(self, plan: _Plan) -> float | None:
        """Return the factor of a slice; None for a slice that is copied unchanged."""
        width = _FACTORS.get(plan.purpose.role)
        if width is None or plan.dtype not in _SCALABLE:
            return None
        factor = self.random.uniform(1 - width, 1 + width) * plan.purpose.std
        return -factor if plan.purpose.role in _SIGNED and self.random.random() < 0.5 else factor

    def _pool_for(self, plan: _Plan, count: int, row: int) -> torch.Tensor:
        pool = self._pool_of.get(id(plan))
        if pool is None:
            pool = self._pool_of[id(plan)] = self._pool(plan, count, row)
        return pool

    def _pool(self, plan: _Plan, count: int, row: int) -> torch.Tensor:
        rows = max(8 if row > 1 else 1, min(max(4 * count, _SMALLEST_POOL), _LARGEST_POOL) // row)
        scaled = plan.dtype in _SCALABLE and plan.purpose.role in _FACTORS
        purpose = replace(plan.purpose, std=1.0 if scaled else plan.purpose.std)
        # The pools of cosines and of sines have the same seed, so that they have the same angles.
        is_angle = purpose.role in {Role.COSINE, Role.SINE}
        key = (purpose, plan.dtype, row)
        if key not in self._pools or len(self._pools[key]) < rows * row:
            new_keys = [key]
            if is_angle:
                new_keys = [(replace(purpose, role=role), plan.dtype, row) for role in (Role.COSINE, Role.SINE)]
            seed = self.random.getrandbits(63)
            for new_key in new_keys:
                generator = torch.Generator(self._device).manual_seed(seed)
                self._pools[new_key] = independent_values(new_key[0], rows, row, generator).to(plan.dtype)
        return self._pools[key]

    def _custom(self, workload: Workload) -> dict[str, Value]:
        return self._custom_inputs.draw(workload, self.random.getrandbits(63))

    def _from_file(self, workload: Workload, name: str, specified: SafetensorsInput) -> Value:
        key = (specified.path, specified.tensor_key)
        if key not in self._files:
            self._files[key] = tensor_of_file(self._problem, specified)
        return checked_input(self._problem, name, self._files[key], self._problem.sizes(workload))


def _weights(role: Role, fraction: float) -> tuple[float, float]:
    """Return the weights of two slices in their sum.

    Args:
        role: role of the input.
        fraction: a random number from 0 to 1.
    """
    if role in _SIGNED:
        angle = math.pi / 8 * (1 + 2 * fraction)
        return math.cos(angle), math.sin(angle)  # the sum has the variance of its parts
    share = 0.3 + 0.4 * fraction
    return share, 1 - share


def _put(target: torch.Tensor, value: Value) -> None:
    if isinstance(value, torch.Tensor):
        _bytes(target.view(-1)).copy_(_bytes(value.reshape(-1)))
    else:
        target.fill_(value)


def _copy(source: torch.Tensor, target: torch.Tensor, factor: float | None) -> None:
    if factor is None:
        _bytes(target).copy_(_bytes(source))
    else:
        torch.mul(source, factor, out=target)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return packed four-bit floats as bytes, because torch cannot copy them; other tensors unchanged."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float4_e2m1fn_x2 else tensor


def _slices(count: int, pool: int, row: int, source: random.Random) -> Iterator[tuple[int, int]]:
    """Yield offsets and lengths of the slices of one tensor, each at most half a pool."""
    longest = max(row, pool // 2 // row * row)
    while count > 0:
        length = min(count, longest)
        yield source.randrange((pool - length) // row + 1) * row, length
        count -= length


def _scalar(plan: _Plan, source: random.Random) -> float:
    if plan.dtype.is_floating_point:
        return source.uniform(0.5, 1.5)
    return source.randrange(2) if plan.dtype == torch.bool else source.randrange(1, 9)
