"""Compile CUDA C++ to a cubin with NVRTC. Runs in the builder's sandbox: `python nvrtc.py REQUEST.json OUTPUT_DIR`.

The request has the library, include directories, source file, architecture, options and the kernels' name expressions.
The output is `kernel.cubin`, `kernel.ptx`, `names.json` (name expression -> symbol) and `compile.log`, which is the
compiler's log. Exit codes: 0 compiled, 1 the source has errors, 2 the compiler rejected the request, 3 the compiler is
missing or cannot be loaded. No CUDA driver is needed.

Source: NVRTC documentation, https://docs.nvidia.com/cuda/nvrtc/; NVIDIA's `cuda.bindings` makes the calls.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNUSABLE = 3
"""Exit code if the compiler is missing or cannot be loaded, independently of the source."""


@dataclass(frozen=True)
class Compiled:
    """Result of a compilation. `cubin` is None and `symbols` is empty if the source has errors."""

    cubin: bytes | None
    symbols: dict[str, str]
    log: str
    version: tuple[int, int]
    ptx: bytes = b""


def compile_source(source: str, name: str, options: list[str], kernels: list[str]) -> Compiled:
    """Compile CUDA C++.

    Args:
        source: text of the source.
        name: file name in the compiler's messages.
        options: options of NVRTC.
        kernels: name expressions of the kernels.

    Raises:
        RuntimeError: NVRTC itself failed; the message has its error code.
        ImportError: `cuda.bindings` is not installed.
    """
    from cuda.bindings import nvrtc  # noqa: PLC0415 - the log names a missing package

    def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:  # noqa: ANN401 - of any NVRTC call
        code, *results = function(*arguments)
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"{function.__name__}: {code.name}")
        return (results[0] if len(results) == 1 else tuple(results)) if results else None

    def content(size: Callable[..., Any], read: Callable[..., Any]) -> bytes:
        data = bytes(call(size, program))
        call(read, program, data)
        return data

    version = call(nvrtc.nvrtcVersion)
    program = call(nvrtc.nvrtcCreateProgram, source.encode(), name.encode(), 0, [], [])
    for kernel in kernels:
        call(nvrtc.nvrtcAddNameExpression, program, kernel.encode())
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = content(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode(errors="replace")
    if code == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
        return Compiled(None, {}, log, version)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"nvrtcCompileProgram: {code.name}\n{log}")
    symbols = {kernel: call(nvrtc.nvrtcGetLoweredName, program, kernel.encode()).decode() for kernel in kernels}
    cubin = content(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    ptx = content(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0")
    return Compiled(cubin, symbols, log, version, ptx)


def main(request_file: str, output: str) -> int:
    """Compile a request into the output directory and return the exit code of this program (see the module).

    Args:
        request_file: path of the request.
        output: path of the output directory.
    """
    request = json.loads(Path(request_file).read_text())
    directory = Path(output)
    source = Path(request["source"])
    options = [
        f"--gpu-architecture={request['architecture']}",
        *(f"--include-path={path}" for path in (str(source.parent), *request["includes"])),
        *request["options"],
    ]
    try:
        library = Path(request["library"])
        # NVRTC opens its built-in functions by name, and NVIDIA's wheels of CUDA 13.0 have no RPATH to find them.
        for part in (*library.parent.glob("libnvrtc-builtins.so*"), library):
            ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)  # cuda.bindings uses the loaded library
        from cuda.bindings import nvrtc  # noqa: F401, PLC0415 - the log names what is missing
    except (ImportError, OSError) as error:
        (directory / "compile.log").write_text(str(error))
        return UNUSABLE
    try:
        # Messages show the name of the user's file, not its path in the sandbox.
        compiled = compile_source(source.read_text(), source.name, options, request["kernels"])
    except RuntimeError as error:
        (directory / "compile.log").write_text(str(error))
        return 2
    (directory / "compile.log").write_text(compiled.log)
    if compiled.cubin is None:
        return 1
    (directory / "kernel.cubin").write_bytes(compiled.cubin)
    (directory / "kernel.ptx").write_bytes(compiled.ptx)
    (directory / "names.json").write_text(json.dumps({"symbols": compiled.symbols, "nvrtc": compiled.version}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
