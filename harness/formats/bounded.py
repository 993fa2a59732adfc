"""Bounded parsing: every YAML and JSON text of the package is parsed here, after a check of its size and nesting.

libyaml's composer and `json` recurse for each level of nesting. 50,000 brackets in an agent's file overflow the C stack
and crash the process, so nesting levels are counted on tokens before parsing. Anchors and aliases are refused: nine
short lines of them expand to gigabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from harness.errors import FormatError

MAX_DEPTH = 50
"""Maximum levels of lists and mappings. The deepest document of the harness has five."""
DOCUMENT_BYTES = 2**20
"""Limit of a document by people or agents: solution.yaml, harness.yaml, COORDINATION.md, a tool's arguments."""
PROBLEM_BYTES = 64 * 2**20
"""Limit of definition.json, workload.jsonl and solution.json; the largest published ones have less than 1 MB."""
LEDGER_BYTES = 64 * 2**20
"""Limit of one ledger document and of heads.yaml; an entry of a hundred workloads has about 50 KB."""
RECORD_BYTES = 16 * 2**20
"""Limit of a state file or message that this package writes."""
TENSOR_HEADER_BYTES = 100 * 2**20
"""Limit of a safetensors header, which the format defines."""
_MAX_NUMBER_CHARACTERS = 1000
"""Python's conversion of numbers takes quadratic time, and refuses more than 4300 digits."""
_MAX_DIRECTIVES = 16
"""libyaml compares each %TAG line with all other %TAG lines."""

_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_ALIAS = "an anchor or alias; expected plain values"
_FLATTEN = f"write it with at most {MAX_DEPTH} levels of lists and mappings"
_JSON_TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F_]++|0b[01_]++|[0-9.][-+0-9_:.eE]*+)")
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_COLLECTION_TAGS = frozenset({None, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_CONSTRUCTOR_ERRORS = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
"""Errors that PyYAML's constructors raise besides YAMLError: for `!!bool maybe`, `!!int ''` or an impossible date."""


def read_bytes(path: Path, *, max_bytes: int, where: str | None = None) -> bytes:
    """Return a file's content.

    Args:
        where: the file's name in errors; None for its path.

    Raises:
        FormatError: the file is larger than `max_bytes`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(max(path.stat().st_size, len(content)), max_bytes, where or str(path))
    return content


def load_json_file(path: Path, *, max_bytes: int = RECORD_BYTES) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the value of a JSON file.

    Raises:
        FormatError: the content is too large, nested too deeply, or not JSON.
        OSError: the file cannot be read.
    """
    return load_json(read_bytes(path, max_bytes=max_bytes), where=str(path), max_bytes=max_bytes)


def load_json(
    text: str | bytes | bytearray,
    *,
    where: str,
    max_bytes: int = RECORD_BYTES,
    first_line: int = 1,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the value of a JSON text.

    Args:
        text: the text, or its UTF-8 bytes.
        where: the file or message, for errors.
        object_pairs_hook: as for `json.loads`. This and the next two hooks may raise a subclass of ValueError, which
            is not converted.
        parse_constant: called for NaN and infinities.
        parse_float: called for numbers with a fraction or exponent.

    Raises:
        FormatError: the text is too large, nested too deeply, or not JSON; the error names the line.
    """
    check_size(text, where=where, max_bytes=max_bytes)
    if not isinstance(text, str):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            line = first_line + error.object.count(b"\n", 0, error.start)
            raise FormatError(f"not JSON: not UTF-8 text at byte {error.start}", where=f"{where}:{line}") from error
    _check_json_depth(text, where, first_line)
    try:
        return json.loads(
            text, object_pairs_hook=object_pairs_hook, parse_constant=parse_constant, parse_float=parse_float
        )
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise FormatError(
            f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}", where=f"{where}:{line}"
        ) from error
    except ValueError as error:
        if type(error) is not ValueError:
            raise  # an error of a hook
        raise FormatError("not JSON: a number has too many digits", where=where) from error


def load_yaml(text: str | bytes, *, where: str, max_bytes: int) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the value of a YAML text of one document.

    Args:
        text: the text, or its bytes.

    Raises:
        FormatError: the text is too large, nested too deeply, not YAML, or contains an anchor or alias; the error
            names the line.
    """
    node = compose_yaml(text, where=where, max_bytes=max_bytes)
    return None if node is None else value_of(node, where=where)


def compose_yaml(
    text: str | bytes, *, where: str, max_bytes: int, marks_count_characters: bool = False
) -> yaml.Node | None:
    """Return the root node of a YAML text of one document; None for a text without a document.

    Args:
        text: the text, or its bytes.
        marks_count_characters: use the pure-Python loader, whose marks index characters of the text. It is twenty
            times slower.

    Raises:
        FormatError: as for `load_yaml`.
    """
    check_size(text, where=where, max_bytes=max_bytes)
    directives = re.findall(rb"(?m)^%", text) if isinstance(text, bytes) else re.findall(r"(?m)^%", text)
    if len(directives) > _MAX_DIRECTIVES:
        raise FormatError(f"more than {_MAX_DIRECTIVES} lines begin with `%`; expected plain values", where=where)
    loader = yaml.SafeLoader if marks_count_characters else yaml.CSafeLoader
    try:
        _check_yaml_events(text, where)
        node: yaml.Node | None = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from error
    except ValueError as error:  # a single surrogate has no UTF-8 form
        raise FormatError(f"not YAML: {error}", where=where) from error
    return node


def value_of(node: yaml.Node, *, where: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the value of a node.

    Args:
        node: the root node from `compose_yaml`.

    Raises:
        FormatError: a scalar does not fit its tag, such as an impossible date.
    """
    try:
        return yaml.CSafeLoader("").construct_document(node)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from error
    except _CONSTRUCTOR_ERRORS as error:
        raise FormatError(f"not YAML: {error or type(error).__name__}", where=where) from error


def check_size(text: str | bytes | bytearray, *, where: str, max_bytes: int = DOCUMENT_BYTES) -> None:
    """Check the size of a text.

    Args:
        text: the text, or its bytes.
        max_bytes: the largest allowed size as UTF-8.

    Raises:
        FormatError: the text has more than `max_bytes` bytes.
    """
    size = len(text)
    if isinstance(text, str) and size * 4 > max_bytes:
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise _too_large(size, max_bytes, where)


def _too_large(size: int, max_bytes: int, where: str) -> FormatError:
    return FormatError(f"{size} bytes; expected at most {max_bytes}", where=where, remedy="make it smaller")


def _check_json_depth(text: str, where: str, first_line: int) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _JSON_TOKENS.finditer(text):
        character = text[token.start()]
        if character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                line = first_line + text.count("\n", 0, token.start())
                raise FormatError(_TOO_DEEP, where=f"{where}:{line}", remedy=_FLATTEN)
        elif character in "]}":
            depth -= 1


def _check_yaml_events(text: str | bytes, where: str) -> None:
    """Check the events of the first document; libyaml's parser does not recurse, unlike its composer."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        refusal = None
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            refusal = _ALIAS
        elif isinstance(event, yaml.ScalarEvent):
            refusal = _scalar_refusal(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            refusal = _collection_refusal(event, depth)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentEndEvent):
            return
        if refusal is not None:
            line = event.start_mark.line + 1 if event.start_mark else 1
            remedy = _FLATTEN if refusal is _TOO_DEEP else None
            raise FormatError(refusal, where=f"{where}:{line}", remedy=remedy)


def _collection_refusal(event: yaml.CollectionStartEvent, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return _TOO_DEEP
    return None if event.tag in _COLLECTION_TAGS else "a list or mapping with a tag; expected plain values"


def _scalar_refusal(event: yaml.ScalarEvent) -> str | None:
    if len(event.value) > _MAX_NUMBER_CHARACTERS and (
        event.tag in _NUMBER_TAGS or (event.implicit[0] and _NUMBER.fullmatch(event.value))
    ):
        return f"a number of {len(event.value)} characters; expected at most {_MAX_NUMBER_CHARACTERS}"
    return None


def _not_yaml(error: yaml.YAMLError, where: str) -> FormatError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return FormatError(f"not YAML: {problem}", where=f"{where}:{mark.line + 1}" if mark else where)
