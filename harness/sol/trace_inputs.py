"""Inputs for the analysis of a reference: shapes, and values only where they can decide shapes."""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.formats.tensors import find_tensor_file, read_tensor
from harness.model.problem import CustomInput, Problem, SafetensorsInput, ScalarInput, Workload
from harness.sol.arguments import Untyped, is_composite
from harness.sol.operators import is_product
from harness.sol.tensor_values import DRAWN_FLOATS, AnalysisLimits, TensorValues, most_known

_INVENTED_ELEMENTS = 2**20
"""Random integers up to this size are taken for zeros, so that a reference can loop over them; larger ones have no
values."""


class TraceInputs:
    """The inputs of one workload by name, in declaration order, and what is known of them.

    Args:
        problem: whose inputs.
        workload: one of its workloads.
        limits: what making them may use.
    """

    def __init__(self, problem: Problem, workload: Workload, limits: AnalysisLimits) -> None:
        self._problem = problem
        self._workload = workload
        self._roots = [root for root in (problem.directory, problem.data_root) if root is not None]
        self._limits = limits
        self._sizes = problem.sizes(workload)
        self.invented: frozenset[str] = frozenset()
        """Integers whose values are made up."""
        self.hidden: dict[str, float] = {}
        """Float input -> share of its elements that a softmax does not see as zeros, where that is known."""
        self.has_random_values = False
        """Random numbers decided some of the values."""

    @property
    def is_custom(self) -> bool:
        """True if the problem's own code makes the inputs."""
        return any(isinstance(source, CustomInput) for source in self._workload.inputs.values())

    def without_values(self) -> dict[str, Untyped]:
        """Return meta tensors and scalars; integers of files keep their values, small random ones are zeros."""
        made: dict[str, Untyped] = {}
        invented = set()
        for name, spec in self._problem.definition.inputs.items():
            source = self._workload.inputs.get(name)
            dtype, shape = _torch_dtype(spec.dtype), self._problem.shape(spec, self._sizes)
            decides = not dtype.is_floating_point and math.prod(shape) <= most_known(dtype)
            if isinstance(source, ScalarInput):
                made[name] = source.value
            elif isinstance(source, SafetensorsInput) and decides:
                made[name] = self._from_file(source)
            elif decides and math.prod(shape) <= _INVENTED_ELEMENTS:
                self._limits.take(math.prod(shape) * dtype.itemsize)
                made[name] = torch.zeros(shape, dtype=dtype)
                invented.add(name)
            else:
                made[name] = torch.empty(shape, dtype=dtype, device="meta")
        self.invented = frozenset(invented)
        return made

    def with_values(self) -> dict[str, Untyped]:
        """Return tensors with values: floats of one, integers of zero, which are in every range.

        Raises:
            LimitReachedError: they are too large.
        """
        made: dict[str, Untyped] = {}
        for name, spec in self._problem.definition.inputs.items():
            source = self._workload.inputs.get(name)
            if isinstance(source, ScalarInput):
                made[name] = source.value
                continue
            dtype, shape = _torch_dtype(spec.dtype), self._problem.shape(spec, self._sizes)
            self._limits.take(math.prod(shape) * dtype.itemsize)
            known = isinstance(source, SafetensorsInput) and not dtype.is_floating_point
            made[name] = self._from_file(source) if known else _ones(shape, dtype)  # type: ignore[arg-type]
        self.invented = frozenset(
            name
            for name, value in made.items()
            if isinstance(value, torch.Tensor) and not isinstance(self._workload.inputs.get(name), SafetensorsInput)
        )
        return made

    def custom(self, make: Untyped, seed: int, *, everything: bool = False) -> dict[str, Untyped]:
        """Return what the problem's own code makes: floats without values, integers with theirs where these are few.

        Args:
            make: the custom inputs' entry point.
            seed: of the random numbers.
            everything: make all of them with values.

        Raises:
            LimitReachedError: making them takes too long or too much memory.
        """
        given = self._workload.inputs
        scalars = {name: source.value for name, source in given.items() if isinstance(source, ScalarInput)}
        values = TensorValues(self._limits, known_floats=DRAWN_FLOATS, everything=everything)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _Making(values):
            torch.manual_seed(seed)
            made = make({**self._sizes, **scalars}, torch.device("cpu"))
        self.has_random_values = values.randomness
        inputs = {name: made[name] if name in made else scalars[name] for name in self._problem.definition.inputs}
        self.invented = frozenset(
            name
            for name, value in inputs.items()
            if isinstance(value, torch.Tensor) and not value.is_meta and not values.is_known(value)
        )
        return inputs if everything else {name: self._without_floats(name, value) for name, value in inputs.items()}

    def _without_floats(self, name: str, value: Untyped) -> Untyped:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value.contiguous() if isinstance(value, torch.Tensor) else value
        if not value.is_meta and value.itemsize > 1 and value.numel() > 1:
            self.hidden[name] = float((value > HIDDEN_BELOW).float().mean())
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    def _from_file(self, source: SafetensorsInput) -> torch.Tensor:
        """One tensor of a file; only its own bytes are read."""
        data, dtype, shape = read_tensor(find_tensor_file(source.path, self._roots), source.tensor_key)
        self._limits.take(len(data))
        if not data:
            return torch.zeros(shape, dtype=_torch_dtype(dtype))
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(_torch_dtype(dtype)).view(shape)


HIDDEN_BELOW = -1e4
"""Values of a mask at or below this one hide what they are added to: softmax makes zeros of them."""


class _Making(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes custom inputs without the values of large floats."""

    def __init__(self, values: TensorValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values

    def __torch_dispatch__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        if is_composite(func) and not is_product(func._overloadpacket):  # noqa: SLF001 - as torch's own counter does
            with self:
                return func.decompose(*args, **kwargs)
        return self.values.run(func, args, kwargs)


def _torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of a definition's dtype, which has torch's own name."""
    return getattr(torch, name)  # type: ignore[no-any-return]


def _ones(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.ones(shape, dtype=dtype)
    if dtype.itemsize == 1 and dtype is not torch.bool:
        return torch.zeros(shape, dtype=torch.uint8).view(dtype)
    return torch.zeros(shape, dtype=dtype)
