"""The tuner as a session: its candidates, their order, and its reasons to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agents.session import AgentSession, End, Event, Text, Usage
from harness.agents.tuner import PATIENCE, TunerSession
from harness.errors import FormatError
from harness.ledger.candidates import TriedCandidate
from harness.model.config import SessionBudget
from harness.model.verdict import Verdict
from tests.agents.conftest import Bench, Params, write_solution

WIDE = "language: cpp\nentry: kernel.cpp::run\nparams: {A: 0, B: 0}\ntune: {A: [%s], B: [%s]}\n" % (
    (", ".join(str(number) for number in range(16)),) * 2
)


def simple_speedup(params: Params) -> float | None:
    """Return a speed-up with its maximum at WIDTH 8 and UNROLL 2; UNROLL 4 fails."""
    if params["UNROLL"] == 4:
        return None
    return 0.8 + 0.1 * float(params["WIDTH"]) + (0.05 if params["UNROLL"] == 2 else 0.0)


def end_of(session: AgentSession) -> End:
    """Run a session and return its end."""
    events = list(session.events())
    assert isinstance(events[-1], End)
    assert not any(isinstance(event, End) for event in events[:-1])
    return events[-1]


def test_every_combination_is_tried_once_the_committed_one_first(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    end = end_of(TunerSession(bench.brief(write_solution(tmp_path / "cpu"))))
    assert end.reason == "exhausted"
    assert "best speed-up 1.650" in end.text
    tried = [tuple(params.items()) for _, params in bench.tried]
    assert tried[0] == (("WIDTH", 2), ("UNROLL", 1))
    assert len(tried) == len(set(tried)) == 12
    assert len(bench.notes) == 1
    assert "all 12 combinations" in bench.notes[0]


def test_known_results_are_used_and_not_tried_again(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    end_of(TunerSession(bench.brief(write_solution(tmp_path / "a"), budget=SessionBudget(evaluations=7))))
    end = end_of(TunerSession(bench.brief(write_solution(tmp_path / "b"), "w02", seed=2)))
    assert end.reason == "exhausted"
    assert len(bench.tried) == 12
    assert len({tuple(params.items()) for _, params in bench.tried}) == 12
    last_end = end_of(TunerSession(bench.brief(write_solution(tmp_path / "c"), "w03", seed=3)))
    assert last_end.reason == "exhausted"
    assert "best speed-up 1.650" in last_end.text, "found by others"
    assert len(bench.tried) == 12


def test_concurrent_tuners_try_different_combinations_in_different_orders(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    sessions: list[Iterator[Event]] = [
        TunerSession(bench.brief(write_solution(tmp_path / name), name, seed=seed)).events()
        for seed, name in enumerate(("w01", "w02"), start=1)
    ]
    while sessions:
        for session in list(sessions):
            if isinstance(next(session), End):
                sessions.remove(session)
    assert len(bench.tried) == 12
    assert {worker for worker, _ in bench.tried} == {"w01", "w02"}
    orders = []
    for seed in (1, 2):
        alone = Bench(simple_speedup)
        end_of(TunerSession(alone.brief(write_solution(tmp_path / f"alone{seed}"), seed=seed)))
        orders.append([tuple(params.items()) for _, params in alone.tried[1:]])
    assert orders[0] != orders[1]


def test_a_candidate_under_way_with_another_is_left_to_it(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    directory = write_solution(tmp_path / "cpu")
    under_way = bench.tools(directory, "w02").commit("theirs").tree
    bench.tried.clear()
    end_of(TunerSession(bench.brief(directory)))
    assert len(bench.tried) == 11
    assert bench.attempts[under_way].verdict is None


def test_failures_are_no_gain_and_patience_ends(tmp_path: Path) -> None:
    bench = Bench(lambda _: None)
    end = end_of(TunerSession(bench.brief(write_solution(tmp_path, WIDE))))
    assert (end.reason, bench.judged) == ("stale", PATIENCE)
    assert "no gain in 20 trials" in bench.notes[0]


def test_a_gain_restarts_the_patience_and_noise_does_not(tmp_path: Path) -> None:
    values = iter([1.0] * 10 + [1.1] + [1.1 + number * 1e-5 for number in range(200)])
    bench = Bench(lambda _: next(values))
    end_of(TunerSession(bench.brief(write_solution(tmp_path, WIDE))))
    assert bench.judged == 11 + PATIENCE


def test_a_gain_of_another_restarts_the_patience_too(tmp_path: Path) -> None:
    bench = Bench(lambda _: 1.0)

    def judged_by(params: Params) -> float | None:
        del params
        if bench.judged == 15:
            bench.attempts["another's"] = TriedCandidate("another's", "w02", Verdict.PASSED, 2.0)
        return 1.0

    bench.speedup = judged_by
    end_of(TunerSession(bench.brief(write_solution(tmp_path, WIDE))))
    assert bench.judged == 15 + PATIENCE


def test_it_finds_the_best_of_a_large_space_better_than_chance(tmp_path: Path) -> None:
    bench = Bench(lambda params: 1.0 + float(params["A"]) * 0.1 + float(params["B"]) * 0.1)
    end_of(TunerSession(bench.brief(write_solution(tmp_path, WIDE), budget=SessionBudget(evaluations=60))))
    best = max(attempt.speedup or 0 for attempt in bench.attempts.values())
    assert best >= 3.7, "within the best 2.4 % of 256 combinations"


def test_it_ends_between_two_trials_when_interrupted(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    session = TunerSession(bench.brief(write_solution(tmp_path)))
    for event in session.events():
        if isinstance(event, Usage):
            session.interrupt()
        last = event
    assert isinstance(last, End)
    assert last.reason == "interrupted"
    assert len(bench.tried) == bench.judged == 1


def test_it_ends_on_a_stop_while_waiting(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    bench.stop_after = 2
    assert end_of(TunerSession(bench.brief(write_solution(tmp_path)))).reason == "interrupted"
    assert len(bench.tried) == 3


def test_a_budget_ends_it(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    assert (
        end_of(TunerSession(bench.brief(write_solution(tmp_path), budget=SessionBudget(evaluations=3)))).reason
        == "budget"
    )
    assert bench.judged == 3


def test_without_tune_the_solution_is_judged_as_it_is(tmp_path: Path) -> None:
    bench = Bench(lambda _: 1.2)
    end = end_of(TunerSession(bench.brief(write_solution(tmp_path, "language: cpp\nentry: kernel.cpp::run\n"))))
    assert (end.reason, bench.judged) == ("exhausted", 1)


def test_a_session_reports_its_activity_and_has_an_id(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    session = TunerSession(bench.brief(write_solution(tmp_path)))
    texts = [event.text for event in session.events() if isinstance(event, Text)]
    assert texts[0] == "12 combinations of WIDTH, UNROLL"
    assert "WIDTH=2, UNROLL=1: speed-up 1.000" in texts
    assert any("INCORRECT_NUMERICAL: element 3 differs" in text for text in texts)
    assert session.id


def test_a_broken_solution_is_an_error_with_its_place(tmp_path: Path) -> None:
    bench = Bench(simple_speedup)
    directory = write_solution(tmp_path, "language: fortran\nentry: kernel.f90::run\n")
    with pytest.raises(FormatError, match=r"solution\.yaml"):
        list(TunerSession(bench.brief(directory)).events())
