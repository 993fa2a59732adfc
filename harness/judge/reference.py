"""A problem's reference in the judge: trusted code, run on the judge's own tensors."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from harness.errors import FormatError
from harness.judge.out_of_memory import as_out_of_memory, is_out_of_memory, release_frames
from harness.model.problem import Definition, Problem
from harness.sol.problem_tensors import torch_dtype

Value = torch.Tensor | int | float | bool
Outputs = Mapping[str, torch.Tensor]
"""Outputs of one call by name."""


class InvalidReferenceError(FormatError):
    """The problem's own code failed or did not return the declared outputs; the verdict is INVALID_REFERENCE."""


@dataclass(frozen=True)
class Reference:
    """Functions of a definition's `reference`."""

    definition: Definition
    run: Callable[..., Any]
    custom_inputs: Callable[..., Any] | None

    def outputs(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """Return the outputs of `run` for inputs in declaration order, as tensors by name.

        Raises:
            InvalidReferenceError: `run` raised, changed an input that is not declared as updated, or did not return
                the declared outputs.
            torch.OutOfMemoryError: memory is exhausted; the CPU's allocator raises RuntimeError or MemoryError.
        """
        updated = set(self.definition.updates.values())
        arguments = [
            value.clone() if name in updated and isinstance(value, torch.Tensor) else value
            for name, value in zip(self.definition.inputs, inputs, strict=True)
        ]
        before = _versions(inputs)
        try:
            with torch.no_grad():
                returned = self.run(*arguments)
        except Exception as error:
            if is_out_of_memory(error):  # a condition of the machine
                release_frames(error)
                raise as_out_of_memory(error) from None
            raise InvalidReferenceError(
                f"the reference raised {type(error).__name__}: {error}", where=self.definition.name
            ) from error
        for name, version_before, version in zip(self.definition.inputs, before, _versions(inputs), strict=True):
            if version_before != version:
                raise InvalidReferenceError(
                    f"the reference changes its input `{name}` in place; candidates cannot write to inputs",
                    where=self.definition.name,
                    remedy=f'declare it, with `"x_updates": "{name}"` at the output that holds the result '
                    "(docs/formats.md), or let the reference work on a copy and return it",
                )
        return by_name(returned, self.definition, arguments)


def _versions(inputs: Sequence[Value]) -> list[int]:
    """Return torch's count of in-place changes of each input; 0 for scalars."""
    return [value._version if isinstance(value, torch.Tensor) else 0 for value in inputs]  # noqa: SLF001 - as autograd does


def load_reference(problem: Problem) -> Reference:
    """Return the functions of a problem's reference code, imported as a new module.

    Raises:
        InvalidReferenceError: the code cannot be imported, or lacks a required function.
    """
    definition = problem.definition
    filename = f"<reference of {problem.key}>"
    module = ModuleType(f"reference_{problem.digest.rpartition(':')[2][:12]}")
    # inspect.getsource, which decorators and torch.compile's messages use, reads the lines from here.
    lines = definition.reference.splitlines(keepends=True)
    linecache.cache[filename] = len(definition.reference), None, lines, filename
    try:
        exec(compile(definition.reference, filename, "exec"), module.__dict__)  # noqa: S102 - trusted, like the judge
    except Exception as error:
        raise InvalidReferenceError(
            f"the reference cannot be imported: {type(error).__name__}: {error}", where=definition.name
        ) from error
    entrypoint = definition.custom_inputs_entrypoint
    for name in ("run", *([entrypoint] if entrypoint else [])):
        if not callable(module.__dict__.get(name)):
            raise InvalidReferenceError(f"the reference has no top-level function `{name}`", where=definition.name)
    return Reference(definition, module.__dict__["run"], module.__dict__.get(entrypoint) if entrypoint else None)


def by_name(returned: object, definition: Definition, arguments: Sequence[Value]) -> dict[str, torch.Tensor]:
    """Return a reference's outputs by name.

    Args:
        returned: return value of the reference: one value, a sequence, or a mapping. Outputs that are updated inputs
            may be missing.
        definition: declares the outputs.
        arguments: arguments of the call, in order; updated inputs that were not returned are taken from here.

    Raises:
        InvalidReferenceError: an output is missing, or there are more or fewer than declared.
    """
    inputs = dict(zip(definition.inputs, arguments, strict=True))
    updated = {name: _tensor(name, inputs[source], definition) for name, source in definition.updates.items()}
    new_outputs = [name for name in definition.outputs if name not in updated]
    if isinstance(returned, Mapping):
        returned = {**updated, **returned}
    elif updated and len(_listed(returned)) == len(new_outputs):
        returned = {**updated, **dict(zip(new_outputs, _listed(returned), strict=True))}
    names = list(definition.outputs)
    if isinstance(returned, Mapping):
        missing = [name for name in names if name not in returned]
        if missing:
            raise InvalidReferenceError(f"the reference returned no `{missing[0]}`", where=definition.name)
        values = [returned[name] for name in names]
    else:
        values = _listed(returned) if returned is not None else [None]
    if len(values) != len(names):
        raise InvalidReferenceError(
            f"the reference returned {len(values)} values; expected {len(names)} ({', '.join(names)})",
            where=definition.name,
        )
    return {name: _tensor(name, value, definition) for name, value in zip(names, values, strict=True)}


def _listed(returned: object) -> list[object]:
    """Return a sequence's values as a list, one value as a list of one, and None as an empty list."""
    return list(returned) if isinstance(returned, tuple | list) else [] if returned is None else [returned]


def _tensor(name: str, value: object, definition: Definition) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, int | float | bool):
        return torch.tensor(value, dtype=torch_dtype(definition.outputs[name].dtype))
    raise InvalidReferenceError(
        f"the reference returned a {type(value).__name__} for `{name}`; expected a tensor", where=definition.name
    )
