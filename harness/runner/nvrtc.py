"""Compile CUDA C++ to a cubin with NVRTC. Runs in the builder's sandbox: `python nvrtc.py REQUEST.json OUTPUT_DIR`.

The request names library, include directories, source file, architecture, options and the kernels' name expressions;
the output is `kernel.cubin`, `names.json` (name expression -> symbol) and `compile.log` as the compiler wrote it. Exit
code 0 compiled, 1 the source has errors, 2 the compiler could not be used. No CUDA driver is needed.

Source: NVRTC documentation, https://docs.nvidia.com/cuda/nvrtc/.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

_COMPILATION_ERROR = 6


class Nvrtc:
    """The few calls of libnvrtc that a build needs."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(
        self, source: str, name: str, options: list[str], kernels: list[str]
    ) -> tuple[bytes | None, dict[str, str], str]:
        """The cubin (None when the source has errors), the kernels' symbols, and the compiler's log.

        Raises:
            RuntimeError: NVRTC itself failed; the message is its own.
        """
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), ctypes.c_int(0), None, None
        )
        for kernel in kernels:
            self._call("nvrtcAddNameExpression", program, kernel.encode())
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self._library.nvrtcCompileProgram(program, ctypes.c_int(len(options)), arguments)
        log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code == _COMPILATION_ERROR:
            return None, {}, log
        if code:
            raise RuntimeError(f"nvrtcCompileProgram: {self._error(code)}\n{log}")
        symbols = {}
        for kernel in kernels:
            lowered = ctypes.c_char_p()
            self._call("nvrtcGetLoweredName", program, kernel.encode(), ctypes.byref(lowered))
            symbols[kernel] = (lowered.value or b"").decode()
        return self._bytes(program, "CUBIN"), symbols, log

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes arguments
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {self._error(code)}")

    def _error(self, code: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(code)
        return text.decode()


def main(request_file: str, output: str) -> int:
    """Compile what the request says into the output directory; the exit code says how it went."""
    request = json.loads(Path(request_file).read_text())
    directory = Path(output)
    source = Path(request["source"])
    try:
        compiler = Nvrtc(request["library"])
        options = [
            f"--gpu-architecture={request['architecture']}",
            *(f"--include-path={path}" for path in (str(source.parent), *request["includes"])),
            *request["options"],
        ]
        # The name is what messages show: the user's own file, not where the sandbox put it.
        cubin, symbols, log = compiler.compile(source.read_text(), source.name, options, request["kernels"])
    except (OSError, RuntimeError) as error:
        (directory / "compile.log").write_text(str(error))
        return 2
    (directory / "compile.log").write_text(log)
    if cubin is None:
        return 1
    (directory / "kernel.cubin").write_bytes(cubin)
    (directory / "names.json").write_text(json.dumps({"symbols": symbols, "nvrtc": compiler.version()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
