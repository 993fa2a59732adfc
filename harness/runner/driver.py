"""The CUDA driver calls that a launch plan needs and CuPy does not wrap: attributes of a launch, and TMA descriptors.

Works on the context that is current (CuPy's or torch's primary one) and imports nothing of the harness. Source of every
constant and layout: cuda.h of CUDA 12.8 and 13.0, where they agree.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

_COOPERATIVE, _CLUSTER_DIMENSION = 2, 4
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_PORTABLE_CLUSTER = 8
FUNCTION_FACTS = {"static_shared_bytes": 1, "local_bytes": 3, "registers": 4}
"""Resources of a compiled kernel: name -> CUfunction_attribute."""
_DTYPES = {
    "u8": 0, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip
_INTERLEAVE = {"none": 0, "16B": 1, "32B": 2}
_SWIZZLE = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
_L2_PROMOTION = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
_FILL = {"zero": 0, "nan": 1}


class CudaError(RuntimeError):
    """A driver call failed; the message names the call and the driver's own word for it."""


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _AttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("cooperative", ctypes.c_int), ("cluster", _Dim3))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class _Configuration(ctypes.Structure):
    _fields_ = (
        ("grid", _Dim3),
        ("block", _Dim3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Driver:
    """libcuda, with every call checked."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes arguments
        """Make one driver call.

        Raises:
            CudaError: it failed.
        """
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or str(code).encode()).decode()}")

    def load(self, cubin: bytes) -> ctypes.c_void_p:
        """A module from a cubin."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    def function(self, module: ctypes.c_void_p, symbol: str) -> ctypes.c_void_p:
        """A kernel of a module."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        return function

    def facts(self, function: ctypes.c_void_p) -> dict[str, int]:
        """Hardware resources that the kernel uses."""
        found = {}
        for name, attribute in FUNCTION_FACTS.items():
            value = ctypes.c_int()
            self.call("cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), function)
            found[name] = value.value
        return found

    def tensor_map(self, spec: Mapping[str, Any], address: int) -> ctypes.Array[ctypes.c_char]:
        """An encoded TMA descriptor, 64-byte aligned as the driver requires."""
        raw = ctypes.create_string_buffer(128 + 64)
        start = ctypes.addressof(raw)
        descriptor = (ctypes.c_char * 128).from_buffer(raw, -start % 64)
        rank = len(spec["dims"])
        self.call(
            "cuTensorMapEncodeTiled",
            descriptor,
            ctypes.c_int(_DTYPES[spec["dtype"]]),
            ctypes.c_uint(rank),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*spec["dims"]),
            (ctypes.c_uint64 * max(rank - 1, 1))(*spec["strides"]),
            (ctypes.c_uint32 * rank)(*spec["box"]),
            (ctypes.c_uint32 * rank)(*spec["element_strides"]),
            ctypes.c_int(_INTERLEAVE[spec["interleave"]]),
            ctypes.c_int(_SWIZZLE[spec["swizzle"]]),
            ctypes.c_int(_L2_PROMOTION[spec["l2_promotion"]]),
            ctypes.c_int(_FILL[spec["fill"]]),
        )
        return descriptor


class PreparedLaunch:
    """One launch with its arguments laid out; `run` only makes the driver call."""

    def __init__(
        self,
        driver: Driver,
        function: ctypes.c_void_p,
        spec: Mapping[str, Any],
        addresses: Mapping[str, int],
        stream: int,
    ) -> None:
        """Lay out a launch.

        Args:
            driver: the driver.
            function: the kernel.
            spec: `ResolvedLaunch` as plain data.
            addresses: device address of every buffer the arguments name.
            stream: the CUDA stream's handle.
        """
        self._driver, self._function = driver, function
        self._values = [_argument(driver, argument, addresses) for argument in spec["args"]]
        self._pointers = (ctypes.c_void_p * max(len(self._values), 1))(*(ctypes.addressof(v) for v in self._values))
        attributes = _attributes(spec)
        self._attributes = (_Attribute * max(len(attributes), 1))(*attributes)
        if spec["shared_bytes"]:
            wanted = ctypes.c_int(spec["shared_bytes"])
            driver.call("cuFuncSetAttribute", function, ctypes.c_int(_MAX_DYNAMIC_SHARED), wanted)
        if spec["cluster"] and spec["cluster"][0] * spec["cluster"][1] * spec["cluster"][2] > _PORTABLE_CLUSTER:
            driver.call("cuFuncSetAttribute", function, ctypes.c_int(_NON_PORTABLE_CLUSTER), ctypes.c_int(1))
        self._configuration = _Configuration(
            _Dim3(*spec["grid"]), _Dim3(*spec["block"]), spec["shared_bytes"], stream, self._attributes, len(attributes)
        )

    def run(self) -> None:
        """Launch."""
        self._driver.call(
            "cuLaunchKernelEx", ctypes.byref(self._configuration), self._function, self._pointers, ctypes.c_void_p()
        )


def _attributes(spec: Mapping[str, Any]) -> Sequence[_Attribute]:
    found = []
    if spec["cluster"]:
        found.append(_Attribute(id=_CLUSTER_DIMENSION, value=_AttributeValue(cluster=_Dim3(*spec["cluster"]))))
    if spec["cooperative"]:
        found.append(_Attribute(id=_COOPERATIVE, value=_AttributeValue(cooperative=1)))
    return found


_SCALARS = {
    "i": ctypes.c_int32, "I": ctypes.c_uint32, "q": ctypes.c_int64, "Q": ctypes.c_uint64, "f": ctypes.c_float,
    "d": ctypes.c_double, "h": ctypes.c_int16, "H": ctypes.c_uint16, "b": ctypes.c_int8, "B": ctypes.c_uint8,
    "?": ctypes.c_bool,
}  # fmt: skip


def _argument(driver: Driver, spec: Mapping[str, Any], addresses: Mapping[str, int]) -> Any:  # noqa: ANN401 - a ctypes value
    match spec["kind"]:
        case "pointer":
            return ctypes.c_uint64(addresses[spec["buffer"]] + spec["offset"])
        case "value":
            kind = _SCALARS[spec["format"]]
            return kind(spec["value"] if spec["format"] in "fd" else int(spec["value"]))
        case _:
            return driver.tensor_map(spec, addresses[spec["buffer"]] + spec["offset"])
