"""The program of `make demo`: a fresh workspace, two tuner workers on six problems for about five minutes, an audit."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORKSPACE = ROOT / "build" / "demo"
HARNESS = (sys.executable, "-m", "harness")
START = ("start", "--workers", "2", "--agent", "tuner", "--device", "cpu")
SETTINGS = """
# The minutes are few: every problem gets one trial before any gets a second.
policy:
  slice_evaluations: 1
"""


def harness(verb: str, *arguments: str, directory: Path = WORKSPACE) -> int:
    """Print a command, run it, and return its exit code."""
    print(f"\n== {verb}\n$ harness {' '.join(arguments)}", flush=True)
    return subprocess.run([*HARNESS, *arguments], cwd=directory, check=False).returncode


def configure() -> None:
    """Set the workers' pace in harness.yaml and commit it, as a user does."""
    file = WORKSPACE / "harness.yaml"
    file.write_text(file.read_text() + SETTINGS)
    identity = ["-c", "user.name=Demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false"]
    commit = ["commit", "--quiet", "--no-verify", "-m", "Give every problem a trial first", "harness.yaml"]
    subprocess.run(["git", *identity, *commit], cwd=WORKSPACE, check=True)


def main() -> int:
    """Run the demo; return the first exit code that is not 0, or 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    if WORKSPACE.exists():
        shutil.rmtree(WORKSPACE)  # only demos write to this directory
    code = harness("a fresh workspace with six problems", "init", str(WORKSPACE), directory=ROOT)
    if code:
        return code
    configure()
    title = f"two tuners and a planner, {options.minutes:g} minutes; each first baseline is compiled"
    code = harness(title, *START, "--max-minutes", str(options.minutes))
    code = code or harness("check that the ledger is complete and unchanged", "audit")
    if code == 0:
        print(f"\nEverything is in {WORKSPACE}: `git log --all --graph`, `harness status`, `harness log`, ledger/.")
    return code


if __name__ == "__main__":
    sys.exit(main())
