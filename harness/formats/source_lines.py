"""Where each field of a JSON or YAML text stands, so that an error can name its line.

`harness.formats.bounded` parses. Its values carry no positions, so a second, slower walk over the text finds them, and
only when there is an error to report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined] # untyped
from typing import Any

import yaml

from harness.errors import FormatError
from harness.formats.bounded import DOCUMENT_BYTES, MAX_DEPTH, PROBLEM_BYTES, compose_yaml, load_json, value_of

Path = tuple[str | int, ...]
"""Keys and indices from the top of a document to a field."""

_SPACE = re.compile(r"[ \t\r\n]*")
_ATOM = re.compile(r"[A-Za-z0-9.+-]+")
_YAML_KINDS = frozenset({"str", "int", "float", "bool", "null"})


class _RefusedError(ValueError):
    """What `json` would accept and we do not: a key twice, a number that is not finite."""


def field_name(path: Path) -> str:
    """`axes.hidden.value`, `inputs.x.shape[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair could not be printed


def parse_json(text: str, *, where: str, first_line: int = 1) -> Any:  # noqa: ANN401 - whatever the text holds
    """The value of a JSON text; duplicate keys, NaN and infinities are errors.

    Raises:
        FormatError: naming the line (counted from `first_line`).
    """
    try:
        value = load_json(
            text,
            where=where,
            max_bytes=PROBLEM_BYTES,
            first_line=first_line,
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
        )
    except _RefusedError as error:
        raise _refusal(text, where, first_line) from error
    _check_printable(value, where)
    return value


def json_lines(text: str, first_line: int = 1) -> dict[Path, int]:
    """The line of every field of a JSON text that `parse_json` accepts; of a key where there is one."""
    found = _JsonLines(text, first_line)
    found.walk()
    return found.lines


def _refusal(text: str, where: str, first_line: int) -> FormatError:
    """The first key given twice or number that is not finite; what follows it may not even be JSON."""
    found = _JsonLines(text, first_line)
    try:
        found.walk()
    except (ValueError, IndexError):
        if not found.refused:
            return FormatError("not JSON: a key is given twice, or a number is not finite", where=where)
    path, line, what = found.refused[0]
    return FormatError(f"`{field_name(path)}` {what}", where=f"{where}:{line}")


def _check_printable(value: object, where: str) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and not _printable(item):
            raise FormatError(f"{item[:40]!a} holds half of a surrogate pair; expected text", where=where)
        if isinstance(item, dict):
            waiting += [part for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += item


def _printable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RefusedError
    return found


def _refuse(_: str) -> float:
    raise _RefusedError


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError
    return value


class _JsonLines:
    """A walk over a text that `json` has accepted, or refused for something the walk finds again."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.lines: dict[Path, int] = {}
        self.refused: list[tuple[Path, int, str]] = []
        self._counted_to = 0
        self._line = first_line

    def walk(self) -> None:
        self._value(self._skip(0), ())

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def _line_of(self, at: int) -> int:
        self._line += self.text.count("\n", self._counted_to, at)
        self._counted_to = at
        return self._line

    def _value(self, at: int, path: Path) -> int:
        if len(path) > MAX_DEPTH:  # only in what follows a refused value, which `load_json` has not reached
            raise ValueError(field_name(path[:1]))
        self.lines.setdefault(path, self._line_of(at))
        head = self.text[at]
        if head == "{":
            return self._items(at, path, closing="}")
        if head == "[":
            return self._items(at, path, closing="]")
        if head == '"':
            return int(scanstring(self.text, at + 1)[1])
        atom = _ATOM.match(self.text, at)
        if atom is None:
            raise ValueError(head)
        if head not in "tfn" and not math.isfinite(float(atom[0])):
            self.refused.append((path, self._line_of(at), f"is {atom[0]}; expected a finite number"))
        return atom.end()

    def _items(self, at: int, path: Path, *, closing: str) -> int:
        keys: set[str] = set()
        at, index = self._skip(at + 1), 0
        while self.text[at] != closing:
            part: str | int = index
            if closing == "}":
                key_at = at
                key, at = scanstring(self.text, at + 1)
                part = str(key)
                line = self._line_of(key_at)
                if part in keys:
                    what = "is given twice; expected each key once"
                    self.refused.append(((*path, part), line, what))
                keys.add(part)
                self.lines[*path, part] = line
                at = self._skip(self._skip(at) + 1)
            at = self._skip(self._value(at, (*path, part)))
            index += 1
            if self.text[at] not in {",", closing}:
                raise ValueError(self.text[at])
            if self.text[at] == ",":
                at = self._skip(at + 1)
        return at + 1


def parse_yaml(text: str, *, where: str) -> tuple[Any, dict[Path, int]]:
    """The value of a YAML document and the line of each of its fields.

    Refused, besides what `harness.formats.bounded` refuses: keys that are not strings or come twice, numbers that are
    not finite, more than one document.

    Raises:
        FormatError: naming the line.
    """
    node = compose_yaml(text, where=where, max_bytes=DOCUMENT_BYTES)
    lines: dict[Path, int] = {}
    if node is None:
        return None, lines
    _mark(node, (), lines, where)
    value = value_of(node, where=where)
    _check_printable(value, where)
    return value, lines


def _mark(node: yaml.Node, path: Path, lines: dict[Path, int], where: str) -> None:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _mark(item, (*path, index), lines, where)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            at = f"{where}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                name = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                raise FormatError(f"the key `{name}` is not a string; quote it or rename it", where=at)
            below = (*path, key.value)
            if below in lines:
                raise FormatError(f"`{field_name(below)}` is given twice; expected each key once", where=at)
            lines[below] = key.start_mark.line + 1
            _mark(value, below, lines, where)
    elif node.tag.removeprefix("tag:yaml.org,2002:") not in _YAML_KINDS:
        kind = node.tag.rpartition(":")[2]
        raise FormatError(
            f"`{field_name(path)}` is a {kind}; expected plain values (quote it)", where=f"{where}:{line}"
        )
    elif node.tag == "tag:yaml.org,2002:float" and node.value.lower().lstrip("+-") in {".inf", ".nan"}:
        raise FormatError(f"`{field_name(path)}` is {node.value}; expected a finite number", where=f"{where}:{line}")


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a field, or of the nearest thing around it that is there."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None
