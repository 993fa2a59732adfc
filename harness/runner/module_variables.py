"""Module-scope variables of a cubin, which the launcher resets to their initial values before every call.

Otherwise a kernel could store results of an earlier call in a `__device__` variable. The names are read from the
cubin's symbol table, because the driver finds a variable by name only.
Source: CUDA Binary Utilities, for the sections of a cubin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .elf import ELF_ERRORS, ElfSection, elf_sections, elf_symbol

_SYMBOL_TABLE, _OBJECT, _TYPE_MASK = 2, 1, 0xF
_DEVICE, _CONSTANT = ".nv.global", ".nv.constant3"
"""Sections of `__device__` and of `__constant__` variables; some have a suffix."""
MAX_VARIABLE_BYTES = 64 << 20
"""Total size of the variables of a cubin. The copy before each call is not timed, but prolongs the evaluation."""


class MalformedCubinError(ValueError):
    """The bytes are not a cubin, or the variables of the cubin are too large."""


class ModuleVariable(NamedTuple):
    """A variable of a cubin at module scope."""

    bytes: int
    is_constant: bool


def check_size(cubin: bytes) -> None:
    """Check that the module-scope variables can be copied before each call.

    Raises:
        MalformedCubinError: they are too large, or the bytes are not a cubin.
    """
    total = sum(variable.bytes for variable in module_variables(cubin).values())
    if total > MAX_VARIABLE_BYTES:
        raise MalformedCubinError(
            f"its module-scope variables take {total >> 20} MiB, more than {MAX_VARIABLE_BYTES >> 20}: use a workspace"
        )


def module_variables(cubin: bytes) -> dict[str, ModuleVariable]:
    """Return the module-scope variables of a cubin, by symbol.

    Raises:
        MalformedCubinError: the bytes are not a cubin.
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
    """Yield the variables of the sections in `kinds`; its values are true for sections of constants."""
    for table in sections:
        if table.kind != _SYMBOL_TABLE:
            continue
        for number in range(table.size // table.entry_bytes):
            symbol = elf_symbol(cubin, sections, table, number)
            if symbol.info & _TYPE_MASK == _OBJECT and symbol.section in kinds and symbol.size:
                yield symbol.name, ModuleVariable(symbol.size, kinds[symbol.section])
