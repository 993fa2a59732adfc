"""`harness init` makes a complete workspace on an unconfigured machine, and overwrites no file of a person."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.command_line import call_harness


def harness(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call_harness(*args, cwd=cwd)


def git(*args: str, cwd: Path) -> str:
    identity = ["-c", "user.name=Person", "-c", "user.email=person@example.org"]
    command = ["git", *identity, *args]
    completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=True)
    return completed.stdout


def test_a_new_directory_becomes_a_workspace_with_a_clean_checkout(tmp_path: Path) -> None:
    completed = harness("init", "new one", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    root = tmp_path / "new one"
    for name in (
        "COORDINATION.md",
        "harness.yaml",
        "workspaces/README.md",
        "ledger/heads.yaml",
        "problems/starter/rmsnorm_h4096/workload.jsonl",
    ):
        assert (root / name).is_file(), name
    assert git("status", "--porcelain", cwd=root) == ""
    assert git("branch", "--show-current", cwd=root).strip() == "main"
    assert "next: cd 'new one' && harness doctor" in completed.stdout


def test_suites_are_copied_whole_or_at_small_sizes(tmp_path: Path) -> None:
    full, small = tmp_path / "full", tmp_path / "small"
    completed = harness("init", "full", "--problems", "ssm,rope", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "problems/ssm/, problems/rope/" in completed.stdout
    assert sorted(path.name for path in (full / "problems").iterdir()) == ["rope", "ssm"]
    completed = harness("init", "small", "--problems", "ssm,gemm", "--profile", "small", cwd=tmp_path)
    assert "omitted 1 problem (inputs and outputs take more than 32 MiB at the smallest sizes): " in completed.stdout
    assert "gemm/bf16_n4096_k4096" in completed.stdout
    workloads = "problems/ssm/mamba2_state_update/workload.jsonl"
    assert len((full / workloads).read_text().splitlines()) > len((small / workloads).read_text().splitlines())
    problems = len(list((full / "problems/ssm").iterdir()))
    assert harness("problems", "check", cwd=small).stdout.endswith(f"{problems} problems, 0 with errors\n")


def test_a_suite_that_does_not_exist_is_named(tmp_path: Path) -> None:
    completed = harness("init", ".", "--problems", "startr", cwd=tmp_path)
    assert completed.returncode == 2
    assert "no shipped suite `startr`; did you mean `starter`?" in completed.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_a_second_init_changes_nothing(tmp_path: Path) -> None:
    harness("init", ".", cwd=tmp_path)
    before = git("rev-parse", "HEAD", cwd=tmp_path)
    completed = harness("init", ".", cwd=tmp_path)
    assert completed.returncode == 0
    assert "no file was added" in completed.stdout
    assert git("rev-parse", "HEAD", cwd=tmp_path) == before


def test_committed_files_that_the_checkout_lacks_are_restored_as_they_are_committed(tmp_path: Path) -> None:
    harness("init", ".", cwd=tmp_path)
    changed = {"harness.yaml": "workers: 3\n", ".gitignore": "*.log\n", "ledger/heads.yaml": "# a head\n"}
    for name, line in changed.items():
        with (tmp_path / name).open("a") as file:
            file.write(line)
    definition = "problems/starter/rmsnorm_h4096/definition.json"
    (tmp_path / definition).write_text("{}\n")
    git("commit", "-qam", "Mine", cwd=tmp_path)
    before = git("rev-parse", "HEAD", cwd=tmp_path)
    for name in changed:
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "problems/starter")
    completed = harness("init", ".", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "restored from the branch harness.yaml, ledger/heads.yaml, .gitignore, problems/starter/" in completed.stdout
    assert "added" not in completed.stdout
    assert all((tmp_path / name).read_text().endswith(line) for name, line in changed.items())
    assert (tmp_path / definition).read_text() == "{}\n"
    assert git("rev-parse", "HEAD", cwd=tmp_path) == before, "nothing is committed"
    assert git("status", "--porcelain", cwd=tmp_path) == ""


def test_an_existing_repository_keeps_its_files_branch_and_unsaved_work(tmp_path: Path) -> None:
    git("init", "-q", "-b", "trunk", cwd=tmp_path)
    (tmp_path / ".gitignore").write_text("*.log")
    (tmp_path / "COORDINATION.md").write_text("mine\n")
    git("add", ".", cwd=tmp_path)
    git("commit", "-qm", "Mine", cwd=tmp_path)
    (tmp_path / "draft.txt").write_text("unsaved")
    completed = harness("init", "--problems", "none", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "COORDINATION.md").read_text() == "mine\n"
    assert (tmp_path / ".gitignore").read_text() == (
        "*.log\n/workspaces/*\n!/workspaces/README.md\n/.harness/\nreport.html\n"
    )
    assert "coordination_branch: trunk" in (tmp_path / "harness.yaml").read_text()
    assert not (tmp_path / "problems").exists()
    assert git("status", "--porcelain", cwd=tmp_path) == "?? draft.txt\n"


def test_this_repository_is_a_workspace_as_init_makes_it() -> None:
    root = Path(__file__).parents[2]
    template = (root / "harness/ledger/WORKSPACES.md").read_bytes()
    assert (root / "workspaces/README.md").read_bytes() == template
    assert {"/workspaces/*", "!/workspaces/README.md", "/.harness/", "report.html"} <= set(
        (root / ".gitignore").read_text().split()
    )


def test_the_report_is_ignored_wherever_it_is_written(tmp_path: Path) -> None:
    harness("init", "--problems", "none", cwd=tmp_path)
    for directory in (tmp_path, tmp_path / "workspaces"):
        completed = harness("report", cwd=directory)
        assert completed.returncode == 0, completed.stderr
        assert (directory / "report.html").is_file()
    assert git("status", "--porcelain", cwd=tmp_path) == ""


def test_the_workflow_for_pull_requests_is_added_when_asked_for(tmp_path: Path) -> None:
    harness("init", "--problems", "none", cwd=tmp_path)
    assert not (tmp_path / ".github").exists()
    completed = harness("init", "--problems", "none", "--github", cwd=tmp_path)
    assert "added .github/workflows/proof.yml" in completed.stdout
    own_workflow = Path(__file__).parents[2] / ".github/workflows/proof.yml"
    assert (tmp_path / ".github/workflows/proof.yml").read_bytes() == own_workflow.read_bytes()
    assert git("status", "--porcelain", cwd=tmp_path) == ""


def test_a_wheel_holds_what_init_copies() -> None:
    """A build needs a network, so compare the files in pyproject.toml with the names that init uses."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"problems": "harness/_problems", ".github/workflows/proof.yml": "harness/_proof.yml"}
    assert all((root / source).exists() for source in included)


def test_no_git_identity_is_needed(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    completed = call_harness("init", "w", "--problems", "none", cwd=tmp_path, environment=environment)
    assert completed.returncode == 0, completed.stderr
    author = subprocess.run(
        ["git", "log", "-1", "--format=%an"],
        cwd=tmp_path / "w",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert author.stdout == "kernel-harness\n"


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        (["--ro-bind", "{}", "{}"], "Read-only file system"),
        (["--size", "8192", "--tmpfs", "{}"], "the disk is full: 0.0 MB are free"),
    ],
)
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, mount: list[str], message: str) -> None:
    parts = [part.format(tmp_path) for part in mount]
    command = ["bwrap", "--dev-bind", "/", "/", *parts, "--chdir", "/", sys.executable, "-m", "harness", "init"]
    command.append(str(tmp_path / "w"))
    completed = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert completed.returncode == 2, completed.stderr
    assert completed.stderr.startswith("harness: ")
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_detached_head_is_refused_with_what_to_do(tmp_path: Path) -> None:
    git("init", "-q", "-b", "main", cwd=tmp_path)
    git("commit", "-qm", "Empty", "--allow-empty", cwd=tmp_path)
    git("checkout", "-q", "--detach", cwd=tmp_path)
    completed = harness("init", cwd=tmp_path)
    assert completed.returncode == 2
    assert "no branch is checked out" in completed.stderr
    assert "git checkout main" in completed.stderr


@pytest.mark.parametrize("name", ["taken"])
def test_a_file_in_the_way_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    completed = harness("init", name, cwd=tmp_path)
    assert completed.returncode == 2
    assert name in completed.stderr
