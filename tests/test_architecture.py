"""The direction of imports, and the import of each module alone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("architecture")  # in one process: each source is parsed once

PACKAGE = Path(__file__).parent.parent / "harness"
# Which packages a package may import, besides itself. Every other import between packages is an error.
_BASE = {"model", "formats", "workspace"}
_ABOVE_THE_LEDGER = {*_BASE, "git", "ledger"}
_BELOW_THE_COMMANDS = {"sol", "judge", "corpus", "cluster", "daemon", "planner", "simulation", "agents", "report"}
ALLOWED = {
    "model": set(),
    "formats": {"model"},
    "workspace": {"model", "formats"},
    "git": _BASE,
    "ledger": {*_BASE, "git"},
    "sol": _BASE,
    "runner": set(),
    "judge": {*_BASE, "sol", "runner"},
    "corpus": {*_BASE, "sol", "judge"},
    "cluster": {*_BASE, "judge"},  # imports only the judge's version
    "daemon": _ABOVE_THE_LEDGER,
    "planner": _ABOVE_THE_LEDGER,
    "simulation": {"model", "planner", "sol"},
    "agents": _ABOVE_THE_LEDGER,
    "report": _ABOVE_THE_LEDGER,
    "cli": {"", *_ABOVE_THE_LEDGER, *_BELOW_THE_COMMANDS},
    "": {*_ABOVE_THE_LEDGER, "agents", "cli"},  # supervise.py, run_end.py and __main__.py
}
# Small modules at the root of the package that anything but the runner may use.
LEAVES = {"harness", "harness.errors", "harness.failpoints"}
# Heavy or special libraries and the only packages that may import them.
ONLY_IN = {
    "torch": {"corpus", "judge", "runner", "sol"},
    "transformers": {"corpus"},
    "diffusers": {"corpus"},
    "git": {"git"},
    "optuna": {"agents"},
    "ray": {"cluster"},
    "simpy": {"simulation"},
    "claude_agent_sdk": {"agents"},
    "cupy": {"judge", "runner"},
    "cuda": {"judge", "runner"},
}


def modules() -> list[Path]:
    """Return the package's own modules, without shipped problems and examples for agents, which are solutions."""
    shipped = (PACKAGE / "_problems", PACKAGE / "agents" / "docs")
    return sorted(
        path for path in PACKAGE.rglob("*.py") if not any(path.is_relative_to(directory) for directory in shipped)
    )


def package_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a source's syntax tree."""
    return tuple(ast.walk(ast.parse(source)))


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the import statements of a file, at any level."""
    return tuple(node for node in nodes(path.read_text()) if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path) -> Iterator[str]:
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level:  # inside the sandbox the runner is a package of another name
            assert package_of(path) == "runner", f"{path}: relative import"
        else:
            yield node.module or ""


def violations(package: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the wrong imports of a file of a package."""
    for name in names:
        root = name.partition(".")[0]
        if root in ONLY_IN and package not in ONLY_IN[root]:
            yield f"only {sorted(ONLY_IN[root])} may import {root}"
        if root != "harness" or (name in LEAVES and package != "runner"):
            continue
        parts = name.split(".")
        target = parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ""
        if target != package and target not in ALLOWED[package]:
            yield f"{package or 'harness'} may not import {name}"


def test_imports_follow_the_arrows() -> None:
    files = modules()
    assert len(files) > 150
    wrong_imports = [
        f"{path.relative_to(PACKAGE)}: {wrong}"
        for path in files
        for wrong in violations(package_of(path), imports(path))
    ]
    assert wrong_imports == []


def test_an_import_against_the_arrows_is_found() -> None:
    assert list(violations("judge", ["harness.git.repo", "torch", "harness.errors"])) == [
        "judge may not import harness.git.repo"
    ]
    assert list(violations("model", ["torch"])) == ["only ['corpus', 'judge', 'runner', 'sol'] may import torch"]
    assert list(violations("runner", ["harness.errors"])) == ["runner may not import harness.errors"]


def test_gitpython_is_imported_in_one_module() -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if "git" in {n.partition(".")[0] for n in imports(path)}
    ]
    assert users == ["git/object_reader.py"]


# Calls that parse a whole text, and the only modules besides harness/formats/bounded.py that may make them.
PARSING = {
    "yaml": {"load", "load_all", "safe_load", "safe_load_all", "full_load", "unsafe_load", "compose", "compose_all",
             "parse", "scan", "SafeLoader", "CSafeLoader", "Loader", "CLoader"},
    "json": {"load", "loads", "JSONDecoder"},
}  # fmt: skip
UNBOUNDED = {
    "formats/bounded.py": "checks size and nesting first",
    "judge/isolation/sandbox.py": "reads what bubblewrap, a trusted process, writes about itself",
    "agents/inside/harness.py": "runs inside the agent's sandbox: it can only end the agent's own command",
    "runner/messages.py": "runs inside the sandbox: the judge's messages",
    "runner/compilers.py": "runs inside the sandbox: the judge's request",
    "runner/nvrtc.py": "runs inside the sandbox: the judge's request",
    "runner/profiled.py": "runs inside the sandbox: the judge's request, and what the compiler of the candidate wrote",
    "runner/sealed.py": "runs inside the sandbox: what the compiler of the same candidate wrote",
}


def parsing_calls(source: str) -> set[str]:
    """Names such as `json.loads` that a source refers to, also where they are imported from their module."""
    calls = set()
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            calls |= {f"{node.value.id}.{node.attr}"} if node.attr in PARSING.get(node.value.id, ()) else set()
        elif isinstance(node, ast.ImportFrom) and node.module in PARSING:
            calls |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name in PARSING[node.module]}
    return calls


def test_texts_are_parsed_by_the_bounded_module_only() -> None:
    users = {path.relative_to(PACKAGE).as_posix() for path in modules() if parsing_calls(path.read_text())}
    assert users == set(UNBOUNDED), "parse with harness.formats.bounded, which checks size and nesting first"


def test_a_parsing_call_is_found() -> None:
    assert parsing_calls("import json\njson.loads(x)\nyaml.compose(x)\njson.dumps(x)") == {"json.loads", "yaml.compose"}
    assert parsing_calls("from json import loads, dumps") == {"json.loads"}


def test_commands_print_through_the_module_that_escapes() -> None:
    """`click.echo` prints what agents wrote as they wrote it; `harness.cli.display.output.echo` escapes it."""
    printing = re.compile(r"\bclick\.s?echo\(|(?<![\w.])print\(")
    users = {path.relative_to(PACKAGE).as_posix() for path in modules() if printing.search(path.read_text())}
    assert users == {
        "cli/display/output.py",
        "cli/completion.py",  # the harness' own completion script for a shell
        "__main__.py",  # a HarnessError, which is printable
    }


def imported_files(path: Path) -> set[Path]:
    """Return the files of the package that a file imports."""
    bases = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.level:
            base = ".".join(("harness", *path.relative_to(PACKAGE).parts[: -node.level]))
            base = f"{base}.{node.module}" if node.module else base
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            file = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith("harness.") and file.is_file():
                bases.add(file)
    return bases - {path}


def cycles(imported: Mapping[Path, set[Path]]) -> list[list[str]]:
    """The groups of files that import each other, directly or through others."""
    try:
        tuple(TopologicalSorter(imported).static_order())
    except CycleError as error:
        return [[path.relative_to(PACKAGE).as_posix() for path in error.args[1]]]
    return []


def test_no_files_import_each_other() -> None:
    assert cycles({path: imported_files(path) for path in modules()}) == []


def test_a_cycle_between_files_is_found() -> None:
    first, second = PACKAGE / "one.py", PACKAGE / "other.py"
    assert cycles({first: {second}, second: {first}}) == [["one.py", "other.py", "one.py"]]
    assert cycles({first: {second}, second: set()}) == []


# A path or branch inside the repository, in a string. Placeholders of messages are model/paths.py's too.
_SPELLED = re.compile(r"(?<![\w.-])(problems|agents|ledger|workspaces|win)/|/(solutions|lessons)(/|$)")
_DIRECTORIES = {"problems", "solutions", "ledger", "workspaces"}
_MAY_SPELL = {
    "workspace/configuration.py": "the text of harness.yaml, for people",
}


def spelled_paths(source: str) -> list[str]:
    """Return the string constants of a module, except docstrings, that spell a path or branch of the repository."""
    tree = nodes(source)
    documentation = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    joined = {
        id(side)
        for node in tree
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        for side in (node.left, node.right)
    }
    return [
        node.value
        for node in tree
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
        if _SPELLED.search(node.value) or (id(node) in joined and node.value in _DIRECTORIES)
    ]


def test_one_module_spells_repository_paths() -> None:
    spelled = {path.relative_to(PACKAGE).as_posix(): spelled_paths(path.read_text()) for path in modules()}
    spelling = {name: strings for name, strings in spelled.items() if strings and name != "model/paths.py"}
    assert {name: strings for name, strings in spelling.items() if name not in _MAY_SPELL} == {}
    assert set(_MAY_SPELL) <= set(spelling), "an exception that no longer is one"


@pytest.mark.parametrize(
    "code", ['f"problems/{key}/x"', 'f"{a}/solutions/{b}"', 'root / "ledger" / name', '"see agents/<run>/x"']
)
def test_a_spelled_path_is_found(code: str) -> None:
    assert spelled_paths(f'"""In problems/x."""\nvalue = {code}') != []
    assert spelled_paths('"""In problems/x."""\nvalue = kinds["problems"]') == []


def class_names(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return class name without leading underscores -> the modules that define such a class."""
    places: dict[str, list[str]] = {}
    for path in paths:
        for node in nodes(path.read_text()):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{path.name}: {node.name}")
    return places


def test_no_two_classes_share_a_name() -> None:
    assert {name: places for name, places in class_names(modules()).items() if len(places) > 1} == {}


def test_two_classes_of_a_name_are_found(tmp_path: Path) -> None:
    for name, text in {"a.py": "class Record: ...", "b.py": "def f():\n    class _Record: ..."}.items():
        (tmp_path / name).write_text(text)
    assert class_names(sorted(tmp_path.glob("*.py"))) == {"Record": ["a.py: Record", "b.py: _Record"]}


_MAX_CLASS_LINES = 300


def long_classes(source: str) -> dict[str, int]:
    """Return the classes of a source that are too long, with their lines."""
    lines = {
        node.name: (node.end_lineno or 0) - node.lineno + 1 for node in nodes(source) if isinstance(node, ast.ClassDef)
    }
    return {name: count for name, count in lines.items() if count > _MAX_CLASS_LINES}


def test_no_class_of_the_judge_is_too_long() -> None:
    files = [path for path in modules() if package_of(path) == "judge"]
    long = {path.relative_to(PACKAGE).as_posix(): long_classes(path.read_text()) for path in files}
    assert {name: classes for name, classes in long.items() if classes} == {}, "divide it by responsibilities"


def test_a_long_class_is_found() -> None:
    body = "    value = 1\n"
    assert long_classes(f"class Long:\n{body * 300}\nclass Short:\n{body * 299}") == {"Long": 301}


@pytest.mark.slow
def test_every_module_imports_alone_and_light_ones_stay_light() -> None:
    """One fresh interpreter imports each module alone; model and store never pull in torch."""
    script = """
import importlib, os, sys
import click, git, pydantic, watchdog.observers, yaml  # other people's modules, once for all
is_heavy = lambda name: name.split(".")[1:2] in (["corpus"], ["judge"], ["sol"])
for name in sorted(sys.argv[1:], key=is_heavy):
    if is_heavy(name):
        import torch
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(name)
            light = not is_heavy(name)
            heavy = {"torch", "optuna", "scipy"} & set(sys.modules)
            if light and heavy:
                raise ImportError(f"{name} imports {sorted(heavy)}")
        except BaseException as error:
            print(f"{name}: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(1)
"""
    names = [
        ".".join(("harness", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in modules()
        if package_of(path) != "runner" and path.name != "__main__.py"
    ]
    completed = subprocess.run(
        [sys.executable, "-c", script, *names],
        capture_output=True,
        text=True,
        timeout=500,
        env=dict(os.environ),
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
