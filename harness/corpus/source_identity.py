"""Fingerprint of a module's code: modules with the same code and structure have the same graph.

It avoids the export of modules that other architectures have copied. A wrong match only skips a module; it never
creates a problem.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
from functools import cache

from torch import nn


def code_fingerprint(module: nn.Module, call: str) -> str:
    """Return a hash of the code that a module and its submodules run, without names of classes and sizes.

    Args:
        call: text of the arguments' kinds, as of `CandidateModule.signature`.
    """
    digest = hashlib.sha256(call.encode())
    for path, inner in module.named_modules():
        flags = sorted((name, repr(value)) for name, value in vars(inner).items() if _is_flag(name, value))
        weights = sorted(
            (name, weight is None, weight.dim() if weight is not None else 0)
            for name, weight in inner._parameters.items()  # noqa: SLF001 - also those that are None
        )
        digest.update(f"{path} {_code_of(inner.__class__)} {flags} {weights}\n".encode())
    return digest.hexdigest()


def _is_flag(name: str, value: object) -> bool:
    return name != "training" and not name.startswith("_") and isinstance(value, bool | None)


@cache
def _code_of(module_class: type[nn.Module]) -> str:
    if module_class.__module__.startswith("torch."):
        return module_class.__qualname__
    return _dump(inspect.unwrap(module_class.forward), set())


def _dump(function: types.FunctionType, visited: set[object]) -> str:
    """Return a hash of a function's syntax tree and of the functions of its module that it names."""
    visited.add(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return repr(function)
    (definition,) = tree.body
    if not isinstance(definition, ast.FunctionDef):
        return repr(function)
    body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    parts = [ast.dump(statement) for statement in body]
    names = sorted({node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)})
    for name in names:
        called = function.__globals__.get(name)
        if isinstance(called, types.FunctionType) and called not in visited:
            parts.append(_dump(inspect.unwrap(called), visited))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
