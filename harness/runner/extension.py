"""Language cuda_cpp: a shared object with host code of its own, called with tensors (docs/formats.md)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .arena import Sets
from .pytorch import Call, Halves, bound

EXTENSION = "benchmark_kernel"
"""Name of a torch extension's module in SOL-ExecBench; sources may contain it."""


def load(message: dict[str, Any]) -> Callable[[Sets], Call | Halves]:
    """Open the artefact; the answer prepares a workload and gives the call on one slot (in halves, if `timed`)."""
    opened = _tvm_ffi if message["binding"] == "tvm_ffi" else _torch
    function = opened(message["artefact"], message["entry"])
    return bound(function if message["destination_passing"] else _returning(function), message)


def _torch(path: str, name: str) -> Callable[..., Any]:
    """A function of a torch extension.

    Raises:
        ImportError: the shared object is no such module, or needs a library that is not here.
        AttributeError: it has no such function.
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
    """A function that a shared object exports to TVM-FFI.

    Tensors are handed over without a copy. TVM-FFI makes torch's current stream its own for as long as a call with a
    tensor of the device lasts, which is what TVMFFIEnvGetStream answers.

    Raises:
        AttributeError: it exports no such function.
    """
    if not any(hasattr(torch.Tensor, known) for known in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")):
        # An older torch: what would stand in for it is compiled at the first import, which takes half a minute.
        os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    import tvm_ffi  # noqa: PLC0415 - need not be there for other languages

    module = tvm_ffi.load_module(path)
    if not module.implements_function(name):
        raise AttributeError(f"no function `{name}`: expected TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ...)")
    function: Callable[..., Any] = module.get_function(name)
    return function


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:  # noqa: ANN401 - tensors and scalars in, whatever it returns out
        return as_torch(function(*arguments))

    return call


def as_torch(returned: Any) -> Any:  # noqa: ANN401
    """A function's returned value with its tensors as torch's: with an older torch, TVM-FFI gives its own."""
    if isinstance(returned, torch.Tensor | str):
        return returned
    if hasattr(returned, "__dlpack__"):
        return torch.utils.dlpack.from_dlpack(returned)
    if isinstance(returned, Mapping):
        return {name: as_torch(each) for name, each in returned.items()}
    return [as_torch(each) for each in returned] if isinstance(returned, Sequence) else returned
