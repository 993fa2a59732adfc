"""Ledgers of all earlier formats stay readable, and an upgrade changes no byte of a document."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.errors import ConfigurationError, LedgerError
from harness.formats.ledger_documents import parse, parse_entry, render, split
from harness.formats.ledger_heads import heads_format
from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger, read_records
from harness.ledger.spool import read_all
from harness.ledger.standings import standings
from harness.ledger.upgrade import LedgerUpgrade, upgrade_ledger
from harness.model.entry import LEDGER_FORMAT, MEASURED
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.paths import HEADS
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock
from tests.ledger.fixture_ledgers import FIXTURES, PROBLEMS, PROTOCOL, SPOOLED, STANDINGS, restore, standings_of
from tests.ledger.ledgers import draft, git
from tests.whole_entries import whole_entries

VERSIONS = sorted(int(path.name.removeprefix("v")) for path in FIXTURES.iterdir())
FILE = "ledger/starter/rmsnorm_h4096.yaml"
SPOOLS_FILE = "ledger/starter/swiglu.yaml"


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def old(tmp_path: Path, version: int) -> Iterator[tuple[Workspace, Repo]]:
    """Yield the workspace and repository of a ledger of each format."""
    workspace = restore(FIXTURES / f"v{version}", tmp_path / "a workspace")
    with Repo(workspace) as repo:
        yield workspace, repo


@pytest.fixture
def first(tmp_path: Path) -> Iterator[tuple[Workspace, Repo]]:
    """Yield the workspace and repository of a ledger of format 1."""
    workspace = restore(FIXTURES / "v1", tmp_path / "a workspace")
    with Repo(workspace) as repo:
        yield workspace, repo


def run_upgrade(workspace: Workspace, repo: Repo, *, dry_run: bool = False) -> LedgerUpgrade:
    return upgrade_ledger(workspace, repo, "main", dry_run=dry_run)


def files(workspace: Workspace) -> dict[str, bytes]:
    names = sorted((workspace.root / "ledger").rglob("*.yaml"))
    return {str(name.relative_to(workspace.root)): name.read_bytes() for name in names}


def stored(version: int) -> object:
    return json.loads((FIXTURES / f"v{version}" / STANDINGS).read_text())


def break_messages(workspace: Workspace, repo: Repo) -> list[str]:
    return [break_.message for break_ in audit(workspace, repo, branch="main").breaks]


def test_there_is_a_fixture_of_every_format() -> None:
    assert list(range(1, LEDGER_FORMAT + 1)) == VERSIONS


def test_a_ledger_of_any_format_is_whole_and_has_its_standings(old: tuple[Workspace, Repo], version: int) -> None:
    workspace, repo = old
    result = audit(workspace, repo, branch="main")
    assert (result.breaks, result.notes) == ([], [])
    assert (result.entries, result.records, result.spooled) == (13, 3, SPOOLED)
    assert standings_of(workspace) == stored(version)
    assert heads_format((workspace.root / HEADS).read_bytes()) == version


def test_an_upgrade_keeps_every_byte_and_every_standing(old: tuple[Workspace, Repo], version: int) -> None:
    workspace, repo = old
    before, tip = files(workspace), repo.tip("main")
    result = run_upgrade(workspace, repo)
    assert result.is_outdated is (version < LEDGER_FORMAT)
    assert break_messages(workspace, repo) == []
    assert standings_of(workspace) == stored(version)
    after = files(workspace)
    assert all(after[file].startswith(content) for file, content in before.items() if file != HEADS)
    assert heads_format(after[HEADS]) == LEDGER_FORMAT
    if result.is_outdated:
        assert git(workspace.root, "rev-list", "--count", f"{tip}..main") == "1"
        assert git(workspace.root, "log", "-1", "--format=%H %s", "main").startswith(f"{result.commit} Upgrade")
        assert read_all(workspace.spool) == []
        assert {file for file in after if after[file] != before[file]} == {HEADS, SPOOLS_FILE}
    assert git(workspace.root, "status", "--porcelain") == ""


def test_a_second_upgrade_does_nothing(old: tuple[Workspace, Repo]) -> None:
    workspace, repo = old
    run_upgrade(workspace, repo)
    tip = repo.tip("main")
    second_result = run_upgrade(workspace, repo)
    assert (second_result.is_outdated, second_result.commit, second_result.files) == (False, None, ())
    assert repo.tip("main") == tip


def test_a_dry_run_reports_and_writes_nothing(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    tip, before, spooled = repo.tip("main"), files(workspace), read_all(workspace.spool)
    result = run_upgrade(workspace, repo, dry_run=True)
    assert result.is_outdated
    assert result.commit is None
    change_by_file = {upgraded.file: upgraded.change for upgraded in result.files}
    assert change_by_file[HEADS] == "format 1 becomes format 2"
    assert change_by_file[FILE] == "8 documents keep their bytes"
    assert change_by_file[SPOOLS_FILE] == "2 documents keep their bytes; 1 from the spool committed"
    assert (repo.tip("main"), files(workspace), read_all(workspace.spool)) == (tip, before, spooled)
    done = run_upgrade(workspace, repo)
    assert done.files == result.files, "a dry run reports the changes of the upgrade"


def test_a_ledger_keeps_its_format_until_it_is_upgraded(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    note = draft("note", problem="starter/swiglu")
    with Ledger(workspace, repo, branch="main") as ledger:
        assert ledger.append(note).format == 1
        with pytest.raises(LedgerError, match=r"format 1 cannot record entries of a judge of protocol 2"):
            ledger.append(draft(problem="starter/swiglu", judge_protocol=2))
    run_upgrade(workspace, repo)
    with Ledger(workspace, repo, branch="main") as ledger:
        assert ledger.append(note).format == 2
        ledger.append(draft(problem="starter/swiglu", judge_protocol=2))
    with Ledger(workspace, repo, branch="main", writer="planner") as planner:
        planner.append_record("ledger/decisions.yaml", {"policy": "p"})
    documents = split(files(workspace)[SPOOLS_FILE], SPOOLS_FILE)
    assert [document.format for document in documents] == [1, 1, 1, 1, 2, 2]
    entries = [parse_entry(document.raw, SPOOLS_FILE) for document in documents]
    assert [entry.judge_protocol for entry in entries] == [1, 1, 1, None, None, 2]
    decisions = read_records(workspace, repo, "ledger/decisions.yaml", branch="main")
    assert [record.get("format", 1) for record in decisions] == [1, 2]
    # The drafts name no real candidates, so only the parts that an upgrade could break are checked.
    assert not [
        message
        for message in break_messages(workspace, repo)
        if "format" in message or "chain" in message or "rewritten" in message
    ]
    with Index(workspace, branch="main") as index:
        index.refresh(repo)
        rows = index.rows("starter/swiglu")
    assert [row.judge_protocol for row in rows] == [1, 1, 1, None, None, 2]


def test_entries_of_every_format_have_the_judges_protocol(old: tuple[Workspace, Repo]) -> None:
    workspace, repo = old
    with Index(workspace, branch="main") as index:
        index.refresh(repo)
        rows = index.rows()
        entries = whole_entries(index)
    assert len(rows) == 13
    assert all(row.judge_protocol == (1 if row.kind in MEASURED else None) for row in rows)
    assert [entry.judge_protocol for entry in entries] == [row.judge_protocol for row in rows]


def test_entries_of_the_fixtures_are_history_to_the_present_judge(old: tuple[Workspace, Repo]) -> None:
    workspace, repo = old
    with Index(workspace, branch="main") as index:
        index.refresh(repo)
        table = standings(index, PROBLEMS, "cpu", "main")
    assert JUDGE_PROTOCOL > PROTOCOL
    assert [(standing.champion, standing.best) for standing in table] == [(None, None)] * 3
    assert [[row.seq for row in standing.outdated] for standing in table] == [[], [6, 3], [3]]


def test_a_file_keeps_its_head_line_and_a_new_one_gets_the_newest(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    run_upgrade(workspace, repo)
    with Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("note", problem="starter/new"))
    head_lines = {file: content.partition(b"\n")[0].decode() for file, content in files(workspace).items()}
    assert head_lines[FILE] == "# kernel-harness ledger, format 1"
    assert head_lines["ledger/starter/new.yaml"] == "# kernel-harness ledger, format 2"


@pytest.mark.parametrize("writer", ["daemon", "planner"])
def test_an_open_ledger_is_not_upgraded(first: tuple[Workspace, Repo], writer: str) -> None:
    workspace, repo = first
    tip = repo.tip("main")
    with (
        file_lock(workspace.spool / writer / "lock", owner=f"harness {writer} (ledger)"),
        pytest.raises(ConfigurationError, match=rf"held by pid \d+ \(harness {writer} \(ledger\)\)"),
    ):
        run_upgrade(workspace, repo)
    assert repo.tip("main") == tip


def test_a_spool_that_does_not_continue_the_branch_stops_the_upgrade(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    git(workspace.root, "rm", "-q", SPOOLS_FILE)
    git(workspace.root, "commit", "-q", "-m", "by hand")
    tip, spooled = repo.tip("main"), read_all(workspace.spool)
    with pytest.raises(LedgerError, match="of another chain"):
        run_upgrade(workspace, repo)
    assert (repo.tip("main"), read_all(workspace.spool)) == (tip, spooled)


@pytest.mark.parametrize("place", ["commit.tree_written", "commit.branch_moved", "spool.before_drop"])
def test_an_upgrade_that_is_killed_can_be_run_again(first: tuple[Workspace, Repo], place: str) -> None:
    workspace, repo = first
    command = [sys.executable, "-m", "harness", "ledger", "upgrade"]
    killed = subprocess.run(
        command, cwd=workspace.root, env={**os.environ, "HARNESS_FAILPOINT": place}, check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    assert break_messages(workspace, repo) == []
    run_upgrade(workspace, repo)
    with Ledger(workspace, repo, branch="main"):
        repo.refresh_checkout("main")  # as the daemon does; it removes the spooled records that the upgrade committed
    assert read_all(workspace.spool) == []
    assert len(split(files(workspace)[SPOOLS_FILE], SPOOLS_FILE)) == 3
    assert (break_messages(workspace, repo), standings_of(workspace)) == ([], stored(1))
    assert heads_format(files(workspace)[HEADS]) == LEDGER_FORMAT


# --- newer formats ---

NEWER = "and this harness reads formats 1 to 2\n  install a newer kernel-harness: "


def change(workspace: Workspace, file: str, old: bytes, new: bytes) -> None:
    path = workspace.root / file
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    git(workspace.root, "commit", "-q", "-a", "-m", "by a newer harness")


def test_a_ledger_of_a_newer_format_is_refused_by_every_writer(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    change(workspace, HEADS, b"heads, format 1", b"heads, format 3")
    for attempt in (
        lambda: Ledger(workspace, repo, branch="main"),
        lambda: run_upgrade(workspace, repo),
        lambda: run_upgrade(workspace, repo, dry_run=True),
    ):
        with pytest.raises(LedgerError) as caught:
            attempt()
        assert str(caught.value).startswith(f"{HEADS}:1: the ledger has format 3, {NEWER}")
    assert "the ledger has format 3, and this harness reads formats 1 to 2" in break_messages(workspace, repo)


def test_a_file_of_a_newer_format_is_refused(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    change(workspace, FILE, b"ledger, format 1", b"ledger, format 7")
    with Index(workspace, branch="main") as index, pytest.raises(LedgerError) as caught:
        index.refresh(repo)
    assert str(caught.value).startswith(f"{FILE}:1: the ledger file has format 7, {NEWER}")
    assert "the ledger file has format 7, and this harness reads formats 1 to 2" in break_messages(workspace, repo)


def test_a_document_of_a_newer_format_is_named() -> None:
    with pytest.raises(LedgerError) as caught:
        parse(b"---\nformat: 3\nseq: 4\n", f"{FILE} seq 4")
    assert str(caught.value).startswith(f"{FILE} seq 4: the document has format 3, {NEWER}")


def test_a_spool_of_a_newer_format_is_refused_and_kept(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    (segment,) = (workspace.spool / "daemon").glob("*.spool")
    content = segment.read_bytes().replace(b"spool, format 1", b"spool, format 2", 1)
    segment.write_bytes(content)
    for attempt in (lambda: Ledger(workspace, repo, branch="main"), lambda: read_all(workspace.spool)):
        with pytest.raises(LedgerError, match=r"the spool has format 2, and this harness reads format 1"):
            attempt()
    assert segment.read_bytes() == content


# --- incompatible formats ---


def test_a_format_that_falls_is_a_break(first: tuple[Workspace, Repo]) -> None:
    workspace, repo = first
    run_upgrade(workspace, repo)
    with Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("note", problem="starter/swiglu"))
    change(workspace, HEADS, b"heads, format 2", b"heads, format 1")
    with Ledger(workspace, repo, branch="main") as ledger:
        assert ledger.append(draft("note", problem="starter/swiglu")).format == 1
    format_breaks = [
        (break_.file, break_.seq, break_.expected, break_.actual)
        for break_ in audit(workspace, repo, branch="main").breaks
        if break_.message == f"the document's format is not from that of the file so far to that of {HEADS}"
    ]
    assert format_breaks == [(SPOOLS_FILE, 4, "1 to 1", 2), (SPOOLS_FILE, 5, "2 to 1", 1)]


def test_a_measured_entry_of_format_2_needs_the_protocol_and_one_of_format_1_has_none(tmp_path: Path) -> None:
    workspace = restore(FIXTURES / "v2", tmp_path / "a workspace")
    document = parse(split(files(workspace)[FILE], FILE)[1].raw, FILE)
    assert document.pop("judge_protocol") == 1
    with pytest.raises(LedgerError, match="an entry of kind evaluation needs judge_protocol"):
        parse_entry(render(document), FILE)
    del document["format"]
    assert parse_entry(render(document), FILE).judge_protocol == 1
    with pytest.raises(LedgerError, match="judge_protocol: documents of format 1 have no such field"):
        parse_entry(render({**document, "judge_protocol": 1}), FILE)


# --- the command ---


def test_the_command_reports_file_by_file_and_refuses_beside_a_start(
    first: tuple[Workspace, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo = first
    monkeypatch.chdir(workspace.root)
    tip = repo.tip("main")
    with file_lock(workspace.start_lock, owner="harness start"):
        ran = CliRunner().invoke(cli, ["ledger", "upgrade"])
        assert isinstance(ran.exception, ConfigurationError)
        assert "a run is in progress in this workspace: held by pid" in ran.exception.message
        assert "harness stop" in (ran.exception.remedy or "")
    dry = CliRunner().invoke(cli, ["ledger", "upgrade", "--dry-run"], catch_exceptions=False)
    assert "would upgrade the ledger on main from format 1 to format 2" in dry.output
    assert repo.tip("main") == tip
    ran = CliRunner().invoke(cli, ["ledger", "upgrade"], catch_exceptions=False)
    assert ran.exit_code == 0
    lines = ran.output.splitlines()
    assert f"{HEADS} format 1 becomes format 2" in [" ".join(line.split()) for line in lines]
    assert lines[-1] == f"upgraded the ledger on main from format 1 to format 2 in {repo.tip('main')[:12]}"
    second_run = CliRunner().invoke(cli, ["ledger", "upgrade", "--json"], catch_exceptions=False)
    assert json.loads(second_run.output)["needed"] is False
