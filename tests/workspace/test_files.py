"""Atomic writes of files, locks that name their holder, and waits with a deadline."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.workspace.files import atomic_write, file_lock, replace_files

HOLDER = """
import sys, time
from pathlib import Path
from harness.workspace.files import file_lock
with file_lock(Path(sys.argv[1]), owner="the other one"):
    print("held", flush=True)
    sys.stdin.read()
"""
PARENT_OF_HOLDER = """
import os, subprocess, sys
from harness.workspace import files
with files.file_lock(files.Path(sys.argv[1])):
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(descriptor), True)
        except OSError:
            pass  # the descriptor of the listing itself
    subprocess.Popen([sys.executable, "-c", "input()"], close_fds=False)
    print("held", flush=True)
    os.kill(os.getpid(), 9)
"""
KILLED = """
import os, sys
from pathlib import Path
from harness.workspace import files
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
files.atomic_write(Path(sys.argv[1]), "new" * 100000)
"""


def test_a_file_is_written_with_its_directories_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b ü.txt"
    atomic_write(file, "grüß")
    atomic_write(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("old")
    file.chmod(0o640)
    atomic_write(file, "new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_directory_gets_exactly_the_given_files(tmp_path: Path) -> None:
    for name in ("kept", "changed", "file/becomes/directory", "obsolete/file"):
        atomic_write(tmp_path / name, "old")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    inode = (tmp_path / "kept").stat().st_ino
    replace_files(tmp_path, {"kept": b"old", "changed": b"new", "file": b"new", "obsolete/other": b"", "link": b"new"})
    content = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert content == {"kept": "old", "changed": "new", "file": "new", "obsolete/other": "", "link": "new"}
    assert (tmp_path / "kept").stat().st_ino == inode, "an equal file is not written"
    assert not (tmp_path / "link").is_symlink()
    replace_files(tmp_path, {"changed/file": b"new"})
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["changed", "file"]


def test_a_kill_while_writing_leaves_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("old")
    completed = subprocess.run([sys.executable, "-c", KILLED, str(file)], timeout=240, check=False)
    assert completed.returncode == -signal.SIGKILL
    assert file.read_text() == "old"


def test_a_file_that_cannot_be_written_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(ConfigurationError, match="cannot be written: File exists") as caught:
        atomic_write(tmp_path / "file" / "inside", "x")
    assert caught.value.where == str(tmp_path / "file" / "inside")


def test_a_full_disk_is_named_and_the_old_content_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match="No space left on device") as caught:
        atomic_write(file, "new")
    assert caught.value.remedy == "free some space on that disk"
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_second_holder_gets_the_name_of_the_first(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    with (
        file_lock(lock, owner="a daemon"),
        pytest.raises(ConfigurationError, match=rf"held by pid {os.getpid()} \(a daemon\)"),
        file_lock(lock),
    ):
        pass
    with file_lock(lock):
        pass


def test_the_lock_of_a_dead_holder_is_released(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other_process:
        assert other_process.stdout is not None
        assert other_process.stdout.readline() == b"held\n"
        with (
            pytest.raises(ConfigurationError, match=rf"held by pid {other_process.pid} \(the other one\)"),
            file_lock(lock, wait_s=0.05),
        ):
            pass
        other_process.kill()
        with file_lock(lock, wait_s=None):
            pass


def test_the_child_of_a_dead_holder_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", PARENT_OF_HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        parent.wait()
        with pytest.raises(BlockingIOError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        end_of_child = threading.Timer(0.3, parent.stdin.close)
        end_of_child.start()
        with file_lock(lock):
            pass
        end_of_child.join()
