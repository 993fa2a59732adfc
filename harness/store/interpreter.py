"""Where this Python lies on the host: every sandbox shows it, the judge's and the agents'."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path


def python_prefixes(system: Iterable[str]) -> list[Path]:
    """The interpreter, its standard library and its packages: outermost directories only, none below `system`."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "include")}
    found = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, sys.exec_prefix, *paths)}
    found |= {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    roots = [Path(path) for path in system]
    found = {path for path in found if path.is_dir() and not any(path.is_relative_to(root) for root in roots)}
    return sorted(path for path in found if not any(path != other and path.is_relative_to(other) for other in found))
