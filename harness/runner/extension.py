"""Language cuda_cpp: a shared object with its own host code, called with tensors (docs/formats.md)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .messages import Load
from .pytorch import Call, SplitCall, bind
from .shared_memory import WorkloadSlots

EXTENSION = "benchmark_kernel"
"""Module name of a torch extension in SOL-ExecBench, which sources may contain."""


def load(message: Load) -> Callable[[WorkloadSlots], Call | SplitCall]:
    """Open the shared object and return a function that prepares a workload, as `pytorch.load` does."""
    program = message.program
    import_function = _tvm_ffi if program.binding == "tvm_ffi" else _torch
    function = import_function(program.artefact, program.entry)
    return bind(function if program.destination_passing else _returning(function), message)


def _torch(path: str, name: str) -> Callable[..., Any]:
    """Return a function of a torch extension.

    Raises:
        ImportError: the shared object is no Python module, or a library that it needs is missing.
        AttributeError: the module has no such function.
    """
    spec = importlib.util.spec_from_file_location(EXTENSION, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise AttributeError(f'no function `{name}`: expected m.def("{name}", ...) in a PYBIND11_MODULE')
    return getattr(module, name)  # type: ignore[no-any-return]


def _tvm_ffi(path: str, name: str) -> Callable[..., Any]:
    """Return a function that a shared object exports to TVM-FFI.

    Tensors are passed without a copy. During a call with a device tensor, TVMFFIEnvGetStream returns torch's current
    stream.

    Raises:
        AttributeError: the shared object exports no such function.
    """
    if not any(
        hasattr(torch.Tensor, attribute) for attribute in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")
    ):
        # With an older torch, the first import would compile a replacement, which takes half a minute.
        os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    import tvm_ffi  # noqa: PLC0415 - may be missing where no solution uses it

    module = tvm_ffi.load_module(path)
    if not module.implements_function(name):
        raise AttributeError(f"no function `{name}`: expected TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ...)")
    function: Callable[..., Any] = module.get_function(name)
    return function


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: as_torch(function(*arguments))


def as_torch(returned: Any) -> Any:  # noqa: ANN401
    """Return a function's result with torch tensors; with an older torch, TVM-FFI returns tensors of its own type."""
    if isinstance(returned, torch.Tensor | str):
        return returned
    if hasattr(returned, "__dlpack__"):
        return torch.utils.dlpack.from_dlpack(returned)
    if isinstance(returned, Mapping):
        return {name: as_torch(value) for name, value in returned.items()}
    return [as_torch(value) for value in returned] if isinstance(returned, Sequence) else returned
