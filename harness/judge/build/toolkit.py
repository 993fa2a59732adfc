"""Search for the CUDA compilers NVRTC and nvcc and their headers on this machine; needs no driver and no GPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.errors import ConfigurationError

_HEADER = "cuda_bf16.h"


@dataclass(frozen=True)
class Toolkit:
    """A compiler and the headers that belong to it."""

    library: Path
    """Path of libnvrtc.so of CUDA 12 or 13."""
    includes: tuple[Path, ...]
    """Directories of cuda_bf16.h and of libcu++, which may be separate."""


def find_toolkit() -> Toolkit:
    """Return NVRTC from CUDA_HOME or CUDA_PATH, from NVIDIA's wheels, or from /usr/local/cuda, in this order.

    Raises:
        ConfigurationError: there is none; the message has the command that installs it.
    """
    for library, headers in _places():
        libraries = sorted(library.glob("libnvrtc.so*"), key=lambda path: len(path.name))
        with_header = [path for path in headers if (path / _HEADER).is_file()]
        if libraries and with_header:
            main = with_header[0]
            includes = (main, main / "cccl", *(path for path in headers if (path / "cuda" / "std").is_dir()))
            return Toolkit(libraries[0], tuple(dict.fromkeys(path for path in includes if path.is_dir())))
    raise ConfigurationError(
        "language cuda needs NVRTC and the CUDA headers, and neither wheels nor a toolkit are installed",
        remedy="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt    # no GPU needed",
    )


def _places() -> list[tuple[Path, list[Path]]]:
    """Return (directory of the library, directories of headers) in order of preference."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    twelve = [wheels / package / "include" for package in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")]
    return [
        *((home / "lib64", [home / "include"]) for home in homes),
        (wheels / "cu13" / "lib", [wheels / "cu13" / "include"]),
        (wheels / "cuda_nvrtc" / "lib", twelve),
        (Path("/usr/local/cuda/lib64"), [Path("/usr/local/cuda/include")]),
    ]


_LEAST_DRIVER = {12: 525, 13: 580}
"""Major version of CUDA -> oldest major version of the driver that runs its output.

Source: CUDA Toolkit Release Notes, table of minimum driver versions for minor version compatibility.
"""
_FIX_NVRTC = "pip install --upgrade nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"


@dataclass(frozen=True)
class NvrtcFacts:
    """Version of an NVRTC, and the architectures that it compiles for."""

    version: tuple[int, int]
    architectures: tuple[int, ...]
    """Numbers of architectures: 90 for sm_90."""


@dataclass(frozen=True)
class CompilerMismatch:
    """Reason why the output of NVRTC does not run on a GPU, and a command that fixes it."""

    reason: str
    fix: str


def nvrtc_facts(library: Path) -> NvrtcFacts:
    """Return the version and the architectures of an NVRTC, which is loaded into this process; needs no driver.

    Raises:
        ConfigurationError: the library cannot be loaded, or lacks these functions (CUDA before 11.2).
    """
    try:
        loaded = ctypes.CDLL(str(library))
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        loaded.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        loaded.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        loaded.nvrtcGetSupportedArchs(numbers)
    except (OSError, AttributeError) as error:
        raise ConfigurationError(f"NVRTC cannot be used: {error}", where=str(library), remedy=_FIX_NVRTC) from error
    return NvrtcFacts((major.value, minor.value), tuple(numbers))


def compiler_mismatch(facts: NvrtcFacts, driver: str, capability: str) -> CompilerMismatch | None:
    """Return the reason why the output of NVRTC does not run on a GPU; None if it does or a version is unknown.

    Args:
        facts: version and architectures of NVRTC.
        driver: version of the driver, as nvidia-smi prints it (`580.65.06`).
        capability: compute capability, as nvidia-smi prints it (`10.0`).
    """
    version = ".".join(map(str, facts.version))
    architecture = capability.strip().replace(".", "")
    if architecture.isdigit() and int(architecture) not in facts.architectures:
        return CompilerMismatch(f"NVRTC {version} does not compile for sm_{architecture}", _FIX_NVRTC)
    installed, oldest = driver.strip().partition(".")[0], _LEAST_DRIVER.get(facts.version[0], 0)
    if installed.isdigit() and int(installed) < oldest:
        return CompilerMismatch(
            f"NVRTC {version} needs a driver of {oldest} or newer, and this one is {driver.strip()}",
            f"install a driver of {oldest} or newer    # or NVRTC of an older CUDA",
        )
    return None


@dataclass(frozen=True)
class Nvcc:
    """A CUDA toolkit with nvcc."""

    home: Path
    """Directory of nvcc, its parts, its headers and its libraries, with symbolic links resolved."""
    version: str

    @property
    def program(self) -> Path:
        """Path of nvcc."""
        return self.home / "bin" / "nvcc"

    @property
    def includes(self) -> tuple[Path, ...]:
        """Directories of headers for the C++ compiler; nvcc finds them without an option."""
        return tuple(path for path in (self.home / "include", self.home / "include" / "cccl") if path.is_dir())

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Directories of libraries; those called `stubs` allow linking with the driver's libraries without a driver."""
        below = (self.home / name for name in ("lib64", "lib", "lib64/stubs", "lib/stubs"))
        return tuple(dict.fromkeys(path.resolve() for path in below if path.is_dir()))

    @property
    def runtime(self) -> tuple[str, ...]:
        """Options of the linker for the CUDA runtime.

        The static library is used if it is installed, so that a solution runs with the runtime that it was compiled
        with, independently of the one that torch loads.
        """
        static = any((path / "libcudart_static.a").is_file() for path in self.libraries)
        return ("-lcudart_static", "-lrt", "-ldl", "-lpthread") if static else ("-lcudart",)


def find_nvcc() -> Nvcc:
    """Return nvcc from CUDA_HOME or CUDA_PATH, NVIDIA's wheels, the PATH, or /usr/local/cuda, in this order.

    Raises:
        ConfigurationError: there is none with its headers; the message has the command that installs it.
    """
    nvcc = seek_nvcc()
    if nvcc is None:
        raise ConfigurationError(
            "a .cu source of language cuda_cpp needs nvcc and its headers, and neither a toolkit nor wheels are "
            "installed",
            remedy="pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl, "
            "or set CUDA_HOME to a CUDA toolkit",
        )
    return nvcc


def seek_nvcc() -> Nvcc | None:
    """Return the result of `find_nvcc`, or None if there is no nvcc."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    homes.append(Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13")
    if on_path := shutil.which("nvcc"):
        homes.append(Path(on_path).resolve().parent.parent)
    for home in (*homes, Path("/usr/local/cuda")):
        if (home / "bin" / "nvcc").is_file() and (home / "include" / "cuda_runtime.h").is_file():
            return Nvcc(home.resolve(), _version(home.resolve()))
    return None


@cache
def _version(home: Path) -> str:
    output = subprocess.run([home / "bin" / "nvcc", "--version"], capture_output=True, check=False, timeout=20).stdout
    return output.decode(errors="replace").strip().rpartition("\n")[2]
