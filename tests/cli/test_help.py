"""The help of the command line is fast and complete; its errors are sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.cli import cli


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *args], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )


def test_help_lists_every_verb_with_its_line() -> None:
    completed = run("--help")
    assert completed.returncode == 0
    for verb in cli.list_commands(None):  # type: ignore[arg-type]
        assert f"\n  {verb} " in completed.stdout


def test_every_verb_has_help_of_its_own() -> None:
    for verb in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        assert command.help, verb


def test_an_unknown_verb_is_a_usage_error() -> None:
    completed = run("frobnicate")
    assert completed.returncode == 2
    assert completed.stderr == "harness: No such command 'frobnicate'.\n  harness --help    # lists the commands\n"


def test_a_usage_error_names_the_command_and_its_help() -> None:
    within_group = run("problems", "frobnicate").stderr.splitlines()
    assert within_group[0].startswith("harness: problems: No such command 'frobnicate'")
    assert within_group[1] == "  harness problems --help    # lists the commands"
    of_command = run("status", "--frobnicate").stderr.splitlines()
    assert of_command[0].startswith("harness: status: No such option")
    assert of_command[1] == "  harness status --help    # lists its arguments"


def test_outside_a_workspace_the_error_has_a_fix_and_no_traceback(tmp_path: Path) -> None:
    completed = run("status", cwd=tmp_path)
    assert completed.returncode == 2
    assert "no workspace here" in completed.stderr
    assert "harness init" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_help_imports_no_heavy_module() -> None:
    code = """
import sys
sys.argv = ["harness", "--help"]
try:
    import harness.__main__
    harness.__main__.main()
except SystemExit:
    print([n for n in ("torch", "git", "pydantic", "optuna", "yaml") if n in sys.modules], file=sys.stderr)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert completed.stderr.strip() == "[]"
