"""Where NVRTC and the CUDA headers are on this machine. Needs no driver and no GPU."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigurationError

_HEADER = "cuda_bf16.h"


@dataclass(frozen=True)
class Toolkit:
    """A compiler and the headers that belong to it."""

    library: Path
    """libnvrtc.so, of CUDA 12 or 13."""
    includes: tuple[Path, ...]
    """Directories with cuda_bf16.h and, where it is a separate one, libcu++."""


def find_toolkit() -> Toolkit:
    """NVRTC from a toolkit named by CUDA_HOME or CUDA_PATH, from NVIDIA's wheels, or from /usr/local/cuda.

    Raises:
        ConfigurationError: there is none; the message has the command that installs it.
    """
    for library, headers in _places():
        libraries = sorted(library.glob("libnvrtc.so*"), key=lambda path: len(path.name))
        found = [path for path in headers if (path / _HEADER).is_file()]
        if libraries and found:
            wanted = (found[0], found[0] / "cccl", *(path for path in headers if (path / "cuda" / "std").is_dir()))
            return Toolkit(libraries[0], tuple(dict.fromkeys(path for path in wanted if path.is_dir())))
    raise ConfigurationError(
        "language cuda needs NVRTC and the CUDA headers, and neither wheels nor a toolkit are here",
        remedy="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt   (no GPU needed)",
    )


def _places() -> list[tuple[Path, list[Path]]]:
    """(directory of the library, directories of headers), in order of preference."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    twelve = [wheels / package / "include" for package in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")]
    return [
        *((home / "lib64", [home / "include"]) for home in homes),
        (wheels / "cu13" / "lib", [wheels / "cu13" / "include"]),
        (wheels / "cuda_nvrtc" / "lib", twelve),
        (Path("/usr/local/cuda/lib64"), [Path("/usr/local/cuda/include")]),
    ]
