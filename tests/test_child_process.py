"""A child process of `harness start`: how its end is described."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.child_process import ChildProcess
from tests.site import Site, site_in

CRASH = "import sys; print('crash report: /of/another/process'); sys.exit(70)"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as site:
        yield site


def ended(site: Site, program: str) -> ChildProcess:
    child = ChildProcess("planner", [sys.executable, "-c", program])
    child.start(site.workspace)
    assert child.process is not None
    child.process.wait(timeout=60)
    return child


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        (CRASH, "exit code 70, internal error"),
    ],
)
def test_the_cause_is_the_signal_or_the_exit_code(site: Site, program: str, cause: str) -> None:
    assert ended(site, program).cause_of_end() == cause


def test_the_crash_report_of_the_process_is_named_and_no_text_that_it_wrote(site: Site) -> None:
    child = ended(site, CRASH)
    assert child.process is not None
    reports = [
        site.workspace.crashes / f"crash-20261125T{hour}0000.000000Z-{pid}.txt"
        for hour, pid in (("10", child.process.pid), ("11", child.process.pid), ("12", child.process.pid + 1))
    ]
    site.workspace.crashes.mkdir(parents=True)
    for report in reports:
        report.touch()
    assert child.cause_of_end() == f"exit code 70, internal error; crash report: {reports[1]}"
