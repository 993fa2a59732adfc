"""The files of an agent are copied as plain files, even while the agent changes them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from harness.agents.solution_sync import replace_with_copy, sync_solution
from harness.errors import FormatError


@pytest.fixture
def solution_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "written"
    (directory / "sub").mkdir(parents=True)
    (directory / "kernel.cpp").write_text("int x;")
    (directory / "sub/part.h").write_text("int y;")
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_files_are_copied_and_deleted_files_are_removed(solution_dir: Path, tmp_path: Path) -> None:
    into = tmp_path / "worktree"
    (into / "old/deep").mkdir(parents=True)
    (into / "old/deep/file").write_text("old")
    (into / "kernel.cpp").mkdir()
    (solution_dir / "__pycache__").mkdir()
    (solution_dir / "__pycache__/x.pyc").write_text("x")
    sync_solution(solution_dir, into)
    assert names(into) == ["kernel.cpp", "sub/part.h"]
    assert (into / "kernel.cpp").read_text() == "int x;"
    (solution_dir / "sub/part.h").unlink()
    sync_solution(solution_dir, into)
    assert [path.name for path in into.rglob("*")] == ["kernel.cpp"]
    replace_with_copy(into, solution_dir)
    assert names(solution_dir) == ["kernel.cpp"]


@pytest.mark.parametrize("kind", ["link", "linked directory", "pipe", "dangling"])
def test_links_and_special_files_are_refused_and_nothing_changes(solution_dir: Path, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    spot = solution_dir / "sub/odd"
    match kind:
        case "link":
            spot.symlink_to(secret / "key")
        case "linked directory":
            spot.symlink_to(secret)
        case "pipe":
            os.mkfifo(spot)
        case _:
            spot.symlink_to("nowhere")
    with pytest.raises(FormatError, match="sub/odd: is a link or a special file"):
        sync_solution(solution_dir, tmp_path / "worktree")
    assert not (tmp_path / "worktree").exists()


def test_too_many_files_and_too_deep_ones_have_different_messages(solution_dir: Path, tmp_path: Path) -> None:
    deep = solution_dir / "/".join("abcdefghi")
    deep.mkdir(parents=True)
    (deep / "part.h").touch()
    with pytest.raises(FormatError, match=r"a/b/c/d/e/f/g/h/i/part\.h: exceeds the limit of 8 directory levels"):
        sync_solution(solution_dir, tmp_path / "worktree")
    shutil.rmtree(solution_dir / "a")
    for number in range(1000):
        (solution_dir / f"{number}.h").touch()
    with pytest.raises(FormatError, match="exceeds the limit of 1000 files"):
        sync_solution(solution_dir, tmp_path / "worktree")


def test_too_much_is_refused(solution_dir: Path, tmp_path: Path) -> None:
    with (solution_dir / "large").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file, too large to be read completely
    with pytest.raises(FormatError, match="large: makes the solution larger than 16 MiB"):
        sync_solution(solution_dir, tmp_path / "worktree")


def test_a_file_that_turns_into_a_link_at_any_instant_leaks_nothing(solution_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    spot, replacement = solution_dir / "kernel.cpp", solution_dir / "fresh"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            replacement.symlink_to(secret)
            replacement.rename(spot)
            replacement.write_text("int x;")
            replacement.rename(spot)

    thread = threading.Thread(target=swap, name="swap")
    thread.start()
    tried = synced = 0
    until = time.monotonic() + 120.0  # on a busy host, several copies in a row may meet a link
    try:
        while tried < 400 or (not synced and time.monotonic() < until):
            tried += 1
            into = tmp_path / f"into{tried % 4}"
            try:
                sync_solution(solution_dir, into)
            except FormatError:
                continue
            synced += 1
            assert all(b"secret" not in path.read_bytes() for path in into.rglob("*") if path.is_file())
            assert not any(path.is_symlink() for path in into.rglob("*"))
    finally:
        stop.set()
        thread.join(timeout=120)
    assert synced
