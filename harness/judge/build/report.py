"""Report on a build: the compiler's warnings, and registers, shared memory and spills of the kernels.

The messages are untrusted text. The resources come from the assembler's log and from the cubin itself.

Sources: CUDA Binary Utilities, for the sections of a cubin; `ptxas --verbose`. The attributes of `.nv.info` are those
that `cuobjdump -elf` prints (EIATTR_REGCOUNT, EIATTR_FRAME_SIZE).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from harness.model.counters import KernelResources, kernel_name
from harness.runner.cubin import ELF_ERRORS, ElfSection, elf_sections, elf_symbol

_MOST_WARNINGS = 8
_LONGEST = 240
_SOURCES = "/sources/"
"""Directory of the sources in a build's sandbox. It is removed from messages."""
_WARNING = re.compile(r"\bwarning\b|\bperformance\b.*\bwgmma\b|setmaxnreg", re.IGNORECASE)
_ABOUT_WARNINGS = re.compile(r"^Remark:|\[-W\w+=?\]?$")
MOST_KERNELS = 64
"""Largest number of kernels of a solution in an answer."""
_ATTRIBUTE = struct.Struct("<BBH")
_PAIR = struct.Struct("<II")
_SIZED = 4
"""Format of an attribute whose value is the number of bytes that follow it."""
_REGISTERS, _FRAME = 0x2F, 0x11
_RESERVED_SECTION, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024
"""In a cubin with this section, the shared memory of each kernel contains the 1 KiB that the driver reserves."""
_ENTRY = re.compile(r"Compiling entry function '([A-Za-z0-9_$]+)'")
_SPILLS = re.compile(r"(\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads")
_MOST_REGISTERS = 65_536


def build_warnings(messages: str) -> tuple[str, ...]:
    """Return the compiler's first warnings, each once and without control characters.

    Args:
        messages: of the compiler.
    """
    lines = messages.splitlines()
    chosen = [_printable(line) for line in lines if _WARNING.search(line) and not _ABOUT_WARNINGS.match(line)]
    unique = list(dict.fromkeys(line for line in chosen if line))
    omitted = [f"and {len(unique) - _MOST_WARNINGS} more warnings"] if len(unique) > _MOST_WARNINGS else []
    return (*unique[:_MOST_WARNINGS], *omitted)


def _printable(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable()).replace(_SOURCES, "")[:_LONGEST]


def resources_of_cubin(cubin: bytes, names: Mapping[str, str], log: str = "") -> tuple[KernelResources, ...]:
    """Return the resources of each kernel of a cubin; empty if the bytes are not a cubin of a supported form.

    Args:
        cubin: output of the compiler, or recorded by a candidate's process; it is not trusted.
        names: symbol -> displayed name of the kernel; other kernels are omitted.
        log: of the assembler with the option `--verbose`, which alone has the bytes of spilled registers.
    """
    try:
        facts = _facts(cubin)
    except ELF_ERRORS:
        return ()
    spills = spills_in_log(log)
    resources = []
    for symbol, name in list(names.items())[:MOST_KERNELS]:
        if symbol not in facts:
            continue
        registers, local, shared = facts[symbol]
        stores, loads = spills.get(symbol, (None, None))
        resources.append(
            KernelResources(
                kernel=kernel_name(name),
                registers=min(registers, _MOST_REGISTERS),
                shared_bytes=shared,
                local_bytes=local,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
            )
        )
    return tuple(resources)


def spills_in_log(log: str) -> dict[str, tuple[int, int]]:
    """Return bytes of spill stores and spill loads by symbol, as the assembler's log has them."""
    spills: dict[str, tuple[int, int]] = {}
    symbol = None
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            symbol = entry[1]
        elif (match := _SPILLS.search(line)) and symbol is not None and symbol not in spills:
            spills[symbol] = int(match[1]), int(match[2])
    return spills


def _facts(cubin: bytes) -> dict[str, tuple[int, int, int]]:
    """Return symbol -> (registers, bytes of the stack frame, bytes of static shared memory)."""
    sections = elf_sections(cubin)
    sizes = {section.name: section.size for section in sections}
    reserved = _RESERVED_BYTES if _RESERVED_SECTION in sizes else 0
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for section in sections:
        if section.name != ".nv.info":
            continue
        for attribute, symbol, value in _pairs(cubin, section, sections):
            (registers if attribute == _REGISTERS else frames)[symbol] = value
    return {
        symbol: (count, frames.get(symbol, 0), max(sizes.get(f".nv.shared.{symbol}", 0) - reserved, 0))
        for symbol, count in registers.items()
    }


def _pairs(cubin: bytes, info: ElfSection, sections: list[ElfSection]) -> Iterator[tuple[int, str, int]]:
    """Yield (attribute, symbol, value) of the attributes of `.nv.info` for registers and stack frames."""
    at, end = info.begin, min(info.begin + info.size, len(cubin))
    while at < end:
        form, attribute, size = _ATTRIBUTE.unpack_from(cubin, at)
        at += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if attribute in (_REGISTERS, _FRAME) and size == _PAIR.size:
            number, value = _PAIR.unpack_from(cubin, at)
            yield attribute, elf_symbol(cubin, sections, sections[info.link], number).name, value
        at += size
