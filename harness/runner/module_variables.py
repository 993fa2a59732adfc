"""Module-scope variables of a cubin, which the launcher sets back to their first values before every call.

Without that, a kernel could keep in a `__device__` variable what it computed in an earlier call. The names come from
the cubin's symbol table, because the driver finds a variable by name only.
Sources: the ELF-64 object file format; CUDA Binary Utilities, for the sections of a cubin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct("<4s36xQ10xHHH")
"""Magic; offset of the section headers; their size, their number, the section that holds their names."""
_SECTION = struct.Struct("<II16xQQI12xQ")
"""Name, type, offset, size, linked section, size of an entry."""
_SYMBOL = struct.Struct("<IBxHQQ")
"""Name, type and binding, section, value, size."""
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


@dataclass(frozen=True)
class _ElfSection:
    name: int
    kind: int
    begin: int
    size: int
    link: int
    entry_bytes: int


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
        magic, table, entry_bytes, count, names = _HEADER.unpack_from(cubin)
        if magic != b"\x7fELF":
            raise MalformedCubinError("not an ELF file")
        headers = (_SECTION.unpack_from(cubin, table + number * entry_bytes) for number in range(count))
        sections = [_ElfSection(*header) for header in headers]
        labels = [_text(cubin, sections[names], section.name) for section in sections]
        kinds = {
            number: label.startswith(_CONSTANT)
            for number, label in enumerate(labels)
            if label.startswith((_DEVICE, _CONSTANT))
        }
        return dict(_objects(cubin, sections, kinds))
    except (struct.error, IndexError, UnicodeDecodeError, ZeroDivisionError, ValueError, OverflowError) as error:
        raise MalformedCubinError(f"malformed: {error}") from None


def _objects(
    cubin: bytes, sections: list[_ElfSection], kinds: Mapping[int, bool]
) -> Iterator[tuple[str, ModuleVariable]]:
    """Variables of the sections that `kinds` names by number, with true for those of constants."""
    for table in sections:
        if table.kind != _SYMBOL_TABLE:
            continue
        for number in range(table.size // table.entry_bytes):
            name, info, section, _, size = _SYMBOL.unpack_from(cubin, table.begin + number * table.entry_bytes)
            if info & _TYPE_MASK == _OBJECT and section in kinds and size:
                yield _text(cubin, sections[table.link], name), ModuleVariable(size, kinds[section])


def _text(cubin: bytes, strings: _ElfSection, offset: int) -> str:
    begin = strings.begin + offset
    return cubin[begin : cubin.index(b"\0", begin)].decode()
