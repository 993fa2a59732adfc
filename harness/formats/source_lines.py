"""Line numbers of the fields of a JSON or YAML text, for error messages.

`harness.formats.bounded` parses JSON into values without positions. A second walk over the text finds the positions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined] # untyped
from typing import Any

import yaml

from harness.errors import FormatError
from harness.formats.bounded import DOCUMENT_BYTES, PROBLEM_BYTES, compose_yaml, load_json, value_of

FieldPath = tuple[str | int, ...]
"""Keys and indices from the top of a document to a field."""

_SPACE = re.compile(r"[ \t\r\n]*")
_ATOM = re.compile(
    r"true|false|null|-?\d+(?![\d.eE])|(?P<float>NaN|-?Infinity|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", re.ASCII
)
_YAML_KINDS = frozenset({"str", "int", "float", "bool", "null"})


class _RefusedError(ValueError):
    """A JSON text with a duplicate key or a number that is not finite, which `json` accepts."""


def field_name(path: FieldPath) -> str:
    """Return the name of a field for messages, such as `axes.hidden.value` or `inputs.x.shape[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text.encode("utf-8", "replace").decode()  # a single surrogate cannot be printed


def parse_json(text: str, *, where: str, first_line: int = 1) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the value of a JSON text; duplicate keys, NaN and infinities are errors.

    Raises:
        FormatError: the text is invalid; the error names the line.
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
    _check_encodable(value, where)
    return value


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines of a text that are not blank, with their numbers from 1."""
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def json_lines(text: str) -> dict[FieldPath, int]:
    """Return the line of every field of a JSON text that `parse_json` accepts; for a member the line of its key."""
    walk = _JsonWalk(text, 1)
    walk.run()
    return walk.lines


def _refusal(text: str, where: str, first_line: int) -> FormatError:
    """Return an error for the first duplicate key or non-finite number; the text after it may not be JSON."""
    walk = _JsonWalk(text, first_line)
    try:
        walk.run()
    except _RefusedError as error:
        return FormatError(str(error), where=f"{where}:{walk.line}")
    raise AssertionError(text)


def _check_encodable(value: object, where: str) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str) and not _is_encodable(item):
            raise FormatError(f"{item[:40]!a} holds half of a surrogate pair; expected text", where=where)
        if isinstance(item, dict):
            stack += [part for pair in item.items() for part in pair]
        elif isinstance(item, list):
            stack += item


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _RefusedError
    return mapping


def _refuse(_: str) -> float:
    raise _RefusedError


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError
    return value


class _JsonWalk:
    """A walk over a JSON text that collects the lines of fields, and ends at the first reason of a `_RefusedError`.

    The text must be valid up to there.
    """

    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.lines: dict[FieldPath, int] = {}
        self.line = first_line
        """Line of the last key or value."""
        self._counted_to = 0

    def run(self) -> None:
        self._value(self._skip(0), ())

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def _line_of(self, at: int) -> int:
        self.line += self.text.count("\n", self._counted_to, at)
        self._counted_to = at
        return self.line

    def _value(self, at: int, path: FieldPath) -> int:
        self.lines.setdefault(path, self._line_of(at))
        character = self.text[at]
        if character in "{[":
            return self._items(at, path, closing="}" if character == "{" else "]")
        if character == '"':
            return int(scanstring(self.text, at + 1)[1])
        atom = _ATOM.match(self.text, at)
        assert atom is not None, path  # noqa: S101 - the text is valid
        if atom["float"] and not math.isfinite(float(atom["float"])):
            raise _RefusedError(f"`{field_name(path)}` is {atom[0]}; expected a finite number")
        return atom.end()

    def _items(self, at: int, path: FieldPath, *, closing: str) -> int:
        at, index = self._skip(at + 1), 0
        while self.text[at] != closing:
            item_path: FieldPath = (*path, index)
            if closing == "}":
                line = self._line_of(at)
                key, at = scanstring(self.text, at + 1)
                item_path = (*path, key)
                if item_path in self.lines:
                    raise _RefusedError(f"`{field_name(item_path)}` is given twice; expected each key once")
                self.lines[item_path] = line
                at = self._skip(self._skip(at) + 1)
            at = self._skip(self._value(at, item_path))
            index += 1
            if self.text[at] == ",":
                at = self._skip(at + 1)
        return at + 1


def parse_yaml(text: str, *, where: str) -> tuple[Any, dict[FieldPath, int]]:
    """Return the value of a YAML document and the line of each of its fields.

    In addition to the checks of `harness.formats.bounded`, this refuses keys that are not strings or are duplicates,
    numbers that are not finite, and more than one document.

    Raises:
        FormatError: the text is invalid; the error names the line.
    """
    node = compose_yaml(text, where=where, max_bytes=DOCUMENT_BYTES)
    lines: dict[FieldPath, int] = {}
    if node is None:
        return None, lines
    _collect_lines(node, (), lines, where)
    value = value_of(node, where=where)
    _check_encodable(value, where)
    return value, lines


def _collect_lines(node: yaml.Node, path: FieldPath, lines: dict[FieldPath, int], where: str) -> None:
    """Add the line of each field below a node to `lines`, and check keys and values."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*path, index), lines, where)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            at = f"{where}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                name = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                raise FormatError(f"the key `{name}` is not a string; quote it or rename it", where=at)
            value_path = (*path, key.value)
            if value_path in lines:
                raise FormatError(f"`{field_name(value_path)}` is given twice; expected each key once", where=at)
            lines[value_path] = key.start_mark.line + 1
            _collect_lines(value, value_path, lines, where)
    elif node.tag.removeprefix("tag:yaml.org,2002:") not in _YAML_KINDS:
        kind = node.tag.rpartition(":")[2]
        raise FormatError(
            f"`{field_name(path)}` is a {kind}; expected plain values (quote it)", where=f"{where}:{line}"
        )
    elif node.tag == "tag:yaml.org,2002:float" and not math.isfinite(value_of(node, where=where)):
        raise FormatError(f"`{field_name(path)}` is {node.value}; expected a finite number", where=f"{where}:{line}")


def line_of(lines: Mapping[FieldPath, int], path: FieldPath) -> int | None:
    """Return the line of a field; of the nearest enclosing field if the text does not contain it.

    Args:
        lines: line of each field in the text.
        path: keys and indices from the top of the document to the field.
    """
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None
