"""The documentation agrees with the program, and the targets of its links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from harness.model.config import Config
from tests.docs import diagrams
from tests.docs.commands import FILE

ROOT = FILE.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_reference_of_commands_is_the_programs_own() -> None:
    # A new process, because click keeps the help option of the first context, which may be of another test.
    code = "import sys; from tests.docs.commands import reference; sys.stdout.write(reference())"
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert FILE.read_text() == completed.stdout, "`make docs` writes it again"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if not link.startswith(("http://", "https://"))]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_page_can_be_found_from_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text() + (ROOT / "README.md").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    lost = [page for page in pages if page not in index and not page.startswith("adr/") and page != "README.md"]
    assert lost == [], "name them in docs/README.md"


def test_the_table_of_harness_yaml_has_every_key() -> None:
    keys: set[str] = set()
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys |= {f"{name}.{key}" for key in section.model_fields}
        else:
            keys.add(name)
    table = (ROOT / "docs/formats.md").read_text().partition("## harness.yaml")[2].partition("\n## ")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {name for cell in first_cells for name in re.findall(r"`([a-z_.]+)`", cell)}
    assert keys <= {".".join(name.split(".")[:2]) for name in named}


def test_the_owners_file_names_paths_that_exist() -> None:
    rows = [row.split()[0] for row in (ROOT / ".github/CODEOWNERS").read_text().splitlines() if row.startswith("/")]
    assert [path for path in rows if not list(ROOT.glob(path.strip("/")))] == []


@pytest.mark.parametrize("source", sorted(diagrams.DIRECTORY.glob("*.mmd")), ids=lambda source: source.stem)
def test_a_drawing_is_of_the_present_source(source: Path) -> None:
    assert diagrams.source_mark(source) in source.with_suffix(".svg").read_text(), "`make diagrams` draws it again"


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    command = [str(mkdocs), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert completed.returncode == 0, completed.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES) - 3, "README.md, CONTRIBUTING.md and CHANGELOG.md of the repository are no pages"
    loads = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"(?:https?:)?//[^>]*>")
    assert [match[0] for page in pages for match in loads.finditer(page.read_text())] == []
