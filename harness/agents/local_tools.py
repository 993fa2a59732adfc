"""Programs of this host that an agent's sandbox contains: compilers, disassemblers, Python with torch.

They run on the CPU and have no access to a device; only the judge measures.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from harness.workspace.sandbox_mounts import SYSTEM, python_prefixes

_COMPILERS = ("g++", "clang++", "gdb", "objdump", "lscpu")
_CUDA = ("nvcc", "ptxas", "cuobjdump", "nvdisasm")
_PROCESSORS = (Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node"))
"""Directories that lscpu reads, besides /proc/cpuinfo."""


@dataclass(frozen=True)
class LocalTools:
    """Programs, and the paths that a sandbox needs to run them."""

    programs: tuple[str, ...]
    """Names of the installed programs, for prompts."""
    path: tuple[str, ...]
    """Directories for PATH, in addition to the system's."""
    binds: tuple[Path, ...]
    """Paths to mount read-only at the same place, in addition to the system and this Python."""


@cache
def find_local_tools() -> LocalTools:
    """Return the programs on PATH, in CUDA_HOME or CUDA_PATH, in NVIDIA's wheels and in /usr/local/cuda."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    if on_path := shutil.which("nvcc"):
        homes.append(Path(on_path).resolve().parent.parent)
    homes += [Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13", Path("/usr/local/cuda")]
    directories = dict.fromkeys(home.resolve() / "bin" for home in homes if (home / "bin").is_dir())
    cuda_directories = [directory for directory in directories if any((directory / name).is_file() for name in _CUDA)]
    hidden = [directory for directory in cuda_directories if not _is_shown(directory)]
    search = os.pathsep.join([*map(str, cuda_directories), "/usr/local/bin", "/usr/bin", "/bin"])
    programs = [name for name in (*_COMPILERS, *_CUDA) if shutil.which(name, path=search)]
    return LocalTools(
        programs=(*(["python3 with torch"] if find_spec("torch") else ["python3"]), *programs),
        path=tuple(map(str, cuda_directories)),
        binds=(*(directory.parent for directory in hidden), *(path for path in _PROCESSORS if path.is_dir())),
    )


def _is_shown(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in [*map(Path, SYSTEM), *python_prefixes()])
