"""Hash of a solution's source that formatting does not change, to count candidates that are nearly identical.

Comments, whitespace and formatting do not count. In Python, docstrings and the names of local variables do not either;
for C++ and CUDA the standard library has no parser, and the hash of the compiled code shows renamed variables.
Information only: equal hashes do not prove that two programs are the same, and no verdict follows from them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import symtable
import warnings
from collections.abc import Iterator
from pathlib import PurePath

from harness.model.solution import Solution

_LARGEST = 1 << 16
"""Bytes of a file beyond which it counts as it is: the daemon normalises in its loop, about 1 ms for 10 kB."""
_MAX_RAW_STRINGS = 100
"""Each one without an end costs a look at the rest of the file."""
_CPP_SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".inl"}
_CPP_TOKEN = re.compile(
    r"""
    (?P<blank> (?: \s | //[^\n]* | /\*.*?(?:\*/|\Z) )+ )
  | (?P<raw> (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)" )
  | (?P<text> (?:u8|[uUL])?"(?:[^"\\\n]|\\.)*" | [uUL]?'(?:[^'\\\n]|\\.)*' )
  | (?P<number> \.?\d(?:[\w.]|(?<=[eEpP])[+-]|'(?=\w))* )
  | (?P<word> \w+ )
  | (?P<mark> <<=|>>=|\.\.\.|<=>|->\*|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|. )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTINUED = re.compile(r"\\\r?\n")
_NOT_COMPARED = {"notes", "tune"}
"""Keys of solution.yaml that change nothing about the candidate that is measured."""


def source_hash(solution: Solution) -> str:
    """Return `sha256:...` of a solution's sources and settings, as they are after normalisation."""
    spec = solution.spec.model_dump(mode="json", exclude=_NOT_COMPARED)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for name in solution.sources:
        content = normalised(name, (solution.directory / name).read_bytes())
        digest.update(f"\n{name}\n{len(content)}\n".encode() + content)
    return f"sha256:{digest.hexdigest()}"


def normalised(name: str, content: bytes) -> bytes:
    """Return a source file without its formatting; unchanged if it is large, not text, or in another language.

    Args:
        name: the file's name, whose suffix is that of its language.
    """
    suffix = PurePath(name).suffix
    if len(content) > _LARGEST or (suffix != ".py" and suffix not in _CPP_SUFFIXES):
        return content
    try:
        text = content.decode()
        return (_python(text) if suffix == ".py" else _cpp(text)).encode(errors="surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return content  # a program that cannot be parsed is compared as it is


def _cpp(text: str) -> str:
    """Return C++ or CUDA as tokens. A preprocessor line keeps its end, and its spaces as one space each.

    Raises:
        ValueError: the text has too many raw strings, which take long.
    """
    if text.count('R"') > _MAX_RAW_STRINGS:
        raise ValueError("too many raw strings")
    pieces: list[str] = []
    directive = False
    for match in _CPP_TOKEN.finditer(_CONTINUED.sub("", text)):
        word = match[0]
        if match["blank"] is None:
            directive = directive or (word.startswith("#") and (not pieces or pieces[-1] == "\n"))
            pieces.append(word)
        elif "\n" in word and not _is_within_comments(word):
            pieces += ["\n"] if directive or (pieces and pieces[-1] != "\n") else []
            directive = False
        elif directive:
            pieces.append(" ")
    return " ".join(_lines(pieces))


def _is_within_comments(blank: str) -> bool:
    """Return true if each line end is within a block comment, which does not end a preprocessor line."""
    return "\n" not in re.sub(r"/\*.*?\*/", "", blank, flags=re.DOTALL)


def _lines(pieces: list[str]) -> Iterator[str]:
    """Yield tokens; line ends only around preprocessor lines."""
    line: list[str] = []
    for piece in [*pieces, "\n"]:
        if piece != "\n":
            line.append(piece)
        elif line and line[0] == "#":
            yield "\n" + "".join(line).strip() + "\n"
            line = []
        else:
            yield from line
            line = []


def _python(text: str) -> str:
    """Return the syntax tree of Python as text, without docstrings and with numbers for the names of local variables.

    Raises:
        SyntaxError: it is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the candidate's code
        tree = ast.parse(text)
        functions = _functions(symtable.symtable(text, "solution", "exec"))
    unchanged_names = {_name_as_text(node) for node in ast.walk(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    for node in _outermost(tree):
        table = functions.get((node.name, node.lineno)) or functions.get((node.name, _first_line(node)))
        if table is not None:
            _LocalNames(_local_names(table) - unchanged_names - _names_of_head(node)).generic_visit(node)
    return ast.dump(tree)


def _functions(table: symtable.SymbolTable) -> dict[tuple[str, int], symtable.SymbolTable]:
    """Return the outermost functions by name and line."""
    tables: dict[tuple[str, int], symtable.SymbolTable] = {}
    for child in table.get_children():
        if child.get_type() == "function":
            tables[child.get_name(), child.get_lineno()] = child
        else:
            tables |= _functions(child)
    return tables


def _outermost(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _outermost(node)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line of the first decorator, which a symbol table may give as the line of the function."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _local_names(table: symtable.SymbolTable) -> set[str]:
    """Return the variables of a function and of those within it that are not global in any of them."""
    local: set[str] = set()
    global_names: set[str] = set()
    tables = [table]
    while tables:
        scope = tables.pop()
        tables += scope.get_children()
        for symbol in scope.get_symbols():
            bound_here = symbol.is_local() or symbol.is_free()
            (local if bound_here and scope.get_type() == "function" else global_names).add(symbol.get_name())
    return local - global_names


def _name_as_text(node: ast.AST) -> str | None:
    """Return a name that a node holds other than as a variable: it and variables of the same name stay."""
    match node:
        case ast.keyword(arg=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.MatchMapping(rest=name):
            return name
        case ast.alias(name=name, asname=asname):
            return asname or name.partition(".")[0]
        case _:
            return None


def _names_of_head(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names in decorators, defaults and annotations: those are not the function's own variables."""
    signature = node.args
    arguments = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, signature.vararg, signature.kwarg]
    annotations = [argument.annotation for argument in arguments if argument is not None]
    parts = [*node.decorator_list, *signature.defaults, *signature.kw_defaults, *annotations, node.returns]
    return {name.id for part in parts if part for name in ast.walk(part) if isinstance(name, ast.Name)}


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]


class _LocalNames(ast.NodeTransformer):
    """Replaces names by numbers, in the order in which they appear."""

    def __init__(self, names: set[str]) -> None:
        self._names, self._numbers = names, dict[str, str]()

    def _number(self, name: str) -> str:
        return self._numbers.setdefault(name, f"#{len(self._numbers)}") if name in self._names else name

    def visit(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Name():
                node.id = self._number(node.id)
            case ast.arg():
                node.arg = self._number(node.arg)
            case ast.Nonlocal():
                node.names = [self._number(name) for name in node.names]
            case ast.ExceptHandler(name=str(name)):
                node.name = self._number(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                node.name = self._number(node.name)
        return self.generic_visit(node)
