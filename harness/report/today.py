"""The start of the day: what runs, what improved, what is stuck, what it cost, what waits for a person."""

from __future__ import annotations

from typing import Any

from harness.model.config import Config
from harness.store.digests import digest_at
from harness.store.index import Index
from harness.store.repo import Repo
from harness.store.standings import known_targets
from harness.store.winners import champion


def champions_waiting(repo: Repo, index: Index, config: Config, run: str, base: str) -> list[dict[str, Any]]:
    """Confirmed champions that neither the main branch nor a win branch has."""
    tip = repo.tip(base)
    wins = repo.branches("win/")
    rows = []
    for target in [config.target] if config.target else known_targets(index, run):
        sql = "SELECT DISTINCT problem FROM entries WHERE kind = 'confirmation' AND run = ? AND target = ?"
        for (problem,) in sorted(index.query(sql, (run, target))):
            found = champion(index, problem, digest_at(repo, tip, problem) or "", target, run)
            if found is None:
                continue
            place = f"problems/{problem}/solutions/{target}"
            carried = [name for name, commit in wins.items() if repo.tree_of(commit, place) == found.tree]
            if repo.tree_of(tip, place) == found.tree or carried:
                continue
            summary = found.counts.summary
            rows.append(
                {
                    "problem": problem,
                    "target": target,
                    "seq": found.counts.seq,
                    "speed-up": f"{summary.speedup:.3f}x" if summary and summary.speedup else "-",
                    "at": found.counts.at[:16].replace("T", " "),
                }
            )
    return rows
