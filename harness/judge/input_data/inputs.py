"""Secret inputs, drawn fresh for every call.

For each distribution a pool of random values is made once an evaluation, from secret seeds. A tensor is then filled
at the speed of a copy: slices of the pool from secret offsets, times a secret factor near 1 of either sign. The factor
makes every value new, so that nobody who has seen the pool can look a result up instead of computing it.
Roles are those of `harness.judge.input_data.roles`.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.judge.batched_copy import CopyAll, Piece
from harness.judge.input_data.random_values import values, whole
from harness.judge.input_data.roles import Purpose, Role, purpose_of
from harness.judge.input_data.safetensors import read_safetensors
from harness.judge.reference import InvalidReferenceError, Reference, Value, load_reference, torch_dtype
from harness.model.problem import CustomInput, Problem, SafetensorsInput, ScalarInput, TensorSpec, Workload

_SMALLEST_POOL, _LARGEST_POOL = 1 << 16, 1 << 22
_FACTORS = {
    Role.NORMAL: 0.1,
    Role.BIAS: 0.1,
    Role.WEIGHT: 0.1,
    Role.AROUND_ONE: 0.03,
    Role.POSITIVE: 0.03,
    Role.NEGATIVE: 0.03,
    Role.DECAY: 0.03,
}
"""Roles whose slices are scaled, and by how much their factor may differ from 1."""
_SIGNED = frozenset({Role.NORMAL, Role.BIAS, Role.WEIGHT})
_AT_ONCE = frozenset({torch.float32, torch.float16, torch.bfloat16})
_SCALABLE = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_WHOLE = frozenset({Role.OFFSETS, Role.DISTINCT})
"""Roles whose values hang together, so that a slice of them is none: drawn anew each time."""


@dataclass(frozen=True)
class _Plan:
    """One random input of a workload."""

    name: str
    purpose: Purpose
    dtype: torch.dtype
    shape: tuple[int, ...]
    scalar: bool


class InputSource:
    """The inputs of one evaluation.

    Several threads may refill sets of a workload once one set of it has been filled, unless its inputs are custom.

    Args:
        problem: whose inputs.
        reference: the problem's reference, loaded; it has the entry point of custom inputs.
        seed: for tests; an evaluation takes the operating system's randomness.
        device: where the tensors that are filled lie; the CPU by default.
        copy_all: how that device copies many pieces at once, where it does.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        reference: Reference | None = None,
        seed: int | None = None,
        device: torch.device | None = None,
        copy_all: CopyAll | None = None,
    ) -> None:
        self._problem = problem
        self._reference = reference
        self._device = device or torch.device("cpu")
        self._copy_all = copy_all
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311
        self._pools: dict[tuple[Purpose, torch.dtype, int], torch.Tensor] = {}
        self._pool_of: dict[int, torch.Tensor] = {}
        """By the identity of a plan, which lives as long as this."""
        self._plans: dict[str, tuple[_Plan, ...]] = {}
        self._files: dict[tuple[str, str], torch.Tensor] = {}

    def draw(self, workload: Workload) -> dict[str, Value]:
        """Fresh inputs of a workload by name, in declaration order: CPU tensors, and Python scalars.

        Raises:
            FormatError: an input cannot be made as the problem says.
        """
        if self.is_custom(workload):
            return self._custom(workload)
        sizes = self._problem.sizes(workload)
        inputs = self._problem.definition.inputs
        tensors = {
            name: torch.empty(self._problem.shape(spec, sizes), dtype=_held_as(spec), device=self._where(spec))
            for name, spec in inputs.items()
        }
        self.refill(workload, tensors)
        return {
            name: tensors[name] if spec.shape is not None else _python(spec, tensors[name])
            for name, spec in inputs.items()
        }

    def refill(self, workload: Workload, into: Mapping[str, torch.Tensor]) -> None:
        """Overwrite contiguous tensors with fresh inputs; a scalar's is 0-d. Random data go at the speed of memory.

        Raises:
            FormatError: an input cannot be made as the problem says.
        """
        if self.is_custom(workload):
            for name, value in self._custom(workload).items():
                _put(into[name], value)
            return
        self._put_given(workload, into)
        slices: dict[str, list[tuple[int, int]]] = {}
        for plan in self._random_inputs(workload):
            self._fill(plan, into[plan.name], slices, None)

    def refill_all(self, workload: Workload, sets: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """`refill` every set, with one launch where the device copies many pieces at once.

        Raises:
            FormatError: an input cannot be made as the problem says.
        """
        if self._copy_all is None or self.is_custom(workload):
            for into in sets:
                self.refill(workload, into)
            return
        pieces: list[Piece] = []
        slices: list[dict[str, list[tuple[int, int]]]] = [{} for _ in sets]
        for into in sets:
            self._put_given(workload, into)
        for plan in self._random_inputs(workload):
            if self._is_one_slice(plan):
                self._fill_all(plan, [into[plan.name].data_ptr() for into in sets], pieces)
                continue
            for into, its in zip(sets, slices, strict=True):
                self._fill(plan, into[plan.name], its, pieces)
        self._flush(pieces)

    @property
    def at_once(self) -> bool:
        """True if `refill_all` is more than `refill` again and again."""
        return self._copy_all is not None

    def _flush(self, pieces: list[Piece] | None) -> None:
        if pieces and self._copy_all is not None:
            self._copy_all(pieces)
            pieces.clear()

    def _put_given(self, workload: Workload, into: Mapping[str, torch.Tensor]) -> None:
        """Inputs that the workload gives itself: scalars, and tensors of files."""
        for name, given in workload.inputs.items():
            if isinstance(given, ScalarInput):
                into[name].fill_(given.value)
            elif isinstance(given, SafetensorsInput):
                _put(into[name], self._from_file(workload, name, given))

    def _is_one_slice(self, plan: _Plan) -> bool:
        """Return true if an input is one slice of its pool times a factor, independent of all other inputs."""
        count, role = math.prod(plan.shape), plan.purpose.role
        if plan.scalar or not count or role not in _FACTORS or plan.dtype not in _AT_ONCE:
            return False
        return count <= len(self._pool_for(plan, count, 1)) // 2

    def _fill_all(self, plan: _Plan, targets: Sequence[int], pieces: list[Piece]) -> None:
        """The same input of many sets. As little is done for each as can be: a batch of 2 ms needs 128."""
        count, purpose = math.prod(plan.shape), plan.purpose
        pool = self._pool_for(plan, count, 1)
        begin, size, offsets = pool.data_ptr(), plan.dtype.itemsize, len(pool) - count + 1
        width, signed = _FACTORS[purpose.role], purpose.role in _SIGNED
        words = struct.unpack(f"={2 * len(targets)}Q", self._random.randbytes(16 * len(targets)))
        for target, where, word in zip(targets, words[::2], words[1::2], strict=True):
            factor = (1 + width * ((word >> 11) * 2.0**-52 - 1)) * purpose.std
            source = begin + where % offsets * size
            pieces.append(Piece(source, target, count, plan.dtype, -factor if signed and word & 1 else factor))

    def is_custom(self, workload: Workload) -> bool:
        """Return true if the problem's own code makes the inputs."""
        return any(isinstance(given, CustomInput) for given in workload.inputs.values())

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
        self,
        plan: _Plan,
        target: torch.Tensor,
        slices: dict[str, list[tuple[int, int]]],
        pieces: list[Piece] | None,
    ) -> None:
        """One random input; its copies are added to `pieces` where these are made all at once."""
        role, count = plan.purpose.role, target.numel()
        if count == 0:
            return
        if plan.scalar:
            target.fill_(_scalar(plan, self._random))
            return
        flat = target.view(-1)
        if role in _WHOLE:
            flat.copy_(whole(plan.purpose, count, self._generator()))
            return
        row = plan.shape[-1] if plan.shape and role is Role.PROBABILITY else 1
        pool = self._pool_for(plan, count, row)
        pair = plan.name.lower().replace("cos", "sin") if role in {Role.COSINE, Role.SINE} else plan.name
        if pair not in slices:
            slices[pair] = list(_slices(count, len(pool), row, self._random))
        begin = 0
        for offset, length in slices[pair]:
            factor = self._factor(plan)
            if pieces is not None and (factor is None or plan.dtype in _AT_ONCE):
                size = plan.dtype.itemsize
                source, to = pool.data_ptr() + offset * size, flat.data_ptr() + begin * size
                pieces.append(Piece(source, to, length, plan.dtype, factor))
            else:
                _copy(pool[offset : offset + length], flat[begin : begin + length], factor)
            begin += length
        if role in {Role.MASK, Role.ADDITIVE_MASK} and plan.shape:
            self._flush(pieces)
            target.view(-1, plan.shape[-1])[:, 0] = 0 if role is Role.ADDITIVE_MASK else 1

    def _factor(self, plan: _Plan) -> float | None:
        """Factor of a slice; None for what is copied as it is."""
        width = _FACTORS.get(plan.purpose.role)
        if width is None or plan.dtype not in _SCALABLE:
            return None
        factor = self._random.uniform(1 - width, 1 + width) * plan.purpose.std
        return -factor if plan.purpose.role in _SIGNED and self._random.random() < 0.5 else factor

    def _pool_for(self, plan: _Plan, count: int, row: int) -> torch.Tensor:
        pool = self._pool_of.get(id(plan))
        if pool is None:
            pool = self._pool_of[id(plan)] = self._pool(plan, count, row)
        return pool

    def _pool(self, plan: _Plan, count: int, row: int) -> torch.Tensor:
        rows = max(8 if row > 1 else 1, min(max(4 * count, _SMALLEST_POOL), _LARGEST_POOL) // row)
        scaled = plan.dtype in _SCALABLE and plan.purpose.role in _FACTORS
        purpose = Purpose(plan.purpose.role, plan.purpose.low, plan.purpose.high, 1.0 if scaled else plan.purpose.std)
        # The cosine's pool and the sine's are made from one seed: the same angles.
        angles = purpose.role in {Role.COSINE, Role.SINE}
        key = (purpose, plan.dtype, row)
        if key not in self._pools or len(self._pools[key]) < rows * row:
            made = [key]
            if angles:
                made = [(Purpose(role, *_rest(purpose)), plan.dtype, row) for role in (Role.COSINE, Role.SINE)]
            seed = self._random.getrandbits(63)
            for each in made:
                generator = torch.Generator(self._device).manual_seed(seed)
                self._pools[each] = values(each[0], rows, row, generator).to(plan.dtype)
        return self._pools[key]

    def _generator(self) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(self._random.getrandbits(63))

    def _where(self, spec: TensorSpec) -> torch.device:
        """A Python scalar stays on the host."""
        return self._device if spec.shape is not None else torch.device("cpu")

    def _custom(self, workload: Workload) -> dict[str, Value]:
        definition = self._problem.definition
        self._reference = self._reference or load_reference(self._problem)
        if self._reference.custom_inputs is None:
            raise InvalidReferenceError(
                "an input is `custom`, but there is no `custom_inputs_entrypoint`", where=definition.name
            )
        sizes = self._problem.sizes(workload)
        scalars = {name: given.value for name, given in workload.inputs.items() if isinstance(given, ScalarInput)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._random.getrandbits(63))
            try:
                made = self._reference.custom_inputs({**sizes, **scalars}, self._device)
            except Exception as error:
                raise InvalidReferenceError(
                    f"`{definition.custom_inputs_entrypoint}` raised {type(error).__name__}: {error}",
                    where=definition.name,
                ) from error
        if not isinstance(made, dict) or set(made) != set(definition.inputs):
            raise InvalidReferenceError(
                f"`{definition.custom_inputs_entrypoint}` must return a dict with exactly the inputs "
                f"{', '.join(definition.inputs)}",
                where=definition.name,
            )
        return {name: self._checked(name, made[name], sizes) for name in definition.inputs}

    def _checked(self, name: str, value: object, sizes: dict[str, int]) -> Value:
        """A tensor as the definition declares it, contiguous.

        Raises:
            InvalidReferenceError: it is of another kind, dtype or shape.
        """
        spec = self._problem.definition.inputs[name]
        if spec.shape is None:
            if isinstance(value, int | float | bool):
                return value
            raise InvalidReferenceError(f"input `{name}` is a {type(value).__name__}; expected a Python scalar")
        shape, dtype = self._problem.shape(spec, sizes), torch_dtype(spec.dtype)
        if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape or value.dtype != dtype:
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidReferenceError(f"input `{name}` is {found}; expected {dtype} {shape}")
        return value.contiguous()

    def _from_file(self, workload: Workload, name: str, given: SafetensorsInput) -> Value:
        key = (given.path, given.tensor_key)
        if key not in self._files:
            roots = [root for root in (self._problem.directory, self._problem.data_root) if root is not None]
            self._files[key] = read_safetensors(given.path, given.tensor_key, roots)
        return self._checked(name, self._files[key], self._problem.sizes(workload))


def _held_as(spec: TensorSpec) -> torch.dtype:
    """A tensor's own dtype; a Python scalar has 64 bits whatever the definition calls it."""
    dtype = torch_dtype(spec.dtype)
    if spec.shape is not None:
        return dtype
    return torch.float64 if dtype.is_floating_point else torch.int64


def _python(spec: TensorSpec, held: torch.Tensor) -> Value:
    return bool(held.item()) if spec.dtype == "bool" else held.item()


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
    """The same memory as a dtype that copies: torch has no copy for packed four-bit floats."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float4_e2m1fn_x2 else tensor


def _rest(purpose: Purpose) -> tuple[float, float, float]:
    return purpose.low, purpose.high, purpose.std


def _slices(count: int, pool: int, row: int, source: random.Random) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of the slices that make up one tensor, at most half a pool each."""
    longest = max(row, pool // 2 // row * row)
    while count > 0:
        length = min(count, longest)
        yield source.randrange((pool - length) // row + 1) * row, length
        count -= length


def _scalar(plan: _Plan, source: random.Random) -> float:
    if plan.dtype.is_floating_point:
        return source.uniform(0.5, 1.5)
    return source.randrange(2) if plan.dtype == torch.bool else source.randrange(1, 9)
