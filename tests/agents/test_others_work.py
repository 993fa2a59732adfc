"""Solutions of other workers that an agent can read: the champion, the best of each worker, and diffs of attempts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

from harness.agents.agent_tools import AgentTools
from harness.agents.model_access.meter import Meter
from harness.agents.others_work import best_of_others, differences, show_others
from harness.agents.session import Tools
from harness.git.solution_commits import Submission
from harness.ledger.candidates import TriedCandidate
from harness.model.judging import WorkloadResult
from harness.model.verdict import Verdict
from tests.agents.conftest import entry

TRIED = (
    TriedCandidate("t1", "w01", Verdict.PASSED, 1.1, message="mine", commit="a1" * 20),
    TriedCandidate("t2", "w02", Verdict.PASSED, 1.9, message="wide | loads", commit="b2" * 20),
    TriedCandidate("t3", "w02", Verdict.PASSED, 1.5, message="first", commit="c3" * 20),
    TriedCandidate("t4", "w03", Verdict.PASSED, 1.4, message="tiles", commit="d4" * 20),
    TriedCandidate("t5", "w04", Verdict.COMPILE_ERROR, message="broken", commit="e5" * 20),
)


def sources(commit: str) -> dict[str, str]:
    return {"kernel.cpp": f"int version = {commit[:2]};\nint same;\n", "solution.yaml": "language: cpp\n"}


def test_the_champion_and_the_best_of_each_other_worker_are_shown(tmp_path: Path) -> None:
    chosen = best_of_others(TRIED, "w01", "t2")
    assert {name: attempt.tree for name, attempt in chosen.items()} == {"champion": "t2", "w02": "t3", "w03": "t4"}
    show_others(tmp_path, chosen, sources)
    root = tmp_path / "others"
    assert (root / "champion/kernel.cpp").read_text().startswith("int version = b2")
    assert "| champion/ | 1.900x | w02 | b2b2b2b2b2 | wide / loads |" in (root / "README.md").read_text()
    show_others(tmp_path, best_of_others(TRIED, "w02", None), lambda _: {"other.cpp": "int x;\n"})
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*.cpp")) == [
        "w01/other.cpp",
        "w03/other.cpp",
    ]
    show_others(tmp_path, {}, sources)
    assert [path.name for path in root.iterdir()] == ["README.md"]


def test_history_shows_one_attempt_with_its_times_and_what_it_changed() -> None:
    times = WorkloadResult(uuid="a", verdict=Verdict.PASSED, latency_us=10.0, baseline_us=14.0, speedup=1.4)
    judged = entry(Verdict.PASSED, 1.4).model_copy(update={"workloads": (times,)})
    tools = Tools(
        commit=lambda _: Submission("", "", ""),
        outcome=lambda _: None,
        history=lambda: TRIED,
        note=lambda *_: None,
        turn=nullcontext,
        sources=sources,
        entry_of=lambda tree: judged if tree == "t4" else None,
    )
    meter = cast("Meter", None)  # `history` costs nothing
    agent_tools = AgentTools(tools, target="cpu", axes={"a": "rows=8"}, hide=str, meter=meter)
    text = agent_tools.history({"query": "d4d4d4"}).text
    assert text.splitlines()[0] == "d4d4d4d4d4 w03: PASSED 1.400x | tiles"
    assert "rows=8: 10.00 / 14.00" in text
    assert "differences from b2b2b2b2b2 (w02, 1.900x):" in text
    assert "-int version = b2;" in text
    assert "+int version = d4;" in text
    assert "solution.yaml" not in text, "equal files are not shown"
    assert "there is no attempt on this problem with 'ffffff' yet" in agent_tools.history({"query": "ffffff"}).text


def test_long_differences_are_cut() -> None:
    text = differences({"a": ""}, {"a": "\n".join(map(str, range(1000)))})
    assert len(text.splitlines()) == 151
    assert "more lines" in text
