"""The problem's reference in the judge: trusted code, run on the judge's own tensors."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from harness.errors import FormatError
from harness.model.problem import Definition, Problem

Value = torch.Tensor | int | float | bool


class InvalidReferenceError(FormatError):
    """The problem's own code failed, or did not return what the definition declares: INVALID_REFERENCE."""


@dataclass(frozen=True)
class Reference:
    """The functions of a definition's `reference`."""

    definition: Definition
    run: Callable[..., Any]
    custom_inputs: Callable[..., Any] | None

    def outputs(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """Outputs of `run` for inputs in declaration order, as tensors by name.

        Raises:
            InvalidReferenceError: it raised, changed an input that no output declares, or returned something else than
                the declared outputs.
        """
        updated = set(self.definition.updates.values())
        given = [
            value.clone() if name in updated and isinstance(value, torch.Tensor) else value
            for name, value in zip(self.definition.inputs, inputs, strict=True)
        ]
        before = _versions(inputs)
        try:
            with torch.no_grad():
                returned = self.run(*given)
        except Exception as error:
            raise InvalidReferenceError(
                f"the reference raised {type(error).__name__}: {error}", where=self.definition.name
            ) from error
        for name, was, now in zip(self.definition.inputs, before, _versions(inputs), strict=True):
            if was != now:
                raise InvalidReferenceError(
                    f"the reference changes its input `{name}` in place; candidates cannot write to inputs",
                    where=self.definition.name,
                    remedy=f'declare it, with `"x_updates": "{name}"` at the output that holds the result '
                    "(docs/formats.md), or let the reference work on a copy and return it",
                )
        return by_name(returned, self.definition, given)


def _versions(inputs: Sequence[Value]) -> list[int]:
    """Number of in-place changes of each input, as torch counts them; 0 for scalars."""
    return [value._version if isinstance(value, torch.Tensor) else 0 for value in inputs]  # noqa: SLF001 - as autograd does


def load_reference(problem: Problem) -> Reference:
    """Import a problem's reference code as a module of its own.

    Raises:
        InvalidReferenceError: it cannot be imported, or lacks a function it must have.
    """
    definition = problem.definition
    filename = f"<reference of {problem.key}>"
    module = ModuleType(f"reference_{problem.digest.rpartition(':')[2][:12]}")
    # inspect.getsource, which decorators and torch.compile's messages use, reads the lines from here.
    linecache.cache[filename] = (
        len(definition.reference),
        None,
        definition.reference.splitlines(keepends=True),
        filename,
    )
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


def by_name(returned: object, definition: Definition, given: Sequence[Value]) -> dict[str, torch.Tensor]:
    """Outputs by name, from the one value, the sequence or the mapping that a reference may return.

    Args:
        returned: what the reference returned. It may leave out the outputs that are updated inputs.
        definition: declares the outputs.
        given: what the reference was called with, in order: an updated input that was not returned is taken from here.

    Raises:
        InvalidReferenceError: an output is missing, or there are more or fewer than declared.
    """
    inputs = dict(zip(definition.inputs, given, strict=True))
    updated = {name: _tensor(name, inputs[source], definition) for name, source in definition.updates.items()}
    others = [name for name in definition.outputs if name not in updated]
    if isinstance(returned, Mapping):
        returned = {**updated, **returned}
    elif updated and len(_listed(returned)) == len(others):
        returned = {**updated, **dict(zip(others, _listed(returned), strict=True))}
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
    """The one value, or the values of a sequence; none of None."""
    return list(returned) if isinstance(returned, tuple | list) else [] if returned is None else [returned]


def _tensor(name: str, value: object, definition: Definition) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, int | float | bool):
        return torch.tensor(value, dtype=torch_dtype(definition.outputs[name].dtype))
    raise InvalidReferenceError(
        f"the reference returned a {type(value).__name__} for `{name}`; expected a tensor", where=definition.name
    )


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of a definition's dtype, which has torch's own name."""
    return getattr(torch, name)  # type: ignore[no-any-return]
