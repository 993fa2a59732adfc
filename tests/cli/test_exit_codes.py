"""The exit codes of `python -m harness`, in real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import failpoints
from harness.__main__ import main
from harness.errors import EXIT_OUTPUT_CLOSED
from tests.site import Site, site_in

FAILPOINT = "main.before_command"
SECRET = "sk-0123456789abcdef"


def run(site: Site, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `harness ARGUMENTS` in the site's workspace, with separate stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=site.root,
        env=site.environment(extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A workspace for commands that change nothing."""
    with site_in(tmp_path_factory.mktemp("shared")) as created_site:
        yield created_site


def crash_reports(site: Site) -> set[Path]:
    return set(site.workspace.crashes.glob("*"))


def test_0_is_done(shared: Site) -> None:
    completed = run(shared, "problems", "list")
    assert (completed.returncode, completed.stderr) == (0, "")


def test_1_is_the_answer_no(shared: Site) -> None:
    completed = run(shared, "problems", "show", "no/such")
    assert completed.returncode == 1
    assert completed.stderr.startswith("harness: no problem matches `no/such`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("status", "--frobnicate"), "No such option"), (("start", "--problem", "no/such"), "matches `no/such`")],
)
def test_2_is_an_error_that_a_person_can_fix(shared: Site, arguments: tuple[str, ...], message: str) -> None:
    completed = run(shared, *arguments)
    assert completed.returncode == 2
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize("exception", ["ValueError", "BrokenPipeError"])  # the latter of another pipe than the output
def test_70_is_an_internal_error_with_one_line_and_a_crash_report(shared: Site, exception: str) -> None:
    before = crash_reports(shared)
    crash = {"HARNESS_FAILPOINT": FAILPOINT, "HARNESS_FAILPOINT_ACTION": exception, "ANTHROPIC_API_KEY": SECRET}
    completed = run(shared, "log", SECRET, **crash)
    assert (completed.returncode, completed.stdout) == (70, "")
    (report,) = crash_reports(shared) - before
    assert completed.stderr == f"harness: internal error: {exception}: failpoint {FAILPOINT}; crash report: {report}\n"
    text = report.read_text()
    assert "Traceback (most recent call last)" in text
    assert f"{exception}: failpoint {FAILPOINT}" in text
    assert "'log', '[ANTHROPIC_API_KEY]'" in text
    assert SECRET not in text


@pytest.mark.parametrize("exception", ["MemoryError", "RecursionError", "EOFError"])
def test_70_also_where_python_or_click_treat_an_exception_specially(
    shared: Site, exception: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shared.root)
    monkeypatch.setattr(sys, "argv", ["harness", "problems", "list"])
    monkeypatch.setenv("HARNESS_FAILPOINT", FAILPOINT)
    monkeypatch.setenv("HARNESS_FAILPOINT_ACTION", exception)
    monkeypatch.setattr(failpoints, "_passed", {})
    before = crash_reports(shared)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 70
    (report,) = crash_reports(shared) - before
    line = f"harness: internal error: {exception}: failpoint {FAILPOINT}; crash report: {report}\n"
    assert capfd.readouterr().err == line


def test_debug_prints_the_traceback_too(shared: Site) -> None:
    completed = run(shared, "--debug", "log", HARNESS_FAILPOINT=FAILPOINT, HARNESS_FAILPOINT_ACTION="ValueError")
    assert completed.returncode == 70
    assert completed.stderr.startswith("Traceback (most recent call last)")
    assert completed.stderr.splitlines()[-1].startswith("harness: internal error: ValueError")


def test_130_is_ctrl_c(shared: Site) -> None:
    before = crash_reports(shared)
    completed = run(shared, "log", HARNESS_FAILPOINT=FAILPOINT, HARNESS_FAILPOINT_ACTION="KeyboardInterrupt")
    assert (completed.returncode, completed.stderr) == (130, "")
    assert crash_reports(shared) == before


@pytest.mark.parametrize("arguments", [("--help",), ("problems", "list")])
def test_141_is_an_output_without_a_reader(shared: Site, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            cwd=shared.root,
            env=shared.environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (completed.returncode, completed.stderr) == (EXIT_OUTPUT_CLOSED, "")


@pytest.mark.slow
def test_a_judge_that_crashes_exits_with_70_and_names_its_report(shared: Site, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.judge", "--cache", str(tmp_path), "--sandbox", "none"]
    extra = {"HARNESS_FAILPOINT": "judge.before_device", "HARNESS_FAILPOINT_ACTION": "ValueError"}
    completed = subprocess.run(
        command,
        cwd=shared.root,
        env=shared.environment(extra),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 70
    match = re.fullmatch(r"harness judge: internal error: ValueError: .*; crash report: (.+)\n", completed.stderr)
    assert match, completed.stderr
    assert "failpoint judge.before_device" in Path(match[1]).read_text()
