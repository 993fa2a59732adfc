"""The `profile` tool: what the hardware did, where its counters can be read."""

from __future__ import annotations

import shutil

from harness.agents.session import Answer


def profile(target: str) -> Answer:
    """What limits the last submission on the hardware; says why when that cannot be told here."""
    if target == "cpu":
        return Answer(
            "no hardware counters are read on the target cpu. Use submit's numbers: share of the bound per workload, "
            "and which sizes are worst.",
            failed=True,
        )
    if shutil.which("ncu") is None:
        return Answer(
            "Nsight Compute (ncu) is not installed where the harness runs, so counters cannot be read. Use submit's "
            "numbers: share of the bound per workload, and which sizes are worst.",
            failed=True,
        )
    return Answer(
        "counters can only be read by the judge that holds the device, and this version's judge does not offer it. Use "
        "submit's numbers.",
        failed=True,
    )
