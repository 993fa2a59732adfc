from __future__ import annotations

import threading
from pathlib import Path

from harness.workspace.file_watch import Changes


def test_a_written_file_below_wakes_the_owner(tmp_path: Path) -> None:
    with Changes(tmp_path / "missing" / "yet") as changes:
        (tmp_path / "missing/yet/deeper").mkdir()
        (tmp_path / "missing/yet/deeper/file").write_text("x")
        assert changes.wait(120)


def test_a_burst_wakes_the_owner_once(tmp_path: Path) -> None:
    nudge = threading.Event()
    with Changes(tmp_path, nudge=nudge) as changes:
        for _ in range(5):
            nudge.set()
        assert changes.wait(120)
        assert not nudge.is_set(), "one burst is one wake-up"


def test_reading_is_no_change_and_the_wait_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with Changes(tmp_path) as changes:
        (tmp_path / "file").read_text()
        assert not changes.wait(0.2)


def test_someone_else_can_wake_the_owner(tmp_path: Path) -> None:
    nudge = threading.Event()
    with Changes(tmp_path, nudge=nudge) as changes:
        nudge.set()
        assert changes.wait(120)
    assert not any(thread.name == "changes" for thread in threading.enumerate())


def test_a_stopped_owner_does_not_wait_on(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with Changes(tmp_path) as changes:
        assert not changes.wait(3600, stop=stop)  # the test's own time limit is far shorter


def test_files_that_do_not_matter_wake_nobody(tmp_path: Path) -> None:
    with Changes(tmp_path, matters=lambda path: path.name.startswith("worker-")) as changes:
        (tmp_path / "daemon.json").write_text("{}")
        assert not changes.wait(0.2)
        (tmp_path / "worker-w01.json").write_text("{}")
        assert changes.wait(120)
