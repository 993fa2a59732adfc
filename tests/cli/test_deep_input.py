"""50,000 nested brackets in each file that a person or an agent writes: the command fails with one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.errors import HarnessError
from harness.formats.ledger_documents import HEADER
from tests.formats.problem_files import write_problem
from tests.ledger.audited_place import FILE, Place
from tests.ledger.ledgers import PROBLEM

DEEP = "[" * 500  # libyaml 0.2.6 itself refuses a thousand levels, with other words
TOO_DEEP = "nested more than 50 levels deep"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(tmp_path / "w")
    monkeypatch.chdir(place.workspace.root)
    with place.repo:
        place.enter(place.healthy()[:4])
        yield place


def output_of(*arguments: str) -> str:
    """Return the output of `harness ARGUMENTS`, including its error."""
    completed = CliRunner().invoke(cli, arguments)
    error = completed.exception
    assert error is None or isinstance(error, HarnessError | SystemExit), repr(error)
    return f"{completed.output}{error or ''}"


@pytest.mark.parametrize("command", [("audit",), ("status",), ("log", PROBLEM)])
def test_a_ledger_document_is_named(command: tuple[str, ...], place: Place) -> None:
    document = f'---\nseq: 5\nprev: "x"\nat: "2026-11-21T02:00:00.000Z"\nx: {DEEP}\n'.encode()
    place.commit({FILE: place.content() + document})
    output = output_of(*command)
    assert output.count(TOO_DEEP) == 1, output
    assert FILE in output


def test_a_proof_that_would_read_it_names_it(place: Place) -> None:
    content = place.content()
    place.commit({FILE: content[: content.rindex(b"---\n")] + f"---\nseq: 4\nx: {DEEP}\n".encode()})
    solution = f"problems/{PROBLEM}/solutions/cpu/solution.yaml"
    (place.workspace.root / solution).parent.mkdir(parents=True)
    place.commit({solution: b"language: cpp\n"})
    output = output_of("proof", "main~1..main")
    assert TOO_DEEP in output, output
    assert FILE in output


def test_heads_yaml_is_named(place: Place) -> None:
    place.commit({"ledger/heads.yaml": b"# kernel-harness heads, format 1\n" + DEEP.encode()})
    output = output_of("audit")
    assert "ledger/heads.yaml" in output
    assert TOO_DEEP in output


def test_harness_yaml_is_named(place: Place) -> None:
    (place.workspace.root / "harness.yaml").write_text(f"run: main\nagent: {DEEP}\n")
    assert output_of("status").startswith(f"harness.yaml:2: {TOO_DEEP}\n")


@pytest.mark.parametrize("name", ["definition.json", "workload.jsonl", "solutions/cpu/solution.yaml"])
def test_a_problems_file_is_named(name: str, place: Place) -> None:
    file = write_problem(place.workspace.root / "problems/t/deep") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"\n{DEEP}")
    output = output_of("problems", "check", "t/deep")
    assert f"problems/t/deep/{name}:2: {TOO_DEEP}" in output
    assert output.count(TOO_DEEP) == 1


def test_a_ledger_file_of_brackets_only_is_named(place: Place) -> None:
    place.commit({FILE: HEADER + b"---\n" + DEEP.encode()})
    assert TOO_DEEP in output_of("audit")
