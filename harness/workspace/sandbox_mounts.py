"""Read-only mounts of every sandbox, the judge's and the agents': the system's directories and this Python.

As bubblewrap's options. Neither shows the harness itself, wherever it is installed.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import harness

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")


def python_prefixes() -> list[Path]:
    """The interpreter, its standard library and its packages: outermost directories only, none below the system's."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "include")}
    found = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, sys.exec_prefix, *paths)}
    found |= {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    found = {path for path in found if path.is_dir() and not any(path.is_relative_to(root) for root in SYSTEM)}
    return sorted(path for path in found if not any(path != other and path.is_relative_to(other) for other in found))


def system_binds(more_of_etc: Iterable[str] = ()) -> list[str]:
    """The system's directories, and what programs need of /etc; `more_of_etc` names more of that."""
    arguments = []
    for directory in map(Path, SYSTEM):
        if directory.is_symlink():
            arguments += ["--symlink", str(directory.readlink()), str(directory)]
        elif directory.is_dir():
            arguments += ["--ro-bind", str(directory), str(directory)]
    for name in (*_ETC, *more_of_etc):
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def python_binds(more: Iterable[Path] = ()) -> list[str]:
    """This Python, and `more` directories; an empty one lies over the harness where it is below them."""
    arguments = []
    package = Path(harness.__file__).resolve().parent
    for prefix in (*python_prefixes(), *more):
        arguments += ["--ro-bind", str(prefix), str(prefix)]
        if package.is_relative_to(prefix):
            arguments += ["--tmpfs", str(package)]
    return arguments
