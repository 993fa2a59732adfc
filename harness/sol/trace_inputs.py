"""Inputs for the analysis of a reference: shapes, and only values that can affect shapes or control flow."""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.model.problem import Problem, SafetensorsInput, ScalarInput, Workload
from harness.sol.arguments import Untyped, is_composite
from harness.sol.operators import HIDDEN_BELOW, is_product
from harness.sol.problem_tensors import tensor_of_file, torch_dtype
from harness.sol.tensor_values import DRAWN_FLOATS, AnalysisLimits, TensorValues, max_known_elements

_INVENTED_ELEMENTS = 2**20
"""Tensors of random integers up to this size are replaced by zeros, so that a reference can loop over them; larger ones
have no values."""


class TraceInputs:
    """The inputs of one workload by name, in declaration order, with knowledge about their values."""

    def __init__(self, problem: Problem, workload: Workload, limits: AnalysisLimits) -> None:
        self.problem = problem
        self._workload = workload
        self.limits = limits
        self._sizes = problem.sizes(workload)
        self.invented: set[str] = set()
        """Inputs whose values are placeholders."""
        self.visible_shares: dict[str, float] = {}
        """Float input -> share of its elements that are not hidden from a softmax, if it is known."""
        self.has_random_values = False
        """Some values depend on random numbers."""

    def without_values(self) -> dict[str, Untyped]:
        """Return meta tensors and scalars; integers of files have their values, and small random ones are zeros."""
        inputs: dict[str, Untyped] = {}
        self.invented = set()
        for name, spec in self.problem.definition.inputs.items():
            source = self._workload.inputs.get(name)
            dtype, shape = torch_dtype(spec.dtype), self.problem.shape(spec, self._sizes)
            needs_values = not dtype.is_floating_point and math.prod(shape) <= max_known_elements(dtype)
            if isinstance(source, ScalarInput):
                inputs[name] = source.value
            elif isinstance(source, SafetensorsInput) and needs_values:
                inputs[name] = self._from_file(source)
            elif needs_values and math.prod(shape) <= _INVENTED_ELEMENTS:
                self.limits.take(math.prod(shape) * dtype.itemsize)
                inputs[name] = torch.zeros(shape, dtype=dtype)
                self.invented.add(name)
            else:
                inputs[name] = torch.empty(shape, dtype=dtype, device="meta")
        return inputs

    def with_values(self) -> dict[str, Untyped]:
        """Return tensors with values: floats are 1, and integers are 0, which is valid for every index.

        Raises:
            LimitReachedError: the inputs are too large.
        """
        inputs: dict[str, Untyped] = {}
        self.invented = set()
        for name, spec in self.problem.definition.inputs.items():
            source = self._workload.inputs.get(name)
            if isinstance(source, ScalarInput):
                inputs[name] = source.value
                continue
            dtype, shape = torch_dtype(spec.dtype), self.problem.shape(spec, self._sizes)
            self.limits.take(math.prod(shape) * dtype.itemsize)
            if isinstance(source, SafetensorsInput) and not dtype.is_floating_point:
                inputs[name] = self._from_file(source)
            else:
                inputs[name] = _placeholder(shape, dtype)
            if not isinstance(source, SafetensorsInput):
                self.invented.add(name)
        return inputs

    def custom(self, make: Untyped, seed: int, *, everything: bool = False) -> dict[str, Untyped]:
        """Return the inputs that code of the problem creates: floats without values, small integer tensors with values.

        Args:
            make: entry point of the custom inputs.
            everything: create all tensors with values.

        Raises:
            LimitReachedError: the creation takes too much time or memory.
        """
        scalars = self._workload.scalars
        values = TensorValues(self.limits, known_floats=DRAWN_FLOATS, everything=everything)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _InputCreation(values):
            torch.manual_seed(seed)
            created = make({**self._sizes, **scalars}, torch.device("cpu"))
        self.has_random_values = values.randomness
        inputs = {name: created[name] if name in created else scalars[name] for name in self.problem.definition.inputs}
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        self.invented = {name for name, value in tensors.items() if not value.is_meta and not values.is_known(value)}
        return inputs if everything else {name: self._without_floats(name, value) for name, value in inputs.items()}

    def _without_floats(self, name: str, value: Untyped) -> Untyped:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value.contiguous() if isinstance(value, torch.Tensor) else value
        if not value.is_meta and value.itemsize > 1 and value.numel() > 1:
            self.visible_shares[name] = float((value > HIDDEN_BELOW).float().mean())
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    def _from_file(self, source: SafetensorsInput) -> torch.Tensor:
        tensor = tensor_of_file(self.problem, source)
        self.limits.take(tensor.nbytes)
        return tensor


class _InputCreation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Executes the creation of custom inputs without the values of large float tensors."""

    def __init__(self, values: TensorValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values

    def __torch_dispatch__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        if is_composite(func) and not is_product(func._overloadpacket):  # noqa: SLF001 - as in torch's own counter
            with self:
                return func.decompose(*args, **kwargs)
        return self.values.run(func, args, kwargs)


def _placeholder(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.ones(shape, dtype=dtype)
    if dtype.itemsize == 1 and dtype is not torch.bool:
        return torch.zeros(shape, dtype=torch.uint8).view(dtype)
    return torch.zeros(shape, dtype=dtype)
