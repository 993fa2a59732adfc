"""Standings, from the index alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.standings import (
    known_problems,
    standings,
)
from harness.model.entry import EntryDraft
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import Trust, Verdict
from tests.ledger.ledgers import PROBLEM, draft, make_workspace, ticking, workload

Enter = Callable[[Sequence[EntryDraft]], Index]


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Enter]:
    workspace = make_workspace(tmp_path / "w")
    with (
        Repo(workspace) as repo,
        Ledger(workspace, repo, branch="main", clock=ticking()) as ledger,
        Index(workspace, branch="main") as index,
    ):

        def append(drafts: Sequence[EntryDraft]) -> Index:
            for entry_draft in drafts:
                ledger.append(entry_draft)
            index.refresh(repo)
            return index

        yield append


def evaluation(speedup: float, tree: int, *, spread: float = 1e-4, **fields: object) -> EntryDraft:
    works = [workload(speedup, spread=spread, seed=tree * 10 + place) for place in (1, 2)]
    return draft(tree=f"{tree:040x}", workloads=works, **fields)  # type: ignore[arg-type]


def test_a_problem_without_entries_stands_empty(enter: Enter) -> None:
    (standing,) = standings(enter([]), ["starter/none"], "cpu", "main")
    assert (standing.problem, standing.evaluations, standing.champion, standing.entries) == ("starter/none", 0, None, 0)


def test_a_standing_has_the_facts_of_all_entries(enter: Enter) -> None:
    index = enter(
        [
            draft("baseline"),  # 1
            evaluation(0.8, 1),  # 2: a gain, the first that passed
            evaluation(1.5, 2, worker="w02"),  # 3: a gain
            draft("confirmation", cites=3, tree=f"{2:040x}", speedup=1.4),  # 4
            draft("champion", cites=4),  # 5
            draft(verdict=Verdict.TIMEOUT, tree=f"{3:040x}"),  # 6
            evaluation(1.53, 4, spread=0.06),  # 7: no gain, within the noise
            evaluation(1.5, 2, judge="sha256:other"),  # 8: a duplicate
        ]
    )
    (standing,) = standings(index, [PROBLEM], "cpu", "main")
    assert standing.baseline_us == pytest.approx(12.0)
    assert standing.champion == index.row(PROBLEM, 4)
    assert standing.best == index.row(PROBLEM, 7)
    assert standing.evaluations == 5
    assert standing.verdicts == {"PASSED": 4, "TIMEOUT": 1}
    assert standing.workers == {"w01": 4, "w02": 1}
    assert [(gain.evaluation, gain.seq, gain.worker) for gain in standing.gains] == [(1, 2, "w01"), (2, 3, "w02")]
    assert standing.since_gain == 3
    assert standing.duplicates == 1
    assert standing.entries == 8
    assert standing.cost_s == pytest.approx(1.0 + 6 * 3.0)
    assert standing.last_at == "2026-11-21T02:00:07.000Z"
    assert known_problems(index) == [PROBLEM]


def test_the_baseline_shown_is_by_the_clock_of_what_is_shown_with_it(enter: Enter) -> None:
    times = {"latency_us": 2.0, "baseline_us": 5.0}  # by the device's events, where launches cost nothing
    sealed = evaluation(1.8, 2, worker="w02").model_copy(update={"trust": Trust.SEALED})
    sealed = sealed.model_copy(
        update={"workloads": [workload.model_copy(update=times) for workload in sealed.workloads]}
    )
    index = enter([draft("baseline"), evaluation(1.5, 1)])
    assert standings(index, [PROBLEM])[0].baseline_us == pytest.approx(12.0)
    index = enter([sealed])
    assert standings(index, [PROBLEM])[0].baseline_us == pytest.approx(5.0)


def test_runs_and_targets_stand_apart_and_share_baselines(enter: Enter) -> None:
    index = enter([draft("baseline"), evaluation(1.5, 1), evaluation(1.8, 2, run="other")])
    (of_main,) = standings(index, [PROBLEM], "cpu", "main")
    (of_other_run,) = standings(index, [PROBLEM], "cpu", "other")
    (of_all_runs,) = standings(index, [PROBLEM])
    (elsewhere,) = standings(index, [PROBLEM], "h200", "main")
    assert [standing.evaluations for standing in (of_main, of_other_run, of_all_runs, elsewhere)] == [1, 1, 2, 0]
    assert of_other_run.baseline_us == of_main.baseline_us is not None


def test_several_problems_come_in_the_order_asked(enter: Enter) -> None:
    index = enter([evaluation(1.5, 1), evaluation(1.5, 2, problem="starter/swiglu")])
    standings_of_problems = standings(index, ["starter/swiglu", "starter/none", PROBLEM], "cpu", "main")
    assert [(standing.problem, standing.evaluations) for standing in standings_of_problems] == [
        ("starter/swiglu", 1),
        ("starter/none", 0),
        (PROBLEM, 1),
    ]


def test_a_changed_problem_starts_without_champion(enter: Enter) -> None:
    old = [evaluation(1.5, 1), draft("confirmation", cites=1, speedup=1.5), draft("champion", cites=2)]
    index = enter([draft("baseline"), *old, draft("baseline", digest="sha256:" + "9" * 64)])
    (standing,) = standings(index, [PROBLEM], "cpu", "main")
    assert standing.champion is None
    assert standing.best is None
    assert standing.evaluations == 1


def test_entries_of_an_older_judge_protocol_are_counted_and_compared_with_nothing(enter: Enter) -> None:
    old = {"judge": "sha256:old", "judge_protocol": JUDGE_PROTOCOL - 1}
    former = [
        draft("baseline", **old),  # type: ignore[arg-type]
        evaluation(3.0, 1, **old),  # type: ignore[arg-type]
        draft("confirmation", cites=2, tree=f"{1:040x}", speedup=3.0, **old),  # type: ignore[arg-type]
    ]
    index = enter(former)
    (before,) = standings(index, [PROBLEM], "cpu", "main")
    assert (before.champion, before.best, before.gains, before.since_gain) == (None, None, (), 0)
    assert before.outdated == (index.row(PROBLEM, 3),)
    assert (before.evaluations, before.entries) == (1, 3)
    (of_former_protocol,) = standings(index, [PROBLEM], "cpu", "main", protocol=JUDGE_PROTOCOL - 1)
    assert (of_former_protocol.champion, of_former_protocol.outdated) == (index.row(PROBLEM, 3), ())
    assert of_former_protocol.best == index.row(PROBLEM, 2)
    index = enter([draft("baseline"), evaluation(1.2, 2), evaluation(1.1, 1)])
    (after,) = standings(index, [PROBLEM], "cpu", "main")
    assert (after.champion, after.best) == (None, index.row(PROBLEM, 5))
    assert [gain.seq for gain in after.gains] == [5]
    assert (after.since_gain, after.outdated) == (1, ())


def test_the_best_evaluation_of_an_older_protocol_without_a_champion_is_outdated(enter: Enter) -> None:
    old = {"judge": "sha256:old", "judge_protocol": JUDGE_PROTOCOL - 1}
    index = enter([evaluation(0.8, 1, **old), evaluation(0.9, 2, **old), draft(verdict=Verdict.TIMEOUT, **old)])  # type: ignore[arg-type]
    assert standings(index, [PROBLEM])[0].outdated == (index.row(PROBLEM, 2),)


def test_the_standings_need_no_torch() -> None:
    code = "import sys, harness.ledger.standings; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
