"""Origin of a problem: module, class, source file, version and licence."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from pathlib import Path

from torch import nn

from harness.corpus.errors import SkippedError

_HEADER_LINES = 60
_LICENCES = (
    ("Apache-2.0", re.compile(r"apache license,?\s+version 2\.0|apache-2\.0|apache\.org/licenses/license-2\.0")),
    ("MIT", re.compile(r"\bmit[ -]license|under the mit\b|identifier:\s*mit|permission is hereby granted")),
    ("BSD-3-Clause", re.compile(r"bsd[ -](3|style|licen)|redistribution and use in source and binary forms")),
)
_FORBIDDEN = re.compile(r"non-?\s?commercial|cc[- ]by[- ]nc|research (use|purposes) only")
"""All patterns match lower-case text."""


def provenance_of(module: nn.Module, path: str, architecture: str) -> dict[str, str]:
    """Return the origin of a module, as the value of `x_provenance` in definition.json.

    The file is relative to the directory that packages are installed in. The licence is the SPDX identifier from the
    header of the source file, or of the package if the header names none.

    Args:
        path: dotted path of the submodule in the model.
        architecture: name of the model.

    Raises:
        SkippedError: the licence of the source file forbids commercial use, or is unknown.
    """
    file = Path(inspect.getfile(type(module)))
    library = type(module).__module__.partition(".")[0]
    parts = file.parts
    place = parts.index(library) if library in parts else len(parts) - 1
    name = "/".join(parts[place:])
    licence = licence_of(file.read_text(errors="replace"), name)
    try:
        version = importlib.metadata.version(library)
        licence = licence or _package_licence(library)
    except importlib.metadata.PackageNotFoundError:  # a module factory's own code
        version, licence = "", licence or "of the user"
    origin = {
        "architecture": architecture,
        "module": type(module).__qualname__,
        "path": path,
        "file": name,
        "library": library,
        "version": version,
        "licence": licence,
    }
    return {key: value for key, value in origin.items() if value}


def licence_of(source: str, name: str) -> str | None:
    """Return the SPDX identifier of the licence in a source file's header; None if it names none.

    Args:
        source: text of the source file.
        name: name of the file, for the error.

    Raises:
        SkippedError: the licence forbids commercial use.
    """
    header = "\n".join(source.splitlines()[:_HEADER_LINES]).lower()
    if _FORBIDDEN.search(header):
        raise SkippedError(f"the licence of {name} forbids commercial use")
    return next((licence for licence, pattern in _LICENCES if pattern.search(header)), None)


def _package_licence(library: str) -> str:
    metadata = importlib.metadata.metadata(library)
    text = " ".join(str(metadata[key])[:100] for key in ("License-Expression", "License") if key in metadata)
    for licence, words in (("Apache-2.0", "apache"), ("MIT", "mit"), ("BSD-3-Clause", "bsd")):
        if words in text.lower():
            return f"{licence} (of the package {library})"
    raise SkippedError(f"no licence is named, neither in the source file nor by the package {library}")
