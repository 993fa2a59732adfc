"""Reports of builds: the compiler's warnings, and the resources of each kernel by the assembler's `-v` output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.model.checking import BuildReport, KernelResources

_MOST_WARNINGS = 8
_LONGEST = 240
_SOURCES = "/sources/"
"""Where a build's sandbox shows the sources; readers know them by their own names."""
_WARNING = re.compile(r"\bwarning\b|\bperformance\b.*\bwgmma\b|setmaxnreg", re.IGNORECASE)
_ABOUT_WARNINGS = re.compile(r"^Remark:|\[-W\w+=?\]?$")
# Lines that ptxas writes with `-v` (CUDA Toolkit documentation, nvcc, section on `--resource-usage`).
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def build_report(messages: str, symbols: dict[str, str] | None = None) -> BuildReport:
    """Read a compiler's messages; untrusted text, of which lines and numbers are kept.

    Args:
        messages: as the compiler wrote them.
        symbols: name expression of a kernel -> its symbol; kernels are shown by the former.
    """
    names = {symbol: name for name, symbol in (symbols or {}).items()}
    return BuildReport(warnings=_warnings(messages.splitlines()), kernels=_kernels(messages.splitlines(), names))


def _warnings(lines: Sequence[str]) -> tuple[str, ...]:
    chosen = [_printable(line) for line in lines if _WARNING.search(line) and not _ABOUT_WARNINGS.match(line)]
    unique = list(dict.fromkeys(line for line in chosen if line))
    more = [f"and {len(unique) - _MOST_WARNINGS} more warnings"] if len(unique) > _MOST_WARNINGS else []
    return (*unique[:_MOST_WARNINGS], *more)


def _printable(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable()).replace(_SOURCES, "")[:_LONGEST]


def _kernels(lines: Sequence[str], names: dict[str, str]) -> tuple[KernelResources, ...]:
    found: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in lines:
        if entry := _ENTRY.search(line):
            current = found.setdefault(names.get(entry[1], entry[1])[:_LONGEST], {})
        elif stack := _STACK.search(line):
            current |= dict(
                zip(("stack_bytes", "spill_store_bytes", "spill_load_bytes"), map(int, stack.groups()), strict=True)
            )
        elif used := _USED.search(line):
            shared = _SHARED.search(line)
            current |= {"registers": int(used[1]), "shared_bytes": int(shared[1]) if shared else 0}
    return tuple(
        KernelResources.model_validate({"name": name, **numbers})
        for name, numbers in found.items()
        if "registers" in numbers
    )
