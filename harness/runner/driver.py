"""Kernels by the CUDA driver: modules, launches with their attributes, and TMA descriptors.

NVIDIA's `cuda.bindings` makes the calls; CuPy has no launch attributes and no tensor maps. Works on the context that is
current (torch's primary one) and imports nothing of the harness.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuda.bindings import driver as cuda

_PORTABLE_CLUSTER = 8
_ATTRIBUTE = cuda.CUfunction_attribute
FUNCTION_FACTS = {
    "static_shared_bytes": _ATTRIBUTE.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    "local_bytes": _ATTRIBUTE.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
    "registers": _ATTRIBUTE.CU_FUNC_ATTRIBUTE_NUM_REGS,
}
"""Resources of a compiled kernel."""
_MAP_TYPES = {
    "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "i32": "INT32", "u64": "UINT64", "i64": "INT64",
    "f16": "FLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "bf16": "BFLOAT16", "tf32": "TFLOAT32",
    "fp4": "16U4_ALIGN8B", "fp4_padded": "16U4_ALIGN16B", "fp6_padded": "16U6_ALIGN16B",
}  # fmt: skip
"""Element type -> the driver's name of it. CUDA before 12.8 lacks the last three."""
_FILL = {
    "zero": cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    "nan": cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
}


class CudaError(RuntimeError):
    """A driver call failed; the message names the call and the driver's own word for it."""


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:  # noqa: ANN401 - of any driver call
    """Make one driver call; its result, if it has one.

    Raises:
        CudaError: it failed.
    """
    code, *results = function(*arguments)
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{function.__name__}: {code.name}")
    return results[0] if results else None


def load(cubin: bytes) -> cuda.CUmodule:
    """A module from a cubin."""
    return call(cuda.cuModuleLoadData, cubin)


def kernel(module: cuda.CUmodule, symbol: str) -> cuda.CUfunction:
    """A kernel of a module."""
    return call(cuda.cuModuleGetFunction, module, symbol.encode())


def facts(function: cuda.CUfunction) -> dict[str, int]:
    """Hardware resources that the kernel uses."""
    return {name: call(cuda.cuFuncGetAttribute, attribute, function) for name, attribute in FUNCTION_FACTS.items()}


def tensor_map(spec: Mapping[str, Any], address: int) -> cuda.CUtensorMap:
    """An encoded TMA descriptor. Source: CUDA Driver API, `cuTensorMapEncodeTiled`."""
    words64, words32 = cuda.cuuint64_t, cuda.cuuint32_t
    return call(
        cuda.cuTensorMapEncodeTiled,
        map_type(spec["dtype"]),
        len(spec["dims"]),
        address,
        [words64(extent) for extent in spec["dims"]],
        [words64(stride) for stride in spec["strides"]],
        [words32(extent) for extent in spec["box"]],
        [words32(stride) for stride in spec["element_strides"]],
        getattr(cuda.CUtensorMapInterleave, f"CU_TENSOR_MAP_INTERLEAVE_{spec['interleave'].upper()}"),
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spec['swizzle'].upper()}"),
        getattr(cuda.CUtensorMapL2promotion, _promotion(spec["l2_promotion"])),
        _FILL[spec["fill"]],
    )


def map_type(dtype: str) -> cuda.CUtensorMapDataType:
    """The driver's element type of a TMA descriptor.

    Raises:
        CudaError: the installed `cuda.bindings` are too old for it.
    """
    name = f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[dtype]}"
    found: cuda.CUtensorMapDataType | None = getattr(cuda.CUtensorMapDataType, name, None)
    if found is None:
        raise CudaError(f"cuda.bindings has no {name}: tensor maps of {dtype} need CUDA 12.8")
    return found


def _promotion(size: str) -> str:
    return "CU_TENSOR_MAP_L2_PROMOTION_" + ("NONE" if size == "none" else f"L2_{size}")


class PreparedLaunch:
    """One launch with its arguments laid out; `run` only makes the driver call.

    Args:
        function: the kernel.
        spec: `ResolvedLaunch` as plain data.
        addresses: device address of every buffer the arguments name.
    """

    def __init__(self, function: cuda.CUfunction, spec: Mapping[str, Any], addresses: Mapping[str, int]) -> None:
        self._function = function
        self._values = [_argument(argument, addresses) for argument in spec["args"]]
        self._pointers = (ctypes.c_void_p * max(len(self._values), 1))(*(_address(value) for value in self._values))
        if spec["shared_bytes"]:
            most = _ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(cuda.cuFuncSetAttribute, function, most, spec["shared_bytes"])
        if spec["cluster"] and spec["cluster"][0] * spec["cluster"][1] * spec["cluster"][2] > _PORTABLE_CLUSTER:
            allowed = _ATTRIBUTE.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            call(cuda.cuFuncSetAttribute, function, allowed, 1)
        self._configuration = _configuration(spec)
        self._arguments = (self._configuration, function, ctypes.addressof(self._pointers), 0)

    def run(self) -> None:
        """Launch on the default stream."""
        (code,) = cuda.cuLaunchKernelEx(*self._arguments)
        if code != cuda.CUresult.CUDA_SUCCESS:
            raise CudaError(f"cuLaunchKernelEx: {code.name}")


def _configuration(spec: Mapping[str, Any]) -> cuda.CUlaunchConfig:
    found = cuda.CUlaunchConfig()
    found.gridDimX, found.gridDimY, found.gridDimZ = spec["grid"]
    found.blockDimX, found.blockDimY, found.blockDimZ = spec["block"]
    found.sharedMemBytes, found.hStream = spec["shared_bytes"], 0
    found.attrs = _attributes(spec)
    found.numAttrs = len(found.attrs)
    return found


def _attributes(spec: Mapping[str, Any]) -> Sequence[cuda.CUlaunchAttribute]:
    found = []
    if spec["cluster"]:
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = cluster.value.clusterDim
        extents.x, extents.y, extents.z = spec["cluster"]
        found.append(cluster)
    if spec["cooperative"]:
        cooperative = cuda.CUlaunchAttribute()
        cooperative.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        found.append(cooperative)
    return found


_SCALARS = {
    "i": ctypes.c_int32, "I": ctypes.c_uint32, "q": ctypes.c_int64, "Q": ctypes.c_uint64, "f": ctypes.c_float,
    "d": ctypes.c_double, "h": ctypes.c_int16, "H": ctypes.c_uint16, "b": ctypes.c_int8, "B": ctypes.c_uint8,
    "?": ctypes.c_bool,
}  # fmt: skip


def _argument(spec: Mapping[str, Any], addresses: Mapping[str, int]) -> Any:  # noqa: ANN401 - a ctypes value or a map
    match spec["kind"]:
        case "pointer":
            return ctypes.c_uint64(addresses[spec["buffer"]] + spec["offset"])
        case "value":
            kind = _SCALARS[spec["format"]]
            return kind(spec["value"] if spec["format"] in "fd" else int(spec["value"]))
        case _:
            return tensor_map(spec, addresses[spec["buffer"]] + spec["offset"])


def _address(value: Any) -> int:  # noqa: ANN401 - a ctypes value or a map
    return int(value.getPtr()) if isinstance(value, cuda.CUtensorMap) else ctypes.addressof(value)
