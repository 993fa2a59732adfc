"""Check the measurable rules of plain language (CONTRIBUTING.md): `python -m tests.language.check [PATH ...]`."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.language.rules import ALLOWED, LONGEST_SENTENCE, QUESTION_WORDS, VAGUE_NAMES, WORD_PATTERN

ROOT = Path(__file__).parents[2]
SOURCES = ("harness", "tests", "benchmarks", "docs", "README.md", "CONTRIBUTING.md")
# Samples for agents are in the style of solutions, starter problems are data, and the rules contain what they forbid.
EXCLUDED = (
    "harness/agents/docs",
    "harness/_starter",
    "harness/_problems",
    "tests/language/rules.py",
    "tests/language/test_check.py",
)
_PROSE = re.compile(r"\w \w")  # a string with at least two words is a message; others are keys and identifiers
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Violation:
    """A place that does not follow a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def violations(path: Path) -> list[Violation]:
    """Return the violations in a Python file or a document, in order of their lines."""
    source = path.read_text()
    of_file = [*_of_python(path, source)] if path.suffix == ".py" else [*_of_words(path, 1, _without_code(source))]
    return sorted(of_file, key=lambda violation: violation.line)


def _of_python(path: Path, source: str) -> Iterator[Violation]:
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
            constant = node.body[0].value  # type: ignore[attr-defined]
            docstrings.add(id(constant))
            yield from _of_docstring(path, constant.lineno, docstring)
        for name, line in _bound_names(node):
            if name.strip("_") in VAGUE_NAMES and name not in ALLOWED:
                yield Violation(path, line, "vague name", name)
    yield from _of_strings(path, tree, docstrings)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _of_words(path, token.start[0], token.string)


def _of_docstring(path: Path, line: int, docstring: str) -> Iterator[Violation]:
    opening = re.split(r"\W", docstring, maxsplit=1)[0]
    if opening in QUESTION_WORDS:
        yield Violation(path, line, "docstring opens with a question word", docstring.splitlines()[0])
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n\s+\w+: ", docstring):
        for sentence in re.split(r"(?<=[.;:])\s+", paragraph):
            if (words := len(sentence.split())) > LONGEST_SENTENCE:
                yield Violation(path, line, f"sentence of {words} words", " ".join(sentence.split())[:80])
    yield from _of_words(path, line, docstring)


def _of_words(path: Path, line: int, text: str) -> Iterator[Violation]:
    for match in WORD_PATTERN.finditer(text):
        if match[0] not in ALLOWED:
            context = " ".join(text[max(0, match.start() - 30) : match.end() + 30].split())
            yield Violation(path, line + text.count("\n", 0, match.start()), f"word `{match[0]}`", context)


def _of_strings(path: Path, tree: ast.Module, docstrings: set[int]) -> Iterator[Violation]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if _PROSE.search(node.value):
            yield from _of_words(path, node.lineno, node.value)


def _bound_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno
    elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name.lower(), node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno


def _without_code(text: str) -> str:
    """Return a Markdown text with its code blocks and code spans blanked, so that line numbers stay."""
    blanked = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", blanked)


def files(paths: list[Path]) -> list[Path]:
    """Return the Python and Markdown files of files and directories, without the excluded ones."""
    listed = [
        file
        for path in paths
        for file in (sorted([*path.rglob("*.py"), *path.rglob("*.md")]) if path.is_dir() else [path])
    ]
    excluded = [ROOT / directory for directory in EXCLUDED]
    return [file for file in listed if not {file.resolve(), *file.resolve().parents}.intersection(excluded)]


def main() -> int:
    """Print each violation and return 1 if there is one."""
    paths = [Path(argument) for argument in sys.argv[1:]] or [ROOT / source for source in SOURCES]
    violations_of_all = [violation for file in files(paths) for violation in violations(file)]
    for violation in violations_of_all:
        sys.stdout.write(f"{violation}\n")
    return 1 if violations_of_all else 0


if __name__ == "__main__":
    raise SystemExit(main())
