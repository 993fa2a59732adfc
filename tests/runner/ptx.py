"""PTX of device code, compiled by NVRTC for a virtual architecture without a driver."""

from __future__ import annotations

import ctypes
from pathlib import Path

from cuda.bindings import nvrtc

from harness.judge.build.toolkit import find_toolkit


def ptx_of(source: Path, architecture: str, kernels: list[str], options: list[str]) -> str:
    """Return the PTX of the kernels for a virtual architecture such as `compute_90a`."""
    toolkit = find_toolkit()
    ctypes.CDLL(str(toolkit.library), mode=ctypes.RTLD_GLOBAL)
    includes = [f"--include-path={path}" for path in (source.parent, *toolkit.includes)]
    words = [f"--gpu-architecture={architecture}", *includes, "-std=c++17", "-default-device", *options]
    code, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS
    for kernel in kernels:
        nvrtc.nvrtcAddNameExpression(program, kernel.encode())
    (code,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS, code
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytes(size)
    nvrtc.nvrtcGetPTX(program, text)
    return text.rstrip(b"\0").decode()
