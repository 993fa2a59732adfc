"""The help of the command line is fast and complete; its errors are sentences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness.cli import cli
from tests.command_line import call_harness


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


def options_with_fractions(command: click.Command) -> Iterator[click.Option]:
    """Yield the options of a command and of its subcommands whose values are floats."""
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(option.type, click.FloatRange | click.types.FloatParamType):
            yield option
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            subcommand = command.get_command(click.Context(command), name)
            assert subcommand is not None
            yield from options_with_fractions(subcommand)


def test_every_number_with_a_fraction_is_finite_and_has_a_lower_bound() -> None:
    options = list(options_with_fractions(cli))
    assert {"--within", "--deadline", "--half-width", "--days"} <= {option.opts[0] for option in options}
    for option in options:
        for value in ("nan", "inf", "1e999", "-1"):
            with pytest.raises(click.BadParameter):
                option.type.convert(value, option, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("start", "--max-usd", "nan"), "start: Invalid value for '--max-usd': nan is not a finite number."),
        (("stop", "--within", "inf"), "stop: Invalid value for '--within': inf is not a finite number."),
        (("stop", "--within", "0"), "stop: Invalid value for '--within': 0.0 is not in the range x>0."),
        (("evaluate", ".", "--max-seconds", "-1"), "'--max-seconds': -1.0 is not in the range x>0."),
        (("evaluate", ".", "--half-width", "0"), "'--half-width': 0.0 is not in the range x>0."),
        (("submit", "--deadline", "nan"), "'--deadline': nan is not a finite number."),
    ],
)
def test_a_limit_that_is_no_finite_number_above_0_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    completed = call_harness(*arguments, cwd=tmp_path)
    assert completed.returncode == 2
    assert message in completed.stderr
    assert f"harness {arguments[0]} --help" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("worker", "a/b"),
            "worker: Invalid value for 'NAME': `a/b` cannot name a worker; expected at most 32 letters",
        ),
        (("worker", "../x"), "`../x` cannot name a worker"),
        (("worker", "w" * 33), "cannot name a worker; expected at most 32 letters, digits, `_` and `-`, the first a"),
        (("planner", "--worker", "w.1"), "planner: Invalid value for '--worker': `w.1` cannot name a worker"),
        (("report", "--run", "../main"), "report: Invalid value for '--run': `../main` cannot name a run; expected"),
        (("status", "--run", "a b"), "`a b` cannot name a run"),
        (("log", "--run", ""), "`` cannot name a run"),
        (("serve", "--run", "a/b"), "`a/b` cannot name a run"),
        (("daemon", "--run", "a/b"), "`a/b` cannot name a run"),
    ],
)
def test_a_name_that_a_run_or_worker_cannot_have_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    completed = call_harness(*arguments, cwd=tmp_path)
    assert completed.returncode == 2
    assert message in completed.stderr


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
