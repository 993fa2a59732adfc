"""The planner's loop on a real repository: its tables, people's changes, and its records."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.errors import ConfigurationError, LedgerError
from harness.git.branch_commits import Change, Read
from harness.git.repo import Repo
from harness.ledger.coordination import read_assignments
from harness.ledger.ledger import Ledger, read_records
from harness.model.assignment import Assignment
from harness.model.config import Config
from harness.model.paths import DECISIONS
from harness.model.process_status import FinishReason, PlannerStatus, WorkerStatus
from harness.planner import planner as planner_module
from harness.planner.decision import Decision, PolicyInputs
from harness.planner.planner import run_planner
from harness.planner.policy import decide
from harness.planner.replay import replay
from harness.workspace.notes import Note, leave_note, waiting_notes
from harness.workspace.status import read_status, write_status
from tests.site import Site, git, site_in
from tests.waiting import wait_until

NAMES = ("w01", "w02")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as workspace_site:
        yield workspace_site


@contextlib.contextmanager
def planning(site: Site, config: Config | None = None, workers: tuple[str, ...] = NAMES) -> Iterator[None]:
    """Run a planner in a thread until the end of the block."""
    stop, failed = threading.Event(), []

    def work() -> None:
        try:
            run_planner(site.workspace, config or Config(), stop, workers=workers, target="cpu")
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    thread = threading.Thread(target=work, name="planner under test")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=120)
    assert not failed, failed[0]


def table(site: Site) -> tuple[Assignment, ...]:
    with Repo(site.workspace) as repo:
        return read_assignments(repo, "main")


def wait_for_table(site: Site, condition: Callable[[dict[str, str]], bool], description: str) -> dict[str, str]:
    """Wait until the table, as worker -> problem, fulfils a condition, and return it."""

    def matching_rows() -> dict[str, str] | None:
        rows = {row.worker: row.problem for row in table(site) if row.state != "paused"}
        return {"": "", **rows} if condition(rows) else None

    return wait_until(matching_rows, event=description)


def edit(site: Site, *rows: str, keep: bool = True) -> None:
    """Edit and commit the table as a person does, on top of the planner's last version."""

    def edited(read: Read) -> Change:
        former = (read("COORDINATION.md") or b"").decode()
        head, begin, from_table = former.partition("<!-- harness:assignments begin -->")
        inside, end, tail = from_table.partition("<!-- harness:assignments end -->")
        lines = inside.strip().splitlines()
        present = lines if keep else lines[:2]
        text = head + begin + "\n" + "\n".join([*present, *rows]) + "\n" + end + tail
        return Change({"COORDINATION.md": text.encode()})

    with Repo(site.workspace) as repo:
        repo.commit_built("main", edited, "Edit the table")


def records(site: Site, file: str = DECISIONS) -> list[dict[str, object]]:
    with Repo(site.workspace) as repo:
        return [dict(record) for record in read_records(site.workspace, repo, file, branch="main")]


def finish(site: Site, finished: dict[str, FinishReason]) -> None:
    """Write the status record of a worker that is idle."""
    write_status(site.workspace, WorkerStatus(worker="w01", agent="tuner", state="idle", finished=finished))


def status(site: Site) -> PlannerStatus:
    return read_status(site.workspace, PlannerStatus) or PlannerStatus()


def test_workers_are_assigned_recorded_and_left_clean(site: Site) -> None:
    with planning(site):
        rows = wait_for_table(site, lambda rows: set(rows) == set(NAMES), "two rows")
        assert {rows["w01"], rows["w02"]} == {"t/one", "t/two"}
    (record,) = records(site)
    assert (record["run"], record["target"], record["policy"]) == ("main", "cpu", "gain-bandit/1")
    assert git(site.root, "status", "--porcelain") == ""
    assert "| t/one | - | - |" in (site.root / "COORDINATION.md").read_text(), "standings are written at the end"
    assert git(site.root, "show", "main:ledger/decisions.yaml").startswith("# kernel-harness ledger, format 1")


def test_a_worker_that_is_done_is_moved_and_then_rests(site: Site) -> None:
    with planning(site, workers=("w01",)):
        first = wait_for_table(site, lambda rows: "w01" in rows, "a row")["w01"]
        finish(site, {first: "exhausted"})
        second = wait_for_table(site, lambda rows: rows.get("w01") not in {None, first}, "another problem")["w01"]
        finish(site, {first: "exhausted", second: "stale"})
        wait_for_table(site, lambda rows: not rows, "no row")
        decided_with = {"w01": {first: "exhausted", second: "stale"}}
        wait_until(lambda: status(site).finished == decided_with, event="the end of the last round")
    assert len(records(site)) == 3


def test_pinned_rows_stay_and_paused_problems_get_no_worker(site: Site) -> None:
    edit(site, "| w02 | t/two | pinned | mine |", "| - | t/one | paused | under repair |")
    with planning(site):
        rows = wait_for_table(site, lambda rows: "w01" in rows, "a row for w01")
        assert rows["w01"] == "t/two", "shared: nothing else is open"
    of_people = [row for row in table(site) if row.state != "active"]
    assert [(row.worker, row.problem, row.wanted) for row in of_people] == [
        ("w02", "t/two", "mine"),
        ("-", "t/one", "under repair"),
    ]


def test_a_pause_moves_the_worker_at_once(site: Site) -> None:
    with planning(site, workers=("w01",)):
        before = wait_for_table(site, lambda rows: "w01" in rows, "a row")["w01"]
        edit(site, f"| - | {before} | paused | |")
        wait_for_table(site, lambda rows: rows.get("w01") not in {None, before}, "another problem")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| w09 | nowhere |", "a row of 2 cells; expected 4"),
        (f"w09 {'[' * 50_000}", f"`w09 {'[' * 55}…` is not a row of the table"),
        (f"| w09 | {'[' * 50_000} | active | |", f"`{'[' * 59}…` is not a problem's key"),
        (f"| w09 | t/one | active | {'x' * 2**20} |", "expected at most 1048576"),
    ],
    ids=["two cells", "brackets", "brackets in a cell", "a mebibyte"],
)
def test_a_broken_table_is_named_and_the_last_good_one_stays(site: Site, row: str, complaint: str) -> None:
    with planning(site, workers=("w01",)):
        before = wait_for_table(site, lambda rows: "w01" in rows, "a row")["w01"]
        edit(site, row)
        broken = git(site.root, "rev-parse", "main:COORDINATION.md")
        text = git(site.root, "show", "main:COORDINATION.md")
        line = next(number for number, line in enumerate(text.splitlines(), 1) if "w09" in line)

        def first_message() -> str | None:
            return next(iter(status(site).messages), None)

        message = wait_until(first_message, event="a complaint")
        assert (f"COORDINATION.md on main:{line}: " in message) or "bytes;" in message
        assert complaint in message
        assert "last good table stays in force" in message
        assert "\n" not in message
        assert [row.problem for row in status(site).assignments] == [before]
        present = git(site.root, "rev-parse", "main:COORDINATION.md")
        assert present == broken, "nothing is written over a person's broken table"
        edit(site, keep=False)
        wait_until(lambda: not first_message(), event="the end of the complaint")
        wait_for_table(site, lambda rows: "w01" in rows, "a row again")


def test_peoples_text_survives(site: Site) -> None:
    file = site.root / "COORDINATION.md"
    file.write_text(file.read_text().replace("# ", "# Ours: ", 1) + "\nPeople's last words.\n")
    git(site.root, "commit", "--quiet", "--all", "-m", "Say something")
    with planning(site):
        wait_for_table(site, lambda rows: set(rows) == set(NAMES), "two rows")
    text = git(site.root, "show", "main:COORDINATION.md")
    assert text.startswith("# Ours: ")
    assert text.endswith("People's last words.")


@pytest.mark.parametrize("swap_file", [".COORDINATION.md.swp", None])
def test_nothing_is_written_while_a_person_edits(site: Site, swap_file: str | None) -> None:
    file, text = site.root / "COORDINATION.md", "A thought of mine.\n"
    opened = site.root / (swap_file or "COORDINATION.md")
    edited = file.read_text() + text
    if swap_file is None:
        file.write_text(edited)
    else:
        opened.touch()
    tip = git(site.root, "rev-parse", "main")
    with planning(site):
        messages = wait_until(lambda: status(site).messages, event="the planner's message")
        assert messages[0].startswith("COORDINATION.md is not rewritten while a person edits it: ")
        assert git(site.root, "rev-parse", "main") == tip
        file.write_text(edited)
        git(site.root, "commit", "--quiet", "-am", "Add a thought")
        if swap_file:
            opened.unlink()
        wait_for_table(site, lambda rows: set(rows) == set(NAMES), "two rows")
        wait_until(lambda: not status(site).messages, event="the end of the message")
    assert text in file.read_text()
    assert git(site.root, "status", "--porcelain") == ""


def test_workers_get_work_beside_an_edit_that_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "EDIT_PATIENCE_S", 0.0)
    file = site.root / "COORDINATION.md"
    file.write_text(edited := file.read_text() + "A thought of mine.\n")
    with planning(site):
        wait_for_table(site, lambda rows: set(rows) == set(NAMES), "two rows")
    assert file.read_text() == edited
    assert "A thought of mine." not in git(site.root, "show", "main:COORDINATION.md")


def test_notes_become_lessons_once(site: Site) -> None:
    for text in ("wider is not faster", "wider  is\nnot faster", "unrolling helps"):
        note = Note(problem="t/one", worker="w01", session="s", text=text, at="2026-01-01T00:00:00.000Z")
        leave_note(site.workspace, note)
    with planning(site):
        wait_until(lambda: not waiting_notes(site.workspace), event="the notes to be taken")
    lessons = records(site, "ledger/lessons/t/one.yaml")
    assert sorted(str(lesson["text"]) for lesson in lessons) == [
        "unrolling helps",
        "wider is not faster",
        "wider is not faster",
    ]
    shown = git(site.root, "show", "main:COORDINATION.md")
    assert shown.count("w01: wider is not faster") == 1, "the same words are listed once"


def test_decisions_replay(site: Site) -> None:
    with planning(site, workers=("w01",)):
        first = wait_for_table(site, lambda rows: "w01" in rows, "a row")["w01"]
        finish(site, {first: "exhausted"})
        wait_for_table(site, lambda rows: rows.get("w01") not in {None, first}, "another problem")
    with Repo(site.workspace) as repo:
        replays = replay(site.workspace, repo, Config())
    assert [(replayed.seq, replayed.is_equal) for replayed in replays] == [(1, True), (2, True)]
    completed = site.call("planner", "--replay")
    assert completed.returncode == 0
    assert completed.stdout.count("yes") == 2
    assert "no decisions of run other" in site.call("planner", "--replay", "--run", "other").stdout


def test_a_decision_that_comes_out_differently_is_an_answer_of_no(site: Site) -> None:
    with planning(site, workers=("w01",)):
        wait_for_table(site, lambda rows: "w01" in rows, "a row")
    file = site.root / "ledger/decisions.yaml"
    text = file.read_text()
    assert "decision: {assignments: [{worker:" in text
    inputs, decided, decision = text.partition("decision:")
    file.write_text(inputs + decided + decision.replace('"t/one"', '"t/two"'))
    git(site.root, "commit", "--quiet", "--all", "-m", "Tamper")
    completed = site.call("planner", "--replay")
    assert completed.returncode == 1
    assert "1 of 1 decisions differ from the recorded ones" in completed.stdout


def test_a_decision_without_its_author_is_reported_by_its_number(site: Site) -> None:
    inputs = PolicyInputs(problems=(), workers=())
    record = {"run": "main", "inputs": inputs.model_dump(mode="json"), "decision": {"assignments": [], "reasons": {}}}
    with Repo(site.workspace) as repo, Ledger(site.workspace, repo, branch="main", writer="planner") as ledger:
        ledger.append_record(DECISIONS, record)
        ledger.flush(force=True)
        with pytest.raises(LedgerError, match="record 1 is not a decision: 'policy'"):
            replay(site.workspace, repo, Config())


def test_one_planner_a_repository(site: Site) -> None:
    with planning(site):
        wait_for_table(site, lambda rows: set(rows) == set(NAMES), "two rows")
        with pytest.raises(ConfigurationError, match="harness planner"):
            run_planner(site.workspace, Config(), threading.Event(), workers=NAMES, target="cpu")


def test_the_planners_process_is_small_and_ends_on_sigterm(site: Site) -> None:
    process = site.start("planner", "--worker", "w01")
    wait_for_table(site, lambda rows: "w01" in rows, "a row")
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    resident = next(
        line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    assert int(resident.split()[1]) < 100_000, resident
    assert not [name for name in ("torch", "scipy", "optuna") if f"/{name}/" in mapped]
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    site.no_strays()


def test_a_broken_table_is_not_written_over_at_the_end_either(site: Site) -> None:
    with planning(site, workers=("w01",)):
        wait_for_table(site, lambda rows: "w01" in rows, "a row")
        edit(site, "| w09 | nowhere |")
        wait_until(lambda: status(site).messages, event="a complaint")
    assert "| w09 | nowhere |" in git(site.root, "show", "main:COORDINATION.md")


def test_an_edit_between_decision_and_writing_wins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    decided, edited = threading.Event(), threading.Event()

    def decide_slowly(inputs: PolicyInputs) -> Decision:
        decision = decide(inputs)
        if not edited.is_set():
            decided.set()
            edited.wait(20)
        return decision

    monkeypatch.setattr("harness.planner.planner.decide", decide_slowly)
    with planning(site, workers=("w01",)):
        assert decided.wait(20)
        edit(site, "| w01 | t/two | pinned | a person was faster |")
        edited.set()
        wait_until(lambda: status(site).assignments, event="the planner to see it")
    assert [(row.worker, row.problem, row.state) for row in table(site)] == [("w01", "t/two", "pinned")]
