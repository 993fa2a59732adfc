"""Sections, symbols and module-scope variables of a cubin, which is an ELF-64 file.

The launcher resets the variables to their initial values before every call. Otherwise a kernel could store results of
an earlier call in a `__device__` variable. The names are read from the symbol table, because the driver finds a
variable by name only. A cubin is untrusted: malformed bytes raise one of `ELF_ERRORS`.
Source: the ELF-64 object file format; CUDA Binary Utilities, for the sections of a cubin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

ELF_ERRORS = (struct.error, IndexError, ZeroDivisionError, ValueError, OverflowError)
_HEADER = struct.Struct("<4s36xQ10xHHH")
"""Magic; offset of the section headers; size and number of the headers; number of the section that has their names."""
_SECTION = struct.Struct("<II16xQQI12xQ")
"""Name, type, offset, size, linked section, size of an entry."""
_SYMBOL = struct.Struct("<IBxHQQ")
"""Name, type and binding, section, value, size."""

_SYMBOL_TABLE, _OBJECT, _TYPE_MASK = 2, 1, 0xF
_DEVICE, _CONSTANT = ".nv.global", ".nv.constant3"
"""Sections of `__device__` and of `__constant__` variables; some have a suffix."""
MAX_VARIABLE_BYTES = 64 << 20
"""Total size of the variables of a cubin. The copy before each call is not timed, but prolongs the evaluation."""


class ElfSection(NamedTuple):
    """A section header, with the section's name as text."""

    name: str
    kind: int
    begin: int
    size: int
    link: int
    entry_bytes: int


class ElfSymbol(NamedTuple):
    """An entry of a symbol table."""

    name: str
    info: int
    """Type in the lower four bits, binding in the upper ones."""
    section: int
    size: int


class MalformedCubinError(ValueError):
    """The bytes are not a cubin, or the variables of the cubin are too large."""


class ModuleVariable(NamedTuple):
    """A variable of a cubin at module scope."""

    bytes: int
    is_constant: bool


def elf_sections(data: bytes) -> list[ElfSection]:
    """Return the sections in the order of their numbers."""
    magic, table, entry_bytes, count, names = _HEADER.unpack_from(data)
    if magic != b"\x7fELF":
        raise ValueError("not an ELF file")
    headers = [_SECTION.unpack_from(data, table + number * entry_bytes) for number in range(count)]
    return [ElfSection(_text(data, headers[names][2] + name), *fields) for name, *fields in headers]


def elf_symbol(data: bytes, sections: list[ElfSection], table: ElfSection, number: int) -> ElfSymbol:
    """Return a symbol of a symbol table.

    Args:
        data: the ELF file.
        sections: all sections of the file.
        table: section of the symbol table.
        number: position of the symbol in the table.
    """
    name, info, section, _, size = _SYMBOL.unpack_from(data, table.begin + number * table.entry_bytes)
    return ElfSymbol(_text(data, sections[table.link].begin + name), info, section, size)


def _text(data: bytes, begin: int) -> str:
    return data[begin : data.index(b"\0", begin)].decode()


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
