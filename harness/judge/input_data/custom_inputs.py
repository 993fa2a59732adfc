"""Inputs that a problem's own code creates, and the comparison of an input with its definition."""

from __future__ import annotations

import torch

from harness.judge.reference import InvalidReferenceError, Reference, Value, load_reference
from harness.model.problem import Problem, Workload
from harness.sol.problem_tensors import torch_dtype


class CustomInputs:
    """Calls the entry point of custom inputs of a problem.

    Args:
        problem: the problem.
        reference: the problem's loaded reference, with the entry point; None loads it at the first call.
        device: device of the tensors.
    """

    def __init__(self, problem: Problem, reference: Reference | None, device: torch.device) -> None:
        self._problem, self._reference, self._device = problem, reference, device

    def draw(self, workload: Workload, seed: int) -> dict[str, Value]:
        """Return new inputs by name, in declaration order.

        Args:
            workload: workload of the inputs.
            seed: of torch's random numbers during the call.

        Raises:
            InvalidReferenceError: there is no entry point, it raises, or it returns other inputs than defined.
        """
        definition = self._problem.definition
        self._reference = self._reference or load_reference(self._problem)
        if self._reference.custom_inputs is None:
            raise InvalidReferenceError(
                "an input is `custom`, but there is no `custom_inputs_entrypoint`", where=definition.name
            )
        sizes = self._problem.sizes(workload)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                inputs = self._reference.custom_inputs({**sizes, **workload.scalars}, self._device)
            except Exception as error:
                raise InvalidReferenceError(
                    f"`{definition.custom_inputs_entrypoint}` raised {type(error).__name__}: {error}",
                    where=definition.name,
                ) from error
        if not isinstance(inputs, dict) or set(inputs) != set(definition.inputs):
            raise InvalidReferenceError(
                f"`{definition.custom_inputs_entrypoint}` must return a dict with exactly the inputs "
                f"{', '.join(definition.inputs)}",
                where=definition.name,
            )
        return {name: checked_input(self._problem, name, inputs[name], sizes) for name in definition.inputs}


def checked_input(problem: Problem, name: str, value: object, sizes: dict[str, int]) -> Value:
    """Return a scalar, or a contiguous tensor, after a comparison with the definition.

    Args:
        problem: the problem.
        name: of the input.
        value: the input.
        sizes: of the workload's axes.

    Raises:
        InvalidReferenceError: the value has another type, dtype or shape.
    """
    spec = problem.definition.inputs[name]
    if spec.shape is None:
        if isinstance(value, int | float | bool):
            return value
        raise InvalidReferenceError(f"input `{name}` is a {type(value).__name__}; expected a Python scalar")
    shape, dtype = problem.shape(spec, sizes), torch_dtype(spec.dtype)
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape or value.dtype != dtype:
        actual = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidReferenceError(f"input `{name}` is {actual}; expected {dtype} {shape}")
    return value.contiguous()
