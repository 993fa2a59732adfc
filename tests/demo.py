"""What `make demo` runs: a fresh workspace, two tuner workers on six problems for about five minutes, an audit."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

WORKSPACE = Path(__file__).parent.parent / "build" / "demo"
HARNESS = (sys.executable, "-m", "harness")
START = ("start", "--workers", "2", "--agent", "tuner", "--device", "cpu")


def main() -> int:
    """Run it; the exit code is the first that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    if WORKSPACE.exists():
        shutil.rmtree(WORKSPACE)  # made by an earlier demo, and nothing but a demo
    steps = [
        ("a fresh workspace with six problems", [*HARNESS, "init", str(WORKSPACE)], WORKSPACE.parent.parent),
        (
            f"two tuners and a planner, {options.minutes:g} minutes; the first baseline compiles for a while",
            [*HARNESS, *START, "--max-minutes", str(options.minutes)],
            WORKSPACE,
        ),
        ("is the ledger whole and true", [*HARNESS, "audit"], WORKSPACE),
    ]
    for what, command, directory in steps:
        print(f"\n== {what}\n$ harness {' '.join(command[3:])}", flush=True)
        code = subprocess.run(command, cwd=directory, check=False).returncode
        if code:
            return code
    print(f"\nEverything is in {WORKSPACE}: `git log --all --graph`, `harness status`, `harness log`, ledger/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
