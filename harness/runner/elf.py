"""Sections and symbols of a cubin, which is an ELF-64 file.

Source: the ELF-64 object file format. A cubin is untrusted: malformed bytes raise one of `ELF_ERRORS`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ELF_ERRORS = (struct.error, IndexError, ZeroDivisionError, ValueError, OverflowError)
_HEADER = struct.Struct("<4s36xQ10xHHH")
"""Magic; offset of the section headers; size and number of the headers; number of the section that has their names."""
_SECTION = struct.Struct("<II16xQQI12xQ")
"""Name, type, offset, size, linked section, size of an entry."""
_SYMBOL = struct.Struct("<IBxHQQ")
"""Name, type and binding, section, value, size."""


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
