"""Validation of parsed documents with pydantic. Each error becomes one sentence with the actual and expected value."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import FormatError
from harness.formats.source_lines import FieldPath, field_name, line_of
from harness.model.printable import shortened

Model = TypeVar("Model", bound=BaseModel)
FieldError = tuple[FieldPath, str]
"""FieldPath of a field, and what is wrong with it."""

_EXPECTED: Mapping[str, str] = {
    "string_type": "a string",
    "string_too_short": "a non-empty string",
    **dict.fromkeys(("int_type", "int_from_float"), "an integer"),
    "int_parsing_size": "a smaller integer",
    "float_type": "a number",
    "bool_type": "true or false",
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "an object"),
    "finite_number": "a finite number",
}
_EXPECTED_WHEN_MISSING: Mapping[str, str] = {
    **dict.fromkeys(("name", "uuid", "author"), "a non-empty string"),
    **dict.fromkeys(("axes", "inputs", "outputs", "spec"), "an object"),
    **dict.fromkeys(("entry", "entry_point"), "`file::function`"),
    "type": "a kind",
    "value": "a number",
    "expression": "an expression over axes",
    "reference": "Python source in a string",
    "shape": "a list of axes, or null for a scalar",
    "dtype": "the name of a dtype",
    "path": "a relative path",
    "content": "the text of the file",
    "tensor_key": "the name of a tensor in the file",
    "language": "one of cuda, triton, cute_dsl, pytorch, cuda_cpp, cpp",
    "target_hardware": "a list of names",
    "sources": "a list of files",
    "definition": "the name of the problem's definition",
}
"""Expected values of missing keys, which pydantic's errors do not contain."""
_LONGEST_QUOTE = 60


def shown(path: Path) -> str:
    """Return a path for messages: relative to the working directory if the file is below it, else as it is."""
    try:
        relative = os.path.relpath(path)
    except (ValueError, OSError):
        return str(path)
    return str(path) if relative.startswith("..") else relative


def located(message: str, path: FieldPath, *, where: str, lines: Mapping[FieldPath, int]) -> FormatError:
    """Return an error about one field, with its line.

    Args:
        path: keys and indices from the top of the document to the field.
    """
    line = line_of(lines, path)
    return FormatError(message, where=f"{where}:{line}" if line else where)


def validated(
    model: type[Model], value: object, *, where: str, lines: Mapping[FieldPath, int]
) -> tuple[Model | None, list[FormatError]]:
    """Return the model of a parsed document, or None and all errors in the order of their lines."""
    if not isinstance(value, dict):
        return None, [located(f"{quoted(value)} at the top; expected an object", (), where=where, lines=lines)]
    try:
        # In JSON mode, strict validation accepts the file's types: a list is a valid tuple, but 4096.0 is no integer
        # and "1" is no number.
        return model.model_validate_json(json.dumps(value, default=_not_json), strict=True), []
    except ValidationError as error:
        messages = _messages(error.errors(), value, model)
        errors = [located(message, path, where=where, lines=lines) for path, message in messages]
        return None, sorted(errors, key=_line)


def _line(error: FormatError) -> int:
    """Return the line that an error names; 0 if it names none."""
    suffix = (error.where or "").rpartition(":")[2]
    return int(suffix) if suffix.isdigit() else 0


def quoted(value: object) -> str:
    """Return a value for messages: as JSON, cut to 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_not_json)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return shortened(text, _LONGEST_QUOTE)


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """Return `did you mean X?`, or the list of valid names if none is similar.

    Args:
        name: a name that is not valid.
        valid_names: names that are.
    """
    names = list(valid_names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else "expected one of " + ", ".join(f"`{n}`" for n in names)


def extra_keys(model: BaseModel, path: FieldPath = ()) -> list[FieldPath]:
    """Return the paths of the keys that are not fields of a model, which it kept.

    Args:
        model: a model with `extra="allow"`, which may contain further models.
        path: path of the model in its document.
    """
    paths: list[FieldPath] = [(*path, name) for name in model.model_extra or ()]
    for name in type(model).model_fields:
        paths += _extras_below(getattr(model, name), (*path, name))
    return paths


def _extras_below(value: object, path: FieldPath) -> list[FieldPath]:
    if isinstance(value, BaseModel):
        return extra_keys(value, path)
    if isinstance(value, Mapping):
        return [extra for key, item in value.items() for extra in _extras_below(item, (*path, key))]
    return []


def _not_json(value: object) -> str:
    """Return text for a YAML value without a JSON type, such as a date; it is valid only where a string is."""
    return f"{type(value).__name__} {value}"


def _messages(errors: list[ErrorDetails], value: object, model: type[BaseModel]) -> list[tuple[FieldPath, str]]:
    merged: dict[FieldPath, list[ErrorDetails]] = {}
    for error in errors:
        merged.setdefault(_path_in_document(error, value), []).append(error)
    # pydantic also reports a list with invalid items as too short; the items' own errors are enough.
    return [
        (path, _sentence(path, group, value, model))
        for path, group in merged.items()
        if group[0]["type"] != "too_short"
        or not any(other_path[: len(path)] == path != other_path for other_path in merged)
    ]


def _path_in_document(error: ErrorDetails, value: object) -> FieldPath:
    """Return an error's path without the members of unions, which pydantic adds and documents do not have."""
    path: list[str | int] = []
    node = value
    for part in error["loc"]:
        if isinstance(node, dict):
            if part in node:
                node = node[part]
            elif part == node.get("type") or error["type"] != "missing":
                continue
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            break
        path.append(part)
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        path.append("type")
    return tuple(path)


def _sentence(path: FieldPath, group: list[ErrorDetails], value: object, model: type[BaseModel]) -> str:
    name, kinds = field_name(path), [error["type"] for error in group]
    first = group[0]
    if "missing" in kinds:
        return f"`{name}` is missing; expected {_EXPECTED_WHEN_MISSING.get(str(path[-1]), 'a value')}"
    if "extra_forbidden" in kinds:
        fields = _fields_at(model, path[:-1])
        return f"`{name}` is not a key here; {did_you_mean(str(path[-1]), fields)}"
    if first["type"] == "union_tag_not_found":
        return f"`{name}` is missing; expected one of {_tags(first)}"
    if first["type"] == "union_tag_invalid":
        return f"`{name}` is {quoted(first['ctx']['tag'])}; expected one of {_tags(first)}"
    expectations = list(dict.fromkeys(_expectation(error) for error in group))
    if "a number" in expectations and "an integer" in expectations:
        expectations.remove("an integer")
    expected = ", ".join(expectations[:-1]) + (" or " if len(expectations) > 1 else "") + expectations[-1]
    return f"`{name}` is {quoted(_at(value, path))}; expected {expected}"


def _tags(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    tags: str = context.get("expected_tags", "'const', 'var', 'expr'")
    return tags.replace("'", '"')


def _expectation(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            return f"a number of at least {context['ge']:g}"
        case "less_than_equal":
            return f"a number of at most {context['le']:g}"
        case "literal_error":
            return "one of " + str(context["expected"]).replace("'", '"').replace(" or ", ", ")
        case "too_short" | "too_long":
            minimum, maximum = context.get("min_length"), context.get("max_length")
            return f"at least {minimum} of them" if minimum is not None else f"at most {maximum} of them"
        case kind:
            message = error["msg"]
            return _EXPECTED.get(kind, message[:1].lower() + message[1:])


def _at(value: object, path: FieldPath) -> object:
    for part in path:
        if isinstance(value, dict | list):
            value = value[part]  # type: ignore[index] # the path was walked on this value
    return value


def _fields_at(model: type[BaseModel], path: FieldPath) -> list[str]:
    """Return the keys of the section at a path."""
    for part in path:
        field = model.model_fields.get(str(part))
        model = next(_kinds(field.annotation), model) if field else model
    return list(model.model_fields)


def _kinds(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _kinds(part)
