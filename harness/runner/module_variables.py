"""Module-scope variables of a cubin, which the launcher sets back to their first values before every call.

Without that, a kernel could keep in a `__device__` variable what it computed in an earlier call. The names come from
the cubin's symbol table, because the driver finds a variable by name only.
Source: CUDA Binary Utilities, for the sections of a cubin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .elf import ELF_ERRORS, ElfSection, elf_sections, elf_symbol

_SYMBOL_TABLE, _OBJECT, _TYPE_MASK = 2, 1, 0xF
_DEVICE, _CONSTANT = ".nv.global", ".nv.constant3"
"""Sections of `__device__` and of `__constant__` variables; some have a suffix."""
MOST_BYTES = 64 << 20
"""Variables of one cubin together: copying them before each call is not part of its time, but costs the judge time."""


class MalformedCubinError(ValueError):
    """Bytes that are no cubin, or a cubin whose variables are too large."""


class ModuleVariable(NamedTuple):
    """A variable of a cubin at module scope."""

    bytes: int
    is_constant: bool


def check_size(cubin: bytes) -> None:
    """Check that the module-scope variables can be copied before each call.

    Raises:
        MalformedCubinError: they are too large, or these bytes are no cubin.
    """
    total = sum(variable.bytes for variable in module_variables(cubin).values())
    if total > MOST_BYTES:
        raise MalformedCubinError(
            f"its module-scope variables take {total >> 20} MiB, more than {MOST_BYTES >> 20}: use a workspace"
        )


def module_variables(cubin: bytes) -> dict[str, ModuleVariable]:
    """Return the module-scope variables, by symbol.

    Raises:
        MalformedCubinError: these bytes are no cubin.
    """
    try:
        sections = elf_sections(cubin)
        kinds = {
            number: section.name.startswith(_CONSTANT)
            for number, section in enumerate(sections)
            if section.name.startswith((_DEVICE, _CONSTANT))
        }
        return dict(_objects(cubin, sections, kinds))
    except ELF_ERRORS as error:
        raise MalformedCubinError(f"malformed: {error}") from None


def _objects(
    cubin: bytes, sections: list[ElfSection], kinds: Mapping[int, bool]
) -> Iterator[tuple[str, ModuleVariable]]:
    """Variables of the sections that `kinds` names by number, with true for those of constants."""
    for table in sections:
        if table.kind != _SYMBOL_TABLE:
            continue
        for number in range(table.size // table.entry_bytes):
            symbol = elf_symbol(cubin, sections, table, number)
            if symbol.info & _TYPE_MASK == _OBJECT and symbol.section in kinds and symbol.size:
                yield symbol.name, ModuleVariable(symbol.size, kinds[symbol.section])
