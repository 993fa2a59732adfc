"""CUDA driver API: modules, kernel launches with their attributes, and TMA descriptors.

NVIDIA's `cuda.bindings` makes the calls; CuPy has no launch attributes and no tensor maps. The functions use the
current context (torch's primary context). This module imports nothing of the harness.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuda.bindings import driver as cuda

_PORTABLE_CLUSTER = 8
_ATTRIBUTE = cuda.CUfunction_attribute
_MAP_TYPES = {
    "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "i32": "INT32", "u64": "UINT64", "i64": "INT64",
    "f16": "FLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "bf16": "BFLOAT16", "tf32": "TFLOAT32",
    "fp4": "16U4_ALIGN8B", "fp4_padded": "16U4_ALIGN16B", "fp6_padded": "16U6_ALIGN16B",
}  # fmt: skip
"""Element type -> the driver's name for it. CUDA before 12.8 does not have the last three."""
_FILL = {
    "zero": cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    "nan": cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
}
_WORKSPACE_POISON = 0xA5A5A5A5
"""Each word of a workspace without an initial value when a call begins, so that nothing of an earlier call remains."""


class CudaError(RuntimeError):
    """A driver call failed; the message names the call and the driver's error code."""


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:  # noqa: ANN401 - of any driver call
    """Make a driver call and return its result, or None if it has no result.

    Args:
        function: function of `cuda.bindings.driver`.
        arguments: its arguments.

    Raises:
        CudaError: the call failed.
    """
    code, *results = function(*arguments)
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{function.__name__}: {code.name}")
    return results[0] if results else None


def load(cubin: bytes) -> cuda.CUmodule:
    """Load a cubin as a module."""
    return call(cuda.cuModuleLoadData, cubin)


def kernel(module: cuda.CUmodule, symbol: str) -> cuda.CUfunction:
    """Return a kernel of a module.

    Args:
        module: a loaded module.
        symbol: mangled name of the kernel.
    """
    return call(cuda.cuModuleGetFunction, module, symbol.encode())


def tensor_map(spec: Mapping[str, Any], address: int) -> cuda.CUtensorMap:
    """Return an encoded TMA descriptor.

    Source: CUDA Driver API, `cuTensorMapEncodeTiled`.

    Args:
        spec: the tensor map of a plan, as plain data.
        address: device address of the tensor.
    """
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
    """Return the driver's element type for a TMA descriptor.

    Raises:
        CudaError: the installed `cuda.bindings` are too old for this type.
    """
    name = f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[dtype]}"
    element_type: cuda.CUtensorMapDataType | None = getattr(cuda.CUtensorMapDataType, name, None)
    if element_type is None:
        raise CudaError(f"cuda.bindings has no {name}: tensor maps of {dtype} need CUDA 12.8")
    return element_type


def _promotion(size: str) -> str:
    return "CU_TENSOR_MAP_L2_PROMOTION_" + ("NONE" if size == "none" else f"L2_{size}")


def fill_word(init: float | str) -> int:
    """Return the word of an initial value: an integer's byte four times, a float32's bits, or the poison for "none"."""
    if init == "none":
        return _WORKSPACE_POISON
    if isinstance(init, int):
        return init * 0x01010101
    return ctypes.c_uint32.from_buffer(ctypes.c_float(float(init))).value


class PreparedLaunch:
    """A kernel launch with its arguments in memory; `run` only makes the driver call.

    Args:
        function: the kernel.
        spec: `ResolvedLaunch` as plain data.
        addresses: device address of each buffer that the arguments name.
    """

    def __init__(self, function: cuda.CUfunction, spec: Mapping[str, Any], addresses: Mapping[str, int]) -> None:
        self._function = function
        self._values = [_argument(argument, addresses) for argument in spec["args"]]
        self._pointers = (ctypes.c_void_p * max(len(self._values), 1))(*(_address(value) for value in self._values))
        if spec["shared_bytes"]:
            shared_bytes_limit = _ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(cuda.cuFuncSetAttribute, function, shared_bytes_limit, spec["shared_bytes"])
        if spec["cluster"] and spec["cluster"][0] * spec["cluster"][1] * spec["cluster"][2] > _PORTABLE_CLUSTER:
            non_portable_allowed = _ATTRIBUTE.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            call(cuda.cuFuncSetAttribute, function, non_portable_allowed, 1)
        self._configuration = _configuration(spec)
        self._arguments = (self._configuration, function, ctypes.addressof(self._pointers), 0)

    def run(self) -> None:
        """Launch the kernel on the default stream.

        Raises:
            CudaError: the launch failed.
        """
        (code,) = cuda.cuLaunchKernelEx(*self._arguments)
        if code != cuda.CUresult.CUDA_SUCCESS:
            raise CudaError(f"cuLaunchKernelEx: {code.name}")


def _configuration(spec: Mapping[str, Any]) -> cuda.CUlaunchConfig:
    configuration = cuda.CUlaunchConfig()
    configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = spec["grid"]
    configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = spec["block"]
    configuration.sharedMemBytes, configuration.hStream = spec["shared_bytes"], 0
    configuration.attrs = _attributes(spec)
    configuration.numAttrs = len(configuration.attrs)
    return configuration


def _attributes(spec: Mapping[str, Any]) -> Sequence[cuda.CUlaunchAttribute]:
    attributes = []
    if spec["cluster"]:
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = cluster.value.clusterDim
        extents.x, extents.y, extents.z = spec["cluster"]
        attributes.append(cluster)
    if spec["cooperative"]:
        cooperative = cuda.CUlaunchAttribute()
        cooperative.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        attributes.append(cooperative)
    return attributes


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
