"""Is the ledger whole and true? Everything is read again: files, chain, heads, spools, citations, numbers, objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from harness.errors import LedgerError
from harness.formats.ledger_documents import HEADER, Document, check_header, field_of, parse, split
from harness.formats.ledger_heads import Head, end_of, heads_format, read_heads
from harness.formats.ledger_versions import in_newest_format
from harness.git.environment import EMAIL
from harness.git.repo import Repo
from harness.ledger.audit.entries import entry_faults
from harness.ledger.audit.history import (
    FormerHead,
    authors,
    former_heads,
    invented_beginnings,
    late_commits,
    pushed_copy,
    replaced_history,
)
from harness.ledger.audit.origins import Origins
from harness.ledger.ledger import coordination_branch
from harness.ledger.spool import Record, read_all
from harness.model.champions import counts
from harness.model.entry import LEDGER_FORMAT, Entry
from harness.model.paths import HEADS, LEDGER, parse_ledger_file
from harness.model.verdict import EntryKind
from harness.model.weaknesses import Weakness, facts_of, weakness_legend, weaknesses
from harness.workspace.directories import Workspace

Progress = Callable[[int, int], None]
"""Called with documents checked so far, and documents in all."""


@dataclass(frozen=True)
class Break:
    """One thing that is not as it must be."""

    file: str
    seq: int | None
    """The document; null where the break is the file's."""
    what: str
    expected: object = None
    found: object = None


@dataclass
class Audit:
    """What an audit looked at, and what it found."""

    branch: str
    commit: str
    files: int = 0
    entries: int = 0
    records: int = 0
    """Documents of the planner's."""
    spooled: int = 0
    """Documents that wait for their commit, counted above too."""
    breaks: list[Break] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    """What was compared with what, a line each, so that a reader can tell what "whole" means."""
    notes: list[str] = field(default_factory=list)
    """What is no break and worth a look."""


def audit(
    workspace: Workspace,
    repo: Repo,
    *,
    branch: str | None = None,
    progress: Progress | None = None,
    since: str | None = None,
) -> Audit:
    """Check the whole ledger: the coordination branch's tip and the spools.

    Every break is named; none ends the audit. Nothing is written.

    Args:
        workspace: whose ledger.
        repo: its repository.
        branch: the coordination branch; by default the one harness.yaml names.
        progress: called as documents are looked into.
        since: look into the content of documents entered since then (UTC, as entries write it); null for all.

    Raises:
        RepositoryError: there is no coordination branch, or git refuses.
    """
    branch = branch or coordination_branch(workspace)
    spooled = read_all(workspace.spool)  # before the tip: a flush meanwhile is then seen twice, never not at all
    tip = repo.tip(branch)
    chains = read_chains(repo, tip, spooled)
    result = Audit(branch, tip, files=len(chains.documents), spooled=chains.spooled, breaks=chains.breaks)
    cut = f"entries committed before are missing on {branch} (it was reset); the harness' next commit puts them back"
    result.breaks += [Break(file, None, cut) for file in repo.lost_appends(branch) if file != HEADS]
    held = {file: {one.seq: one.hash for one in documents} for file, documents in chains.documents.items()}
    copy = pushed_copy(repo, branch)
    if copy is not None and copy[1] != tip:
        known = {(found.file, found.seq) for found in chains.breaks}
        apart = former_heads_breaks(repo, copy[1], held, f"the copy at {copy[0]}, commit")
        result.breaks += [found for found in apart if (found.file, found.seq) not in known]
    if copy is not None:
        result.checked.append(f"the copy at {copy[0]}: no head in its history is another here")
    shallow = repo.is_shallow()
    if not shallow:
        replaced = [*replaced_history(repo, branch, tip, chains.former, copy), *invented_beginnings(repo, tip)]
        result.breaks += [Break(f"{LEDGER}/", None, what) for what in replaced]
        result.notes += late_commits(chains.former, chains.documents)
    result.breaks += _checkout_breaks(repo, branch)
    contents = _Contents(result, repo, tip, since, shallow=shallow)
    contents.check(chains.documents, progress or _no_progress)
    result.checked[:0] = _said(chains, contents)
    if shallow:
        result.notes.append(_SHALLOW.format(unchecked=contents.unchecked))
    result.notes += [*_other_hands(repo, tip), *weakness_legend(contents.weakened)]
    result.breaks.sort(key=lambda found: (found.file, found.seq or 0))
    return result


@dataclass
class Chains:
    """Every ledger file's documents, in order, and what is wrong with their order, hashes and heads."""

    documents: dict[str, list[Document]]
    breaks: list[Break]
    former: Sequence[FormerHead] = ()
    """Heads that the history of heads.yaml holds."""
    spooled: int = 0
    """Documents that only the spool holds."""


def read_chains(repo: Repo, commit: str, spooled: Sequence[Record] = ()) -> Chains:
    """The ledger as a commit holds it, with what is spooled after it; its content is not looked at."""
    contents = {file: repo.read(commit, file) or b"" for file in repo.files(commit, LEDGER) if file.endswith(".yaml")}
    heads_file = contents.pop(HEADS, None)
    waiting: dict[str, list[Record]] = {}
    for record in spooled:
        waiting.setdefault(record.file, []).append(record)
    result = Chains({}, list(_heads_breaks(contents, heads_file)))
    for file in sorted({*contents, *waiting}):
        result.documents[file], breaks, fresh = _chain(file, contents.get(file, b""), waiting.get(file, []))
        result.breaks += breaks
        result.spooled += fresh
    result.breaks += _format_breaks(contents, heads_file, result.documents)
    held = {file: {one.seq: one.hash for one in documents} for file, documents in result.documents.items()}
    result.former = former_heads(repo, commit)
    result.breaks += former_heads_breaks(repo, commit, held, "commit", result.former)
    return result


class _Contents:
    """Checks every document's content: format, citations, numbers, and what git confirms of it."""

    def __init__(self, result: Audit, repo: Repo, tip: str, since: str | None, *, shallow: bool) -> None:
        self._result, self._since = result, since
        self._origins = Origins(repo, tip, shallow=shallow)
        self.candidates: set[str] = set()
        self.digests: set[str] = set()
        self.numbers = 0
        self.looked_into = 0
        self.weakened: list[tuple[str, int, tuple[Weakness, ...]]] = []
        """Entries whose speed-ups count, and the reasons why these mean less."""

    @property
    def unchecked(self) -> int:
        """Entries whose candidate or form of the problem a shallow clone does not have."""
        return len(self._origins.unchecked)

    def check(self, chains: Mapping[str, list[Document]], progress: Progress) -> None:
        """Look into every file; counts and breaks go to the result."""
        done, of = 0, sum(map(len, chains.values()))
        for file, documents in chains.items():
            problem = parse_ledger_file(file)
            if problem is None:
                self._result.records += len(documents)
            else:
                self._result.entries += len(documents)
            if any(self._recent(document) for document in documents):
                entries = self._read(file, documents, is_entry=problem is not None)
                if problem is not None:
                    self._fit(file, problem, entries)
            done += len(documents)
            progress(done, of)

    def _recent(self, document: Document) -> bool:
        return self._since is None or (field_of(document.raw, "at") or self._since) >= self._since

    def _read(self, file: str, documents: list[Document], *, is_entry: bool) -> list[Entry]:
        entries: list[Entry] = []
        for document in documents:
            try:
                where = f"{file} seq {document.seq}"
                found = in_newest_format(parse(document.raw, where), where)
                if is_entry:
                    entries.append(Entry.model_validate(found))
            except ValidationError as error:
                for fault in error.errors():
                    key = ".".join(map(str, fault["loc"])) or "entry"
                    self._result.breaks.append(Break(file, document.seq, f"format: {key}: {fault['msg']}"))
            except LedgerError as error:
                self._result.breaks.append(Break(file, document.seq, f"format: {error.what}"))
        return entries

    def _fit(self, file: str, problem: str, entries: list[Entry]) -> None:
        recent = [entry for entry in entries if self._since is None or entry.at >= self._since]
        seqs = {entry.seq for entry in recent}
        faults = [*entry_faults(problem, entries), *self._origins.faults(problem, recent)]
        self._result.breaks += [Break(file, *fault) for fault in faults if fault[0] in seqs]
        self.looked_into += len(recent)
        self.candidates |= {entry.candidate.tree for entry in recent if entry.candidate}
        self.digests |= {entry.problem_digest for entry in recent}
        self.numbers += sum(len(entry.workloads) for entry in recent)
        known = {entry.seq: entry for entry in entries}
        for entry in recent:
            if entry.summary is not None and entry.summary.speedup is not None and counts(entry):
                baseline = _baseline_of(entry, known)
                reasons = weaknesses(facts_of(entry), facts_of(baseline) if baseline else None)
                self.weakened.append((problem, entry.seq, reasons))


def _baseline_of(entry: Entry, known: Mapping[int, Entry]) -> Entry | None:
    """The baseline entry that an evaluation cites, or that the evaluation cites which a confirmation cites."""
    cited = known.get(entry.cites or 0)
    if cited is not None and cited.kind is EntryKind.EVALUATION:
        cited = known.get(cited.cites or 0)
    return cited if cited is not None and cited.kind is EntryKind.BASELINE else None


def _said(chains: Chains, contents: _Contents) -> list[str]:
    """What "whole" stands for."""
    documents, heads = sum(map(len, chains.documents.values())), len(chains.former)
    numbers = "speed-up, interval, score and summary derived again from the block ratios; none below the floor"
    unchecked = f"; not checked in this shallow clone: {contents.unchecked} entries" if contents.unchecked else ""
    forms = f"{len(contents.digests)} forms of problems: each was on the branch"
    return [
        f"{documents} documents: each one's hash stands in the next, seq counts on, the clock never goes back",
        f"{heads} heads that were ever committed: each is still in its chain, and heads.yaml names every end",
        f"{contents.looked_into} entries: format, citations, nothing measured twice, each champion above the last",
        f"{contents.numbers} workload results: {numbers}",
        f"{len(contents.candidates)} candidates: git holds each commit with this very tree; {forms}{unchecked}",
    ]


_SHALLOW = (
    "this is a shallow clone: whether the history was replaced was not checked, and neither were the candidates or "
    "forms of problems of {unchecked} entries, which it does not have: `git fetch --unshallow`"
)
_REVERT = "take it back with `git restore --staged --worktree --source HEAD -- '{path}'`"
_WHAT_TO_DO = {
    "modified": f"see `git diff HEAD -- '{{path}}'`; {_REVERT}",
    "deleted": _REVERT,
    "staged": f"see `git diff --cached -- '{{path}}'`; {_REVERT}",
    "untracked": f"only the harness writes below {LEDGER}/: move the file away",
    "in conflict": "end the merge with the branch's own version: `git checkout --ours -- '{path}'`, `git add '{path}'`",
}


def _checkout_breaks(repo: Repo, branch: str) -> Iterator[Break]:
    """Files below ledger/ that a person changed in the checkout of the branch and did not commit."""
    for change in repo.local_changes(branch, f"{LEDGER}/"):
        todo = _WHAT_TO_DO[change.kind].format(path=change.path)
        yield Break(change.path, None, f"{change.kind} in the checkout, and not committed on {branch}: {todo}")


def _other_hands(repo: Repo, tip: str) -> list[str]:
    """Commits on ledger/ that the harness did not make: a merge or a rebase by a person, or an invented entry."""
    hands = authors(repo, tip, LEDGER)
    return [
        f"{count} {'commit' if count == 1 else 'commits'} on {LEDGER}/ by {author}, not by the harness: "
        f"`git log -p --author='{author}' -- {LEDGER}/`"
        for author, count in sorted(hands.items())
        if author != EMAIL
    ]


def _chain(file: str, content: bytes, spooled: list[Record]) -> tuple[list[Document], list[Break], int]:
    """A file's documents, committed and spooled, the breaks in their chain, and how many only the spool holds."""
    breaks: list[Break] = []
    committed: list[Document] = []
    try:
        committed = split(content, file)
        start = committed[0].start if committed else len(content)
        begins = content.find(b"\n") + 1  # after the head line
        if start != begins:
            breaks.append(Break(file, None, "bytes before the first document", "none", f"{start - begins} bytes"))
    except LedgerError as error:
        breaks.append(Break(file, None, error.what, HEADER.decode().strip(), content[:60].decode(errors="replace")))
    held = {document.hash for document in committed}
    fresh = [Document(-1, record.raw) for record in spooled if record.hash not in held]
    previous: Document | None = None
    for number, document in enumerate([*committed, *fresh], 1):
        breaks += [Break(file, document.seq or number, *fault) for fault in _link_faults(number, document, previous)]
        previous = document
    return [*committed, *fresh], breaks, len(fresh)


def _format_breaks(
    contents: Mapping[str, bytes], heads_file: bytes | None, documents: Mapping[str, Sequence[Document]]
) -> Iterator[Break]:
    """Formats only ever rise: in each file from its head line on, and no higher than heads.yaml allows."""
    try:
        ledger = LEDGER_FORMAT if heads_file is None else heads_format(heads_file)
        begun = {file: check_header(content, file) for file, content in contents.items() if content}
    except LedgerError:
        return  # named already, where the file itself is checked
    for file, chain in documents.items():
        least = begun.get(file, 1)
        for document in chain:
            if not least <= document.format <= ledger:
                what = f"the document's format is not from that of the file so far to that of {HEADS}"
                yield Break(file, document.seq, what, f"{least} to {ledger}", document.format)
            least = max(least, document.format)


def _link_faults(number: int, document: Document, previous: Document | None) -> Iterator[tuple[str, object, object]]:
    where = "in the spool: " if document.start < 0 else ""
    if document.seq != number:
        yield f"{where}seq does not count on", number, document.seq
    expected = previous.hash if previous else None
    if field_of(document.raw, "prev") != expected:
        yield (
            f"{where}chain broken: prev is not the hash of the document before",
            expected,
            field_of(document.raw, "prev"),
        )
    before, at = field_of(previous.raw, "at") if previous else None, field_of(document.raw, "at")
    if at is None or (before is not None and at < before):
        yield f"{where}at goes backward", f"{before} or later", at


def _heads_breaks(contents: Mapping[str, bytes], heads_file: bytes | None) -> Iterator[Break]:
    """heads.yaml against the files' ends."""
    try:
        heads = read_heads(heads_file)
    except LedgerError as error:
        yield Break(HEADS, None, error.what)
        return
    for file in sorted({*contents, *heads}):
        head = heads.get(file)
        try:
            end = end_of(contents.get(file), file)
        except LedgerError as error:
            yield Break(file, None, f"where it ends cannot be read: {error.what}")
            continue
        if head != end and (head is not None or contents.get(file)):
            yield Break(file, end.seq if end else None, f"{HEADS} says the file ends elsewhere", _say(head), _say(end))


def former_heads_breaks(
    repo: Repo,
    tip: str,
    held: Mapping[str, Mapping[int, str]],
    whose: str,
    former: Sequence[FormerHead] | None = None,
) -> Iterator[Break]:
    """Every head that was ever committed must still be in its chain: what a rewriting of file and heads cannot hide.

    `held` is file -> seq -> hash, of the chains as they are.
    """
    for commit, file, head in former_heads(repo, tip) if former is None else former:
        found = held.get(file, {}).get(head.seq)
        if found != head.hash:
            what = f"rewritten since {whose} {commit[:12]}, which had another document here"
            yield Break(file, head.seq, what, head.hash, found)


def _say(head: Head | None) -> str:
    return f"seq {head.seq} at {head.at}, {head.hash}" if head else "no such file"


def _no_progress(done: int, of: int) -> None:
    del done, of
