"""The check of plain language: each rule finds a planted violation, and the package has none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.language.check import SOURCES, files, violations
from tests.language.rules import ALLOWED, LONGEST_SENTENCE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "rule", "text"),
    [
        ('def f():\n    """Whether the file exists."""', "docstring opens with a question word", "Whether"),
        ('def f():\n    """How long to wait."""', "docstring opens with a question word", "How long"),
        ("found = 1", "vague name", "found"),
        ("def f(each): ...", "vague name", "each"),
        ("class One: ...", "vague name", "one"),
        ("self.told = 1", "vague name", "told"),
        ('x = "the judge says why"', "word `says`", "judge says why"),
        ("x = 1  # nobody reads it", "word `nobody`", "nobody reads it"),
        (f'"""{"word " * (LONGEST_SENTENCE + 1)}."""', f"sentence of {LONGEST_SENTENCE + 2} words", "word"),
    ],
)
def test_each_rule_finds_its_violation(code: str, rule: str, text: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(textwrap.dedent(code) + "\n")
    assert [violation.rule for violation in violations(source)] == [rule]
    assert text in violations(source)[0].text


@pytest.mark.parametrize(
    "code",
    [
        'KEY = "found"',
        "def _f(a, b):\n    return a + b",
        'def f(a, b):\n    """Return the sum."""',
        'x = "the verdict is SUSPECT"',
    ],
)
def test_permitted_code_has_no_violation(code: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(code + "\n")
    assert violations(source) == []


def test_code_in_documents_is_not_checked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A `wanted` column.\n\n```\nit says so\n```\n\nThe daemon says so.\n")
    assert [(violation.line, violation.rule) for violation in violations(page)] == [(7, "word `says`")]


def test_the_repository_follows_the_rules() -> None:
    all_violations = [
        str(violation) for file in files([ROOT / source for source in SOURCES]) for violation in violations(file)
    ]
    assert all_violations == []


def test_at_most_twenty_terms_are_excepted_each_with_a_reason() -> None:
    assert len(ALLOWED) <= 20
    assert all(len(reason) > 10 for reason in ALLOWED.values())
