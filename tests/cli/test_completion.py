"""Completion of command lines in bash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.site import Site, clean_environment

PROGRAM = str(Path(sys.executable).parent / "harness")


def complete(site: Site, words: str, at: int) -> list[str]:
    """Return bash's completions of these words, with the cursor in the word of index `at`."""
    variables = {"_HARNESS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    completed = subprocess.run(
        [PROGRAM],
        cwd=site.root,
        env=clean_environment(variables),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return [line.partition(",")[2] for line in completed.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(site: Site, shell: str) -> None:
    completed = site.call("completion", shell)
    assert completed.returncode == 0
    assert f"_HARNESS_COMPLETE={shell}_complete" in completed.stdout


def test_bash_reads_its_script(site: Site) -> None:
    script = site.call("completion", "bash").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=240)


def test_commands_problems_and_branches_are_completed(site: Site) -> None:
    assert {"pr", "profile", "proof", "problems"} == set(complete(site, "harness p", 1)) - {"planner"}
    assert complete(site, "harness pr t/o", 2) == ["t/one"]
    site.submit("w01", "t/two")
    assert complete(site, "harness review agents/", 2) == ["agents/main/w01/t/two"]
    assert "--replace" in complete(site, "harness pr --", 2)


def test_suites_and_globs_are_completed(site: Site) -> None:
    assert complete(site, "harness start --problem t/", 3) == ["t/*", "t/one", "t/two"]
    assert complete(site, "harness problems list --suite t", 4) == ["t"]
    assert complete(site, "harness init --problems rope,s", 3) == ["rope,sampling", "rope,ssm", "rope,starter"]


def test_outside_a_workspace_nothing_is_completed_and_nothing_printed(site: Site, tmp_path: Path) -> None:
    assert complete(Site(tmp_path, site.scratch), "harness pr t", 2) == []
