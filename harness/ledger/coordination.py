"""COORDINATION.md: the one protocol file, for agents and people.

The harness rewrites the text between its marker comments; every other byte belongs to people and is preserved. The
assignment table is read back, so that a person may edit it: the planner never moves pinned rows, and paused problems
get no worker.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from importlib import resources

from harness.errors import FormatError
from harness.formats.bounded import check_size
from harness.git.repo import Repo
from harness.model.assignment import Assignment
from harness.model.paths import is_problem, is_worker
from harness.model.printable import one_line, printable
from harness.model.timed_checks import CHECKS_TEXT
from harness.workspace.directories import COORDINATION_NAME, Workspace

SECTIONS = ("assignments", "standings", "notes")
_STATES = ("active", "pinned", "paused")
_HEADER = ("worker", "problem", "state", "wanted")
_RULE = re.compile(r"\s*:?-+:?\s*")
_LONGEST_QUOTE = 60
NO_WORKER = "-"
"""The worker of a paused row, which pauses its problem for all workers."""
_SWAP_FILES = tuple(
    form.format(COORDINATION_NAME) for form in (".{}.swp", ".{}.swo", ".#{}", "#{}#", ".{}.kate-swp", ".~lock.{}#")
)
"""Files that editors write beside an open file: Vim and nano, Emacs (lock and auto-save), Kate, LibreOffice."""


def sign_of_editing(workspace: Workspace, repo: Repo, branch: str) -> str | None:
    """Return the sign that a person edits the file: an editor's swap file, or changes that are not committed.

    Args:
        branch: the coordination branch; a checkout of another branch shows another file.
    """
    for name in _SWAP_FILES:
        path = workspace.root / name
        if path.exists() or path.is_symlink():  # Emacs' lock is a dangling link
            return f"an editor has it open ({name})"
    if repo.is_edited(branch, COORDINATION_NAME):
        return "it has changes that are not committed"
    return None


def default_text() -> str:
    """Return the file that `harness init` writes."""
    template = resources.files("harness.ledger").joinpath("COORDINATION.md").read_text(encoding="utf-8")
    return template.replace("CHECKS_TEXT", CHECKS_TEXT)


def read_assignments(repo: Repo, branch: str) -> tuple[Assignment, ...]:
    """Return the assignment table at the tip of a branch.

    Args:
        branch: the coordination branch.

    Raises:
        FormatError: the table is broken or the file is missing; the message has the line.
        RepositoryError: there is no such branch.
    """
    text = read_text(repo, branch)
    return parse(text, where=f"{COORDINATION_NAME} on {branch}")


def read_text(repo: Repo, branch: str) -> str:
    """Return COORDINATION.md at the tip of a branch.

    Args:
        branch: the coordination branch.

    Raises:
        FormatError: the file is missing, or not UTF-8.
    """
    raw = repo.read(repo.tip(branch), COORDINATION_NAME)
    where = f"{COORDINATION_NAME} on {branch}"
    if raw is None:
        command = "`harness init --problems none`, which writes and commits a new one"
        remedy = f"commit it on {branch}; without a copy, check out {branch} and run {command}"
        raise FormatError("is not there", where=where, remedy=remedy)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8: {error.reason} at byte {error.start}", where=where) from error


def parse(text: str, *, where: str = COORDINATION_NAME) -> tuple[Assignment, ...]:
    """Return the assignments in a text.

    Args:
        text: the content of COORDINATION.md.
        where: the file's name in error messages.

    Raises:
        FormatError: the text is too large, markers are missing, duplicated or out of order, or a row is wrong. The
            message has the line.
    """
    check_size(text, where=where)
    begin, end = _sections(text, where)["assignments"]
    first_number = text.count("\n", 0, begin) + 1
    lines = [(number, line) for number, line in enumerate(text[begin:end].splitlines(), first_number) if line.strip()]
    rows: dict[tuple[str, str], tuple[int, Assignment]] = {}
    problem_of_worker: dict[str, str] = {}
    for position, (number, line) in enumerate(lines):
        at = f"{where}:{number}"
        cells = _cells(line, at)
        if position < 2:
            _check_header(cells, position, at)
            continue
        row = _row(cells, at)
        key = (row.worker, row.problem)
        if key in rows:
            raise FormatError(f"{row.worker} and {row.problem} are already in line {rows[key][0]}", where=at)
        if row.state != "paused" and row.worker in problem_of_worker:
            busy = f"{row.worker} already works on {problem_of_worker[row.worker]}"
            raise FormatError(f"{busy}; expected one row per worker", where=at)
        rows[key] = number, row
        if row.state != "paused":
            problem_of_worker[row.worker] = row.problem
    if len(lines) == 1:
        raise FormatError("the table's head has no line of dashes below it", where=f"{where}:{first_number}")
    return tuple(row for _, row in rows.values())


def render(
    text: str, *, assignments: Iterable[Assignment], standings_markdown: str, notes: Mapping[str, str], updated_at: str
) -> str:
    """Return the text with its three sections rewritten; every byte outside the markers stays.

    Args:
        text: the present file.
        assignments: the new table, in this order.
        standings_markdown: Markdown without marker comments.
        notes: problem -> the planner's note, Markdown.
        updated_at: the time of the update, for people.

    Raises:
        FormatError: the markers of `text` are broken; the message has the line.
    """
    spans = _sections(text, COORDINATION_NAME)
    note_lines = [f"- **{problem}**: {_one_line(note)}" for problem, note in sorted(notes.items())]
    bodies = {
        "assignments": _table(assignments),
        "standings": f"As of {updated_at}.\n\n{_without_markers(standings_markdown).strip()}",
        "notes": "\n".join(note_lines) or "None yet.",
    }
    # An editor may have written the file with CRLF line ends: the rewritten sections get the same line ends.
    newline = "\r\n" if "\r\n" in text else "\n"
    for name in sorted(SECTIONS, key=lambda section: -spans[section][0]):
        begin, end = spans[name]
        body = bodies[name].replace("\n", newline)
        text = f"{text[:begin]}{newline}{body}{newline}{text[end:]}"
    return text


def _sections(text: str, where: str) -> dict[str, tuple[int, int]]:
    """Return section name -> (begin, end) of its content."""
    spans: dict[str, tuple[int, int]] = {}
    for name in SECTIONS:
        _, begin = _marker_span(text, f"<!-- harness:{name} begin -->", where)
        end, _ = _marker_span(text, f"<!-- harness:{name} end -->", where)
        if begin > end:
            raise FormatError(f"section {name} ends before it begins", where=_line_at(text, end, where))
        spans[name] = begin, end
    ordered = sorted(SECTIONS, key=lambda section: spans[section])
    for section, following in itertools.pairwise(ordered):
        begin = spans[following][0]
        if spans[section][1] > begin:
            message = f"section {following} begins inside section {section}"
            raise FormatError(message, where=_line_at(text, begin, where))
    return spans


def _marker_span(text: str, marker: str, where: str) -> tuple[int, int]:
    """Return the position and the end of a marker that occurs once."""
    position = text.find(marker)
    if position < 0:
        raise FormatError(
            f"the marker {marker} is missing", where=where, remedy="restore both markers, each on its own line"
        )
    end = position + len(marker)
    if (second := text.find(marker, end)) >= 0:
        raise FormatError(f"the marker {marker} occurs a second time", where=_line_at(text, second, where))
    return position, end


def _line_at(text: str, position: int, where: str) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{where}:{line}"


def _cells(line: str, at: str) -> list[str]:
    stripped = line.strip()
    if not (stripped.startswith("|") and stripped.endswith("|") and len(stripped) > 1):
        raise FormatError(
            f"`{_quoted(stripped)}` is not a row of the table; expected `| ... | ... | ... | ... |`", where=at
        )
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", stripped[1:-1])]


def _check_header(cells: list[str], number: int, at: str) -> None:
    if number == 0 and tuple(cells) != _HEADER:
        raise FormatError(
            f"the table's head is `{_quoted(' | '.join(cells))}`; expected `{' | '.join(_HEADER)}`", where=at
        )
    if number == 1 and not all(_RULE.fullmatch(cell) for cell in cells):
        raise FormatError("expected the line of dashes below the table's head", where=at)


def _quoted(cell: str) -> str:
    return one_line(cell, _LONGEST_QUOTE)


def _row(cells: list[str], at: str) -> Assignment:
    if len(cells) != len(_HEADER):
        raise FormatError(f"a row of {len(cells)} cells; expected {len(_HEADER)}: {', '.join(_HEADER)}", where=at)
    worker, problem, state, instruction = cells
    if state not in _STATES:
        raise FormatError(f"the state is `{_quoted(state)}`; expected one of {', '.join(_STATES)}", where=at)
    if not (is_worker(worker) or (worker == NO_WORKER and state == "paused")):
        raise FormatError(
            f"`{_quoted(worker)}` is not a worker's name; expected letters and digits, such as w01", where=at
        )
    if not is_problem(problem):
        raise FormatError(f"`{_quoted(problem)}` is not a problem's key; expected suite/name", where=at)
    return Assignment(worker=worker, problem=problem, state=state, wanted=instruction)  # type: ignore[arg-type] # checked above


def _table(assignments: Iterable[Assignment]) -> str:
    lines = [f"| {' | '.join(_HEADER)} |", "| --- | --- | --- | --- |"]
    for row in assignments:
        instruction = _one_line(row.wanted).replace("|", "\\|")
        lines.append(f"| {row.worker} | {row.problem} | {row.state} | {instruction} |")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """Return a text as one line of a table or list: a note is an agent's text and must not break the file."""
    return _without_markers(printable(" ".join(text.split())))


def _without_markers(text: str) -> str:
    return text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")
