"""The direction of imports, and that every module stands alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "harness"
# Which packages a package may import, besides itself. Every other import between packages is an error.
_BASE = {"model", "formats", "workspace"}
_ABOVE_THE_LEDGER = {*_BASE, "git", "ledger"}
ALLOWED = {
    "model": set(),
    "formats": {"model"},
    "workspace": {"model", "formats"},
    "git": _BASE,
    "ledger": {*_BASE, "git"},
    "sol": _BASE,
    "runner": set(),
    "judge": {*_BASE, "sol", "runner"},
    "daemon": _ABOVE_THE_LEDGER,
    "planner": _ABOVE_THE_LEDGER,
    "agents": _ABOVE_THE_LEDGER,
    "report": _ABOVE_THE_LEDGER,
    "cli": {"", *_ABOVE_THE_LEDGER, "sol", "judge", "daemon", "planner", "agents", "report"},
    "": {*_ABOVE_THE_LEDGER, "agents", "cli"},  # supervise.py and __main__.py
}
# Small modules at the root of the package that anything but the runner may use.
LEAVES = {"harness", "harness.errors", "harness.failpoints"}
# Heavy or special libraries and the only packages that may import them.
ONLY_IN = {
    "torch": {"judge", "runner", "sol"},
    "git": {"git"},
    "optuna": {"agents"},
    "claude_agent_sdk": {"agents"},
    "cupy": {"judge", "runner"},
}


def modules() -> list[Path]:
    """The package's own: neither the problems that it ships nor the examples for agents, which are solutions."""
    shipped = (PACKAGE / "_starter", PACKAGE / "agents" / "docs")
    return sorted(path for path in PACKAGE.rglob("*.py") if not any(path.is_relative_to(each) for each in shipped))


def package_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The import statements of a file, wherever in the file they are."""
    return tuple(
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    )


def imports(path: Path) -> Iterator[str]:
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level:  # inside the sandbox the runner is a package of another name
            assert package_of(path) == "runner", f"{path}: relative import"
        else:
            yield node.module or ""


def violations(package: str, names: Iterable[str]) -> Iterator[str]:
    """What is wrong with the imports of a file of a package."""
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
    found = [
        f"{path.relative_to(PACKAGE)}: {wrong}"
        for path in files
        for wrong in violations(package_of(path), imports(path))
    ]
    assert found == []


def test_an_import_against_the_arrows_is_found() -> None:
    assert list(violations("judge", ["harness.git.repo", "torch", "harness.errors"])) == [
        "judge may not import harness.git.repo"
    ]
    assert list(violations("model", ["torch"])) == ["only ['judge', 'runner', 'sol'] may import torch"]
    assert list(violations("runner", ["harness.errors"])) == ["runner may not import harness.errors"]


def test_gitpython_is_imported_in_one_module() -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if "git" in {n.partition(".")[0] for n in imports(path)}
    ]
    assert users == ["git/repo.py"]


def imported_files(path: Path) -> set[Path]:
    """The files of the package that a file imports."""
    found = set()
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
                found.add(file)
    return found - {path}


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
    one, other = PACKAGE / "one.py", PACKAGE / "other.py"
    assert cycles({one: {other}, other: {one}}) == [["one.py", "other.py", "one.py"]]
    assert cycles({one: {other}, other: set()}) == []


@pytest.mark.slow
def test_every_module_imports_alone_and_light_ones_stay_light() -> None:
    """One fresh interpreter imports each module alone; model and store never pull in torch."""
    script = """
import importlib, os, sys
import click, git, pydantic, watchdog.observers, yaml  # other people's modules, once for all
is_heavy = lambda name: name.split(".")[1:2] in (["judge"], ["sol"])
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
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        capture_output=True,
        text=True,
        timeout=240,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
