"""Escape sequences, line breaks and bidirectional overrides in agents' texts, in every output that contains them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli.process_commands import log_to_file
from harness.git.solution_commits import whole_message
from harness.ledger.coordination import default_text, parse, render
from harness.model.assignment import Assignment
from harness.model.printable import printable
from harness.model.verdict import Verdict
from harness.report.page import render as render_page
from tests.cli.test_deep_input import output_of
from tests.formats.problem_files import write_problem, write_solution
from tests.ledger.audited_place import Place
from tests.ledger.ledgers import PROBLEM

NASTY = "x\x1b[2Jy\u202ez\x07\nharness: forged | `code` <b> [a](http://b)"
SHOWN = r"x\x1b[2Jy\u202ez\x07 harness: forged"  # the index keeps reasons as one line


_STEERING = re.compile("[^\\n\\t\\x20-\\x7e\\xa0-\\u2027\\u2030-\\u205f\\u2070-\\uffff]")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A ledger in which one candidate failed for a reason that its author chose."""
    place = Place(tmp_path / "w")
    monkeypatch.chdir(place.workspace.root)
    with place.repo:
        drafts = place.healthy()
        drafts[4] = place.draft(number=1, verdict=Verdict.COMPILE_ERROR, cites=1).model_copy(update={"reason": NASTY})
        place.enter(drafts)
        yield place


def assert_plain(text: str) -> None:
    assert not _STEERING.search(text)
    assert "\nharness: forged" not in text


@pytest.mark.usefixtures("place")
def test_log_and_review_escape_a_reason() -> None:
    for command in (("log", PROBLEM), ("review", PROBLEM)):
        output = output_of(*command)
        assert_plain(output)
        assert SHOWN in output
    assert_plain(output_of("status"))
    rows = json.loads(output_of("log", PROBLEM, "--json"))
    assert [row["reason"] for row in rows if row["verdict"] == "COMPILE_ERROR"] == [" ".join(NASTY.split())]


def test_audit_escapes_a_files_name(place: Place) -> None:
    (place.workspace.root / "ledger/t").mkdir()
    place.commit({"ledger/t/x\x1b[2J\u202e\n.yaml": b"nothing\n"})
    output = output_of("audit")
    assert_plain(output)
    assert r"ledger/t/x\x1b[2J\u202e\n.yaml" in output


def test_an_error_escapes_a_files_name(place: Place) -> None:
    problem = write_problem(place.workspace.root / "problems/t/odd")
    write_solution(problem / "solutions/cpu", **{"kernel.cpp": "", "a\x1b[2J\u202e\nb.cpp": ""})
    output = output_of("problems", "check", "t/odd")
    assert_plain(output)
    assert r"problems/t/odd/solutions/cpu/a\x1b[2J\u202e\nb.cpp: the source path holds unprintable characters" in output


def test_the_report_escapes_what_its_page_would_make_characters_again() -> None:
    page = render_page({"meta": {"run": NASTY, "target": "cpu"}, "rows": [{"reason": NASTY, NASTY: (1, NASTY)}]})
    assert_plain(page)
    assert SHOWN.split(maxsplit=1)[0] in page, "the title"
    assert json.dumps(printable(NASTY, keep_newlines=True)).replace("<", "\\u003c") in page
    data = page.partition("</title>")[2]
    for escape in ("u001b", "u202e", "u0007"):
        assert f"\\{escape}" not in data.replace(f"\\\\{escape}", "")


def test_coordination_md_keeps_a_note_in_its_line() -> None:
    row = Assignment(worker="w01", problem="t/one", state="active", wanted=NASTY)
    text = render(default_text(), assignments=[row], standings_markdown="", notes={"t/one": NASTY}, updated_at="now")
    assert_plain(text)
    assert parse(text)[0].wanted == printable(" ".join(NASTY.split()))


def test_a_commit_message_is_printable_and_trailers_are_not_forged() -> None:
    text = whole_message(f"Try {NASTY}", {"Worker": "w01\nRun: other\x1b"})
    assert not _STEERING.search(text)
    assert text.splitlines()[-1] == r"Worker: w01 Run: other\x1b"


def test_a_log_file_has_one_record_a_line(place: Place) -> None:
    logger = logging.getLogger("harness")
    before = list(logger.handlers)
    log_to_file(place.workspace, "daemon")
    try:
        logger.info("failed: %s", NASTY)
    finally:
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
            handler.close()
    text = (place.workspace.logs / "daemon.log").read_text()
    assert_plain(text)
    assert text.splitlines()[-1].startswith("  harness: forged")
