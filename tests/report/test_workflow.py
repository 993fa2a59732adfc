"""The workflow for pull requests installs the requirements of `harness proof`, and trusts only the base branch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

WORKFLOW = Path(__file__).parent.parent.parent / ".github/workflows/proof.yml"
_MODULES = {"gitpython": {"git", "gitdb", "smmap"}, "pyyaml": {"yaml"}, "scipy": {"scipy", "numpy"}}
_BLOCKED = ("torch", "optuna", "watchdog", "rich", "cupy", "playwright", "numpy", "scipy", "tabulate", "click")


def steps() -> list[dict[str, Any]]:
    listed_steps: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["proof"]["steps"]
    return listed_steps


def test_what_it_installs_is_enough() -> None:
    text = "\n".join(step.get("run", "") for step in steps())
    (listed,) = re.findall(r"pip install --quiet (click .*)", text)
    allowed = {module for name in listed.split() for module in _MODULES.get(name, {name})}
    blocked = [name for name in _BLOCKED if name not in allowed]
    assert "torch" in blocked
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError("the workflow does not install " + name)
sys.meta_path.insert(0, Refuse())
import harness.report.proof, harness.cli.merge_commands, harness.cli.display.progress
from scipy.special import stdtrit
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240)
    assert completed.returncode == 0, completed.stderr


def test_it_runs_nothing_of_the_pull_request() -> None:
    text = WORKFLOW.read_text()
    assert "pull_request_target:" in text
    (checkout,) = [step for step in steps() if str(step.get("uses", "")).startswith("actions/checkout")]
    assert checkout["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    runs = "\n".join(step.get("run", "") for step in steps())
    assert "git checkout" not in runs
    assert "${{" not in runs, "words of the pull request reach the shell as variables only"
