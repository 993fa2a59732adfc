"""Each weakened number carries the symbol and its sentence in each of the seven outputs that show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.entry import Entry, EntryDraft
from harness.model.judging import DeviceRecord, EnvironmentRecord
from harness.model.verdict import Trust
from harness.model.weaknesses import SYMBOL
from harness.report.collect import collect
from harness.report.page import render
from tests.ledger.ledgers import draft
from tests.site import Commit, Site, make_site

pytestmark = pytest.mark.xdist_group("weaknesses")  # the fixture that makes the outputs takes several seconds

OUTPUTS = ("status", "log", "review", "pr", "proof", "audit", "report")
SPEEDUP = 1.5


@dataclass(frozen=True)
class Case:
    """A problem whose numbers have one weakness, as entries record it."""

    name: str
    sentence: str
    device: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    of_baseline: dict[str, Any] = field(default_factory=dict)
    """Facts of the baseline entry only, as in older ledgers."""
    compiled: dict[str, float | None] = field(default_factory=lambda: {"baselines": 12.5})
    trust: Trust = Trust.BOUNDED

    @property
    def problem(self) -> str:
        return f"t/{self.name}"


SOUND = Case("sound", "")
CASES = (
    Case(
        "no-compile",
        "no torch.compile baseline: the speed-up is over the fastest of the other baselines (no C++ compiler)",
        of_baseline={"missing_baselines": {"compile": "no C++ compiler"}},
        compiled={"baselines": None},
    ),
    Case(
        "no-compile-recorded",
        "no torch.compile baseline: the speed-up is over the fastest of the other baselines (no C++ compiler)",
        environment={"missing_baselines": {"compile": "no C++ compiler"}},
        compiled={},
    ),
    Case(
        "no-sealed-compile",
        "no torch.compile baseline by the device's events: the speed-up is over the fastest of the other baselines",
        of_baseline={"missing_sealed_baselines": {"compile": "it leaves the graph"}},
        compiled={"baselines": 12.5, "sealed_baselines": None},
        trust=Trust.SEALED,
    ),
    Case("no-sandbox", "judged without a sandbox", environment={"sandbox": "none"}),
    Case("shared", "other processes used the device during the measurement (2 of them)", device={"others": 2}),
    Case("throttled", "the device was throttled during the measurement", device={"throttle": ["sw_thermal"]}),
    Case("launch-bound", "launch-bound: most of each call is the launch", trust=Trust.LAUNCH_BOUND),
    Case("no-calibration", "no calibration of the clock is recorded", device={"handshake_us": 0.0}),
    Case(
        "old-calibration",
        "the clock was calibrated more than 24 h before the measurement (30 h)",
        device={"calibration_age_s": 30 * 3600},
    ),
)


def weakened(entry: EntryDraft, case: Case) -> EntryDraft:
    """Return the draft with the facts of the case."""
    assert entry.device is not None
    assert entry.environment is not None
    of_kind = case.of_baseline if entry.kind == "baseline" else {}
    tables = {}
    if entry.kind == "baseline":
        for name, time in case.compiled.items():
            tables[name] = {uuid: {"eager": 12.0, "compile": time} for uuid in entry.baselines}
        tables.setdefault("baselines", {})
    return entry.model_copy(
        update={
            "device": DeviceRecord.model_validate({**entry.device.model_dump(), **case.device}),
            "environment": EnvironmentRecord.model_validate(
                {**entry.environment.model_dump(), **case.environment, **of_kind}
            ),
            "trust": case.trust,
            **tables,
        }
    )


def enter(ledger: Ledger, site: Site, commit: Commit, case: Case) -> None:
    """Enter a baseline, an evaluation, its confirmation and the champion."""
    fixed: dict[str, Any] = {
        "problem": case.problem,
        "digest": problem_digest(site.root / "problems" / case.problem),
        "tree": commit.tree,
        "commit": commit.id,
        "worker": commit.worker,
    }
    baseline = ledger.append(weakened(draft("baseline", **fixed), case))
    evaluation = ledger.append(weakened(draft(**fixed, speedup=SPEEDUP, cites=baseline.seq), case))
    second = draft("confirmation", **fixed, speedup=SPEEDUP, cites=evaluation.seq)
    confirmation: Entry = ledger.append(weakened(second, case))
    ledger.append(draft("champion", **fixed, cites=confirmation.seq))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """Yield output -> problem -> text; outputs about all problems have the same text for each."""
    directory = tmp_path_factory.mktemp("weakened")
    site = Site(directory / "work", directory / "scratch")
    cases = (SOUND, *CASES)
    make_site(site.root, tuple(case.problem for case in cases))
    texts: dict[str, dict[str, str]] = {name: {} for name in OUTPUTS}

    def output_of(*arguments: str) -> str:
        completed = site.call(*arguments)
        assert completed.returncode == 0 or arguments[0] == "audit", completed.stdout  # its problems have no history
        return completed.stdout

    try:
        commits = {case.problem: site.submit("w01", case.problem, case.name) for case in cases}
        with Repo(site.workspace) as repo, Ledger(site.workspace, repo, branch="main") as ledger:
            for case in cases:
                enter(ledger, site, commits[case.problem], case)
        about_all = {"status": output_of("status"), "log": output_of("log", "-n", "100"), "audit": output_of("audit")}
        with Repo(site.workspace) as repo, Index(site.workspace, branch="main") as index:
            problems = [case.problem for case in cases]
            data = collect(repo, index, branch="main", problems=problems, run="main", target="cpu", commit_url=None)
        about_all["report"] = render(data)
        for case in cases:
            for name, text in about_all.items():
                texts[name][case.problem] = text
            texts["review"][case.problem] = output_of("review", case.problem, "--no-diff")
            texts["pr"][case.problem] = output_of("pr", case.problem, "--no-push")
            texts["proof"][case.problem] = output_of("proof", f"main..win/main/{case.problem}")
        yield texts
    finally:
        site.close()


def page_data(page: str) -> Any:
    """Return the data of a report."""
    return json.loads(page.split('type="application/json" id="data">', 1)[1].split("</script>", 1)[0])


def sentences(output: str, text: str, problem: str) -> list[str]:
    """Return the sentences of a problem's weaknesses in an output, without their symbols."""
    if output == "report":
        data = page_data(text)
        (row,) = [problem_row for problem_row in data["problems"] if problem_row["key"] == problem]
        assert data["weakened"]["symbol"] == SYMBOL
        return [str(sentence) for sentence in row["weaknesses"]]
    lines = [line.partition(f"{SYMBOL} ")[2] for line in text.splitlines() if f"{SYMBOL} " in line]
    if output in {"review", "pr", "proof"}:  # about one problem
        return [line for line in lines if not line.startswith("(")]
    named = [line.partition(": ") for line in lines]
    return [
        weakness_sentences
        for names, _, weakness_sentences in named
        if problem in {name.split(" seq ")[0] for name in names.split("; ")}
    ]


def marked_number(output: str, text: str, problem: str) -> bool:
    """Return true if the problem's speed-up has the symbol."""
    if output in {"audit", "report"}:  # the audit names entries; the page puts the symbol in with its script
        return bool(sentences(output, text, problem))
    lines = text.splitlines()
    if output in {"status", "log"}:
        lines = [line for line in lines if problem in line.split() and SYMBOL + " " + problem not in line]
    return any(f"{SPEEDUP:.1f}" in line and SYMBOL in line and "x" in line for line in lines)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_weakened_number_is_shown_with_its_sentence(
    case: Case, output: str, outputs: dict[str, dict[str, str]]
) -> None:
    text = outputs[output][case.problem]
    weakness_sentences = sentences(output, text, case.problem)
    assert any(weakness_sentence.startswith(case.sentence) for weakness_sentence in weakness_sentences), text
    assert marked_number(output, text, case.problem), text


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_sound_number_is_not_marked(output: str, outputs: dict[str, dict[str, str]]) -> None:
    text = outputs[output][SOUND.problem]
    assert sentences(output, text, SOUND.problem) == []
    assert not marked_number(output, text, SOUND.problem)


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_marks_weakened_numbers(outputs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    from tests.report.chromium import chromium

    file = tmp_path / "report.html"
    file.write_text(outputs["report"][SOUND.problem])
    with chromium() as browser:
        page = browser.new_page()
        page.goto(file.as_uri())
        assert SYMBOL in page.locator("#title").inner_text()
        rows = {row.split("\t")[0]: row for row in page.locator("#problems tbody tr").all_inner_texts()}
        assert SYMBOL not in rows[SOUND.problem]
        notes = page.locator("#fine").inner_text()
        for case in CASES:
            assert f"\u00d7{SYMBOL}" in rows[case.problem], rows
            assert case.sentence in notes
        page.locator("#problems button.open", has_text=CASES[-1].problem).click()
        assert CASES[-1].sentence in page.locator("#detail").inner_text()
