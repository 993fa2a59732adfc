"""harness.yaml: layers, sources, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigurationError, FormatError
from harness.model.config import Config
from harness.workspace.configuration import DEFAULT_YAML, explain_config, load_config
from harness.workspace.directories import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / ".git").mkdir()
    (tmp_path / "harness.yaml").write_text("")
    return Workspace(tmp_path)


def test_an_empty_file_is_all_defaults(workspace: Workspace) -> None:
    assert load_config(workspace) == Config()


def test_the_file_that_init_writes_resolves_to_the_defaults(workspace: Workspace) -> None:
    workspace.config_file.write_text(DEFAULT_YAML.format(branch="trunk"))
    assert load_config(workspace) == Config(coordination_branch="trunk")


def test_every_line_that_init_comments_out_is_valid_when_uncommented(workspace: Workspace) -> None:
    lines = DEFAULT_YAML.format(branch="main").splitlines()
    bare = [line.removeprefix("# ") for line in lines[2:]]
    workspace.config_file.write_text("\n".join(bare))
    assert load_config(workspace).policy.return_after == 60


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(workspace: Workspace) -> None:
    workspace.config_file.write_text("workers: 3\nagent:\n  kind: tuner\n  overall:\n    usd: 5\n")
    config = load_config(workspace, {"workers": 4, "agent.overall.minutes": 2.5, "target": None})
    assert (config.workers, config.agent.kind, config.agent.overall.usd) == (4, "tuner", 5)
    assert config.agent.overall.minutes == 2.5
    assert config.target is None


def test_every_value_names_its_source(workspace: Workspace) -> None:
    workspace.config_file.write_text("run: night\njudge:\n  max_judge_s: 9\n")
    sources = {setting.key: (setting.value, setting.source) for setting in explain_config(workspace)}
    assert sources["run"] == ("night", "harness.yaml:1")
    assert sources["judge.max_judge_s"] == (9.0, "harness.yaml:3")
    assert sources["workers"] == (2, "default")
    assert sources["judge.sandbox"] == ("bubblewrap", "default")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("run: main\nworker: 2\n", 2, "`worker` is not a key here; did you mean `workers`?"),
        ("workers: two\n", 1, '`workers` is "two"; expected an integer'),
        ("workers: 0\n", 1, "`workers` is 0; expected"),
        ("run: ../../x\n", 1, '`run` is "../../x"; expected'),
        ("judge:\n  sandbox: docker\n", 2, '`judge.sandbox` is "docker"; expected'),
        ("judge:\n  half_width_cpu: -1\n", 2, "`judge.half_width_cpu` is -1; expected"),
        ("agent:\n  kind: gpt\n", 2, '`agent.kind` is "gpt"; expected'),
        ("agent:\n  overall:\n    usd: free\n", 3, '`agent.overall.usd` is "free"; expected a number'),
        ("languages: [fortran]\n", 1, '`languages[0]` is "fortran"; expected'),
        ("devices: cpu\n", 1, '`devices` is "cpu"; expected a list'),
        ("- run\n", 1, '["run"] at the top; expected an object'),
        ("run: [\n", 2, "not YAML:"),
        ("run: a\nrun: b\n", 2, "`run` is given twice"),
    ],
)
def test_a_bad_file_names_line_and_field(workspace: Workspace, text: str, line: int, expected: str) -> None:
    workspace.config_file.write_text(text)
    with pytest.raises(FormatError) as caught:
        load_config(workspace)
    assert expected in caught.value.message
    assert (caught.value.where or "").endswith(f"harness.yaml:{line}")


def test_a_bad_value_on_the_command_line_is_reported_as_such(workspace: Workspace) -> None:
    with pytest.raises(ConfigurationError, match="the command line: `workers` is -1; expected"):
        load_config(workspace, {"workers": -1})


def test_an_unreadable_file_is_reported(workspace: Workspace) -> None:
    workspace.config_file.write_bytes(b"run: \xff\n")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(workspace)
