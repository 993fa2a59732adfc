"""A workspace with a real problem, a real candidate and a ledger, which tests of the audit change."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.formats.ledger_documents import HEADER, hash_of, parse, render, split
from harness.formats.ledger_heads import Head, render_heads
from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.audit.audit import Break, audit
from harness.ledger.ledger import Ledger
from harness.model.entry import EntryDraft
from harness.model.paths import HEADS, ledger_file
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from tests.kept_directory import kept_directory
from tests.ledger.ledgers import PROBLEM, draft, git, make_workspace, ticking

FILE = ledger_file(PROBLEM)
Json = dict[str, Any]


@functools.cache
def _template() -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """Return a repository with a problem and a candidate's branch, made once per process; its commits; its trees."""
    root, problem = kept_directory("place") / "place", f"problems/{PROBLEM}"
    files = {f"{problem}/definition.json": "{}", f"{problem}/README.md": "words", f"{problem}/baseline/run.py": ""}
    make_workspace(root, files)
    git(root, "switch", "-q", "-c", f"agents/main/w01/{PROBLEM}")
    solution = root / problem / "solutions" / "cpu" / "solution.yaml"
    solution.parent.mkdir(parents=True)
    commits, trees = [], []
    for number in range(3):
        solution.write_text(f"notes: {number}\n")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"try {number}")
        commits.append(git(root, "rev-parse", "HEAD"))
        trees.append(git(root, "rev-parse", f"HEAD:{problem}/solutions/cpu"))
    git(root, "switch", "-q", "main")
    return root, tuple(commits), tuple(trees)


class Place:
    """A workspace with a real problem and a real candidate, and a ledger about them."""

    def __init__(self, root: Path) -> None:
        template, commits, trees = _template()
        shutil.copytree(template, root, symlinks=True, dirs_exist_ok=True)
        self.workspace = Workspace(root)
        self.repo = Repo(self.workspace)
        self.digest = problem_digest(root / "problems" / PROBLEM)
        self.commits, self.trees = [*commits], [*trees]
        self._entered = False

    def draft(self, kind: str = "evaluation", number: int = 0, **fields: Any) -> EntryDraft:
        candidate_fields = {"digest": self.digest, "tree": self.trees[number], "commit": self.commits[number], **fields}
        return draft(kind, **candidate_fields)

    def healthy(self) -> list[EntryDraft]:
        return [
            self.draft("baseline"),
            self.draft(number=0, speedup=1.2, cites=1),
            self.draft("confirmation", number=0, speedup=1.2, cites=2),
            self.draft("champion", number=0, cites=3),
            self.draft(number=1, verdict=Verdict.INCORRECT_NUMERICAL, cites=1),
            self.draft(number=2, speedup=1.5, cites=1),
            self.draft("confirmation", number=2, speedup=1.45, cites=6),
            self.draft("champion", number=2, cites=7),
            self.draft("note"),
        ]

    def enter(self, drafts: list[EntryDraft]) -> None:
        if not self._entered and drafts == self.healthy():
            shutil.copytree(_healthy_template(), self.workspace.root, symlinks=True, dirs_exist_ok=True)
        else:
            self._append(drafts)
        self._entered = True

    def _append(self, drafts: list[EntryDraft]) -> None:
        with Ledger(self.workspace, self.repo, branch="main", clock=ticking()) as ledger:
            for entry_draft in drafts:
                ledger.append(entry_draft)

    def breaks(self) -> list[Break]:
        return audit(self.workspace, self.repo, branch="main").breaks

    def content(self) -> bytes:
        return (self.workspace.root / FILE).read_bytes()

    def commit(self, files: dict[str, bytes], message: str = "by hand") -> None:
        for name, data in files.items():
            (self.workspace.root / name).write_bytes(data)
        git(self.workspace.root, "add", "-A")
        git(self.workspace.root, "commit", "-q", "--allow-empty", "-m", message)

    def forge(self, change: Callable[[list[Json]], object]) -> None:
        """Rewrite the whole file with a valid chain and matching heads, as a forger with knowledge of the format."""
        documents = [parse(document.raw, FILE) for document in split(self.content(), FILE)]
        change(documents)
        raws: list[bytes] = []
        for document in documents:
            document["prev"] = hash_of(raws[-1]) if raws else None
            raws.append(render(document))
        last = documents[-1]
        head = Head(seq=last["seq"], hash=hash_of(raws[-1]), at=last["at"])
        # An amended root leaves no former heads to compare with: what remains are the numbers themselves.
        self.commit({FILE: HEADER + b"".join(raws), HEADS: render_heads({FILE: head})})
        self.forget_history()

    def replace_history(self, *parents: str) -> None:
        """Replace the history of main by one commit with the same content."""
        root = self.workspace.root
        parent_options = [part for parent in parents for part in ("-p", parent)]
        new_commit = git(root, "commit-tree", "main^{tree}", *parent_options, "-m", "x")
        git(root, "update-ref", "refs/heads/main", new_commit)

    def root_commit(self) -> str:
        return git(self.workspace.root, "rev-list", "--max-parents=0", "main")

    def forget_history(self) -> None:
        """Replace the history, and remove every record of the former history from this repository."""
        self.replace_history(self.root_commit())
        git(self.workspace.root, "reflog", "expire", "--expire=all", "--all")
        written_refs = git(self.workspace.root, "for-each-ref", "--format=%(refname)", "refs/harness/written")
        for name in written_refs.split():
            git(self.workspace.root, "update-ref", "-d", name)


@functools.cache
def _healthy_template() -> Path:
    """Return a place with a valid ledger, made once per process."""
    root = kept_directory("place") / "place"
    place = Place(root)
    with place.repo:
        place._append(place.healthy())  # noqa: SLF001 - the class above, which would copy what is made here
    return root


def changed(seq: int, path: tuple[str | int, ...], value: object) -> Callable[[list[Json]], None]:
    """Return a change of one value of the document `seq`, for `Place.forge`."""

    def change(documents: list[Json]) -> None:
        inner: Any = documents[seq - 1]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change
