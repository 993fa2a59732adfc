from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.git.tree_ids import blob_id, tree_files, tree_id

ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
NAMES = st.sampled_from(["a", "a.b", "a-b", "b/c.cpp", "b/d/e.h", "b.c", "b0", "solution.yaml"])


def git(directory: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=240
    ).stdout.strip()


@settings(max_examples=8)  # each runs git
@given(st.dictionaries(NAMES, st.tuples(st.binary(max_size=30), st.booleans()), min_size=1))
def test_trees_are_named_as_git_names_them(
    tmp_path_factory: object, tmp_path: Path, files: dict[str, tuple[bytes, bool]]
) -> None:
    del tmp_path_factory
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    for name, (data, executable) in files.items():
        file = directory / name
        if any(parent.is_file() for parent in file.parents) or file.is_dir():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o755 if executable else 0o644)
    computed = tree_id(tree_files(directory))
    git(directory, "init", "--quiet")
    git(directory, "add", "--all")
    assert computed == git(directory, "write-tree")


def test_a_replaced_file_makes_the_tree_it_would_make(tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_text("int x;\n")
    (tmp_path / "solution.yaml").write_text("old\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/kernel.pyc").write_text("never a source")
    before = tree_files(tmp_path)
    assert set(before) == {"kernel.cpp", "solution.yaml"}
    expected = tree_id(before, {"solution.yaml": b"new\n"})
    (tmp_path / "solution.yaml").write_text("new\n")
    assert tree_id(tree_files(tmp_path)) == expected
    assert blob_id(b"new\n").hex() == "3e757656cf36eca53338e520d134963a44f793f8"
