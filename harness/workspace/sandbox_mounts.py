"""Read-only mounts of every sandbox, the judge's and the agents', as options of bubblewrap.

The mounts are the system's directories and this Python. Neither shows the harness itself, wherever it is installed.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import harness

ALLOW_USER_NAMESPACES = (
    "allow user namespaces, as root: sysctl kernel.unprivileged_userns_clone=1 (Debian) or "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 23.10 and later); or run as root"
)
"""Fix for a bubblewrap that may not create its namespaces."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")


def python_prefixes() -> list[Path]:
    """Return the directories of the interpreter, its standard library and its packages.

    Directories inside another one of them or inside the system's are omitted.
    """
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "include")}
    prefixes = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, sys.exec_prefix, *paths)}
    prefixes |= {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    prefixes = {path for path in prefixes if path.is_dir() and not any(path.is_relative_to(root) for root in SYSTEM)}
    return sorted(
        path for path in prefixes if not any(path != outer and path.is_relative_to(outer) for outer in prefixes)
    )


def system_binds(extra_etc_names: Iterable[str] = ()) -> list[str]:
    """Return the mounts of the system's directories and of the files of /etc that programs need.

    `extra_etc_names` are further names in /etc.
    """
    arguments = []
    for directory in map(Path, SYSTEM):
        if directory.is_symlink():
            arguments += ["--symlink", str(directory.readlink()), str(directory)]
        elif directory.is_dir():
            arguments += ["--ro-bind", str(directory), str(directory)]
    for name in (*_ETC, *extra_etc_names):
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def python_binds(extra_directories: Iterable[Path] = ()) -> list[str]:
    """Return the mounts of this Python and of `extra_directories`.

    An empty directory covers the harness if one of them contains it.
    """
    arguments = []
    package = Path(harness.__file__).resolve().parent
    for prefix in (*python_prefixes(), *extra_directories):
        arguments += ["--ro-bind", str(prefix), str(prefix)]
        if package.is_relative_to(prefix):
            arguments += ["--tmpfs", str(package)]
    return arguments
