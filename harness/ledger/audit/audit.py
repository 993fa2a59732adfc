"""Audit of the whole ledger: files, chain, heads, spools, citations, numbers and git objects are all read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from harness.errors import LedgerError
from harness.formats.ledger_documents import HEADER, Document, field_of, parse, split
from harness.formats.ledger_heads import Head, end_of, read_heads
from harness.git.environment import EMAIL
from harness.git.repo import Repo
from harness.ledger.audit import history
from harness.ledger.audit.entries import Origins, entry_faults
from harness.ledger.audit.history import FormerHead
from harness.ledger.ledger import ledger_contents
from harness.ledger.spool import Record, read_all
from harness.model.champions import counts
from harness.model.entry import Entry
from harness.model.paths import HEADS, LEDGER, parse_ledger_file
from harness.model.printable import count_of
from harness.model.verdict import EntryKind
from harness.model.weaknesses import Weakness, facts_of, weakness_legend, weaknesses
from harness.workspace.directories import Workspace

Progress = Callable[[int, int], None]
"""Called with the documents checked so far, and all documents."""


@dataclass(frozen=True)
class Break:
    """A violation of a rule of the ledger."""

    file: str
    seq: int | None
    """The document; null for a break of the whole file."""
    message: str
    expected: object = None
    actual: object = None

    def record(self) -> dict[str, object]:
        """Return the break under the keys of `harness audit --json`."""
        return {
            "file": self.file,
            "seq": self.seq,
            "what": self.message,
            "expected": self.expected,
            "found": self.actual,
        }


@dataclass
class Audit:
    """The extent and the result of an audit."""

    branch: str
    commit: str
    files: int = 0
    entries: int = 0
    records: int = 0
    """Documents of the planner."""
    spooled: int = 0
    """Documents that wait for their commit; they are also counted above."""
    breaks: list[Break] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    """The comparisons that were made, one line each: the definition of "whole"."""
    notes: list[str] = field(default_factory=list)
    """Warnings."""


def audit(
    workspace: Workspace,
    repo: Repo,
    *,
    branch: str,
    progress: Progress | None = None,
    since: str | None = None,
) -> Audit:
    """Check the whole ledger: the coordination branch's tip and the spools.

    The audit names every break and continues after it. It writes nothing.

    Args:
        branch: the coordination branch.
        progress: called while documents are checked.
        since: check the content of documents entered since this time (UTC, in the format of entries); null for all.

    Raises:
        RepositoryError: there is no coordination branch, or git refuses.
    """
    # Read before the tip: a document of a concurrent flush is then read twice, never missed.
    spooled = read_all(workspace.spool)
    tip = repo.tip(branch)
    chains = read_chains(repo, tip, spooled)
    result = Audit(branch, tip, files=len(chains.documents), spooled=chains.spooled, breaks=chains.breaks)
    cut = f"entries committed before are missing on {branch} (it was reset); the harness' next commit restores them"
    result.breaks += [Break(file, None, cut) for file in repo.lost_appends(branch) if file != HEADS]
    copy = history.pushed_copy(repo, branch)
    if copy is not None and copy[1] != tip:
        chain_breaks = {(break_.file, break_.seq) for break_ in chains.breaks}
        copy_heads = history.former_heads(repo, copy[1])
        copy_breaks = former_heads_breaks(copy_heads, chains.documents, f"the copy at {copy[0]}, commit")
        result.breaks += [break_ for break_ in copy_breaks if (break_.file, break_.seq) not in chain_breaks]
    if copy is not None:
        result.checked.append(f"the copy at {copy[0]}: no head in its history is another here")
    shallow = repo.git.run("rev-parse", "--is-shallow-repository").text == "true"
    if not shallow:
        replaced = list(history.replaced_history(repo, branch, tip, chains.former, copy))
        replaced += history.invented_beginnings(repo, tip)
        result.breaks += [Break(f"{LEDGER}/", None, message) for message in replaced]
        result.notes += history.late_commits(chains.former, chains.documents)
    result.breaks += _checkout_breaks(repo, branch)
    contents = _Contents(result, repo, tip, since, shallow=shallow)
    contents.check(chains.documents, progress or (lambda *_: None))
    result.checked[:0] = _comparisons(chains, contents)
    if shallow:
        result.notes.append(_SHALLOW.format(unchecked=contents.unchecked))
    result.notes += [*_foreign_commits(repo, tip), *weakness_legend(contents.weakened)]
    result.breaks.sort(key=lambda break_: (break_.file, break_.seq or 0))
    return result


@dataclass
class Chains:
    """Every ledger file's documents, in order, and the breaks of their order, hashes and heads."""

    documents: dict[str, list[Document]]
    breaks: list[Break]
    former: Sequence[FormerHead] = ()
    """Heads in the history of heads.yaml."""
    spooled: int = 0
    """Documents that only the spool holds."""


def read_chains(repo: Repo, commit: str, spooled: Sequence[Record] = ()) -> Chains:
    """Return the ledger of a commit, followed by spooled documents; their content is not checked."""
    contents = ledger_contents(repo, commit)
    heads_file = contents.pop(HEADS, None)
    waiting: dict[str, list[Record]] = {}
    for record in spooled:
        waiting.setdefault(record.file, []).append(record)
    result = Chains({}, list(_heads_breaks(contents, heads_file)))
    for file in sorted({*contents, *waiting}):
        result.documents[file], breaks, fresh = _chain(file, contents.get(file, b""), waiting.get(file, []))
        result.breaks += breaks
        result.spooled += fresh
    result.former = history.former_heads(repo, commit)
    result.breaks += former_heads_breaks(result.former, result.documents, "commit")
    return result


class _Contents:
    """Checks every document's content: format, citations, numbers, and the objects in git."""

    def __init__(self, result: Audit, repo: Repo, tip: str, since: str | None, *, shallow: bool) -> None:
        self._result, self._since = result, since
        self._origins = Origins(repo, tip, shallow=shallow)
        self.candidates: set[str] = set()
        self.digests: set[str] = set()
        self.numbers = 0
        self.checked_entries = 0
        self.weakened: list[tuple[str, int, tuple[Weakness, ...]]] = []
        """Entries whose speed-ups count, and the reasons that weaken these."""

    @property
    def unchecked(self) -> int:
        """Number of entries whose candidate or form of the problem a shallow clone lacks."""
        return len(self._origins.unchecked)

    def check(self, chains: Mapping[str, list[Document]], progress: Progress) -> None:
        """Check every file; counts and breaks go to the result.

        Args:
            progress: called with the documents checked so far, and all documents.
        """
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
                values = parse(document.raw, where)
                if is_entry:
                    entries.append(Entry.model_validate(values))
            except ValidationError as error:
                for fault in error.errors():
                    key = ".".join(map(str, fault["loc"])) or "entry"
                    self._result.breaks.append(Break(file, document.seq, f"format: {key}: {fault['msg']}"))
            except LedgerError as error:
                self._result.breaks.append(Break(file, document.seq, f"format: {error.message}"))
        return entries

    def _fit(self, file: str, problem: str, entries: list[Entry]) -> None:
        recent = [entry for entry in entries if self._since is None or entry.at >= self._since]
        seqs = {entry.seq for entry in recent}
        faults = [*entry_faults(problem, entries), *self._origins.faults(problem, recent)]
        self._result.breaks += [Break(file, *fault) for fault in faults if fault[0] in seqs]
        self.checked_entries += len(recent)
        self.candidates |= {entry.candidate.tree for entry in recent if entry.candidate}
        self.digests |= {entry.problem_digest for entry in recent}
        self.numbers += sum(len(entry.workloads) for entry in recent)
        entry_by_seq = {entry.seq: entry for entry in entries}
        for entry in recent:
            if entry.summary is not None and entry.summary.speedup is not None and counts(entry):
                baseline = _baseline_of(entry, entry_by_seq)
                reasons = weaknesses(facts_of(entry), facts_of(baseline) if baseline else None)
                self.weakened.append((problem, entry.seq, reasons))


def _baseline_of(entry: Entry, entry_by_seq: Mapping[int, Entry]) -> Entry | None:
    """Return the baseline entry of an evaluation, or of the evaluation that a confirmation cites."""
    cited = entry_by_seq.get(entry.cites or 0)
    if cited is not None and cited.kind is EntryKind.EVALUATION:
        cited = entry_by_seq.get(cited.cites or 0)
    return cited if cited is not None and cited.kind is EntryKind.BASELINE else None


def _comparisons(chains: Chains, contents: _Contents) -> list[str]:
    """Return the comparisons that define "whole"."""
    documents, heads = sum(map(len, chains.documents.values())), len(chains.former)
    numbers = "speed-up, interval, score and summary derived again from the block ratios; none below the floor"
    left = count_of(contents.unchecked, "entry", "entries")
    unchecked = f"; not checked in this shallow clone: {left}" if contents.unchecked else ""
    forms = f"{count_of(len(contents.digests), 'form')} of problems: each was on the branch"
    candidates = count_of(len(contents.candidates), "candidate")
    entries = count_of(contents.checked_entries, "entry", "entries")
    order = "each one's hash is in the next, seq increases by one, the time never decreases"
    return [
        f"{count_of(documents, 'document')}: {order}",
        f"{count_of(heads, 'head')} ever committed: each is still in its chain, and heads.yaml has every end",
        f"{entries}: format, citations, no measurement twice, each champion above the last",
        f"{count_of(contents.numbers, 'workload result')}: {numbers}",
        f"{candidates}: git holds each commit with this tree; {forms}{unchecked}",
    ]


_SHALLOW = (
    "this is a shallow clone: whether the history was replaced was not checked, and neither were the candidates or "
    "forms of problems of {unchecked} entries, which it does not have: `git fetch --unshallow`"
)
_REVERT = "undo it with `git restore --staged --worktree --source HEAD -- '{path}'`"
_ADVICE = {
    "modified": f"see `git diff HEAD -- '{{path}}'`; {_REVERT}",
    "deleted": _REVERT,
    "staged": f"see `git diff --cached -- '{{path}}'`; {_REVERT}",
    "untracked": f"only the harness writes below {LEDGER}/: move the file away",
    "in conflict": "end the merge with the branch's own version: `git checkout --ours -- '{path}'`, `git add '{path}'`",
}


def _checkout_breaks(repo: Repo, branch: str) -> Iterator[Break]:
    """Yield files below ledger/ that a person changed in the checkout of the branch and did not commit."""
    for change in repo.local_changes(branch, f"{LEDGER}/"):
        advice = _ADVICE[change.kind].format(path=change.path)
        yield Break(change.path, None, f"{change.kind} in the checkout, and not committed on {branch}: {advice}")


def _foreign_commits(repo: Repo, tip: str) -> list[str]:
    """Return notes about commits on ledger/ by others: a merge or a rebase by a person, or an invented entry."""
    return [
        f"{count_of(count, 'commit')} on {LEDGER}/ by {author}, not by the harness: "
        f"`git log -p --author='{author}' -- {LEDGER}/`"
        for author, count in sorted(history.authors(repo, tip, LEDGER).items())
        if author != EMAIL
    ]


def _chain(file: str, content: bytes, spooled: list[Record]) -> tuple[list[Document], list[Break], int]:
    """Return a file's documents, committed and spooled, the breaks in their chain, and the number only in the spool."""
    breaks: list[Break] = []
    committed: list[Document] = []
    try:
        committed = split(content, file)
        start = committed[0].start if committed else len(content)
        begins = content.find(b"\n") + 1  # after the head line
        if start != begins:
            breaks.append(Break(file, None, "bytes before the first document", "none", f"{start - begins} bytes"))
    except LedgerError as error:
        breaks.append(Break(file, None, error.message, HEADER.decode().strip(), content[:60].decode(errors="replace")))
    committed_hashes = {document.hash for document in committed}
    fresh = [record for record in spooled if record.hash not in committed_hashes]
    previous: Document | None = None
    for number, document in enumerate([*committed, *fresh], 1):
        breaks += [Break(file, document.seq or number, *fault) for fault in _link_faults(number, document, previous)]
        previous = document
    return [*committed, *fresh], breaks, len(fresh)


def _link_faults(number: int, document: Document, previous: Document | None) -> Iterator[tuple[str, object, object]]:
    where = "in the spool: " if document.start < 0 else ""
    if document.seq != number:
        yield f"{where}seq does not count on", number, document.seq
    expected, prev = previous.hash if previous else None, field_of(document.raw, "prev")
    if prev != expected:
        yield f"{where}chain broken: prev is not the hash of the document before", expected, prev
    before, at = field_of(previous.raw, "at") if previous else None, field_of(document.raw, "at")
    if at is None or (before is not None and at < before):
        yield f"{where}at goes backward", f"{before} or later", at


def _heads_breaks(contents: Mapping[str, bytes], heads_file: bytes | None) -> Iterator[Break]:
    """Compare heads.yaml with the files' ends."""
    try:
        heads = read_heads(heads_file)
    except LedgerError as error:
        yield Break(HEADS, None, error.message)
        return
    for file in sorted({*contents, *heads}):
        head = heads.get(file)
        try:
            end = end_of(contents.get(file), file)
        except LedgerError as error:
            yield Break(file, None, f"its end cannot be read: {error.message}")
            continue
        if head != end and (head is not None or contents.get(file)):
            message = f"{HEADS} has another end of the file"
            yield Break(file, end.seq if end else None, message, _head_text(head), _head_text(end))


def former_heads_breaks(
    former: Sequence[FormerHead], chains: Mapping[str, list[Document]], source: str
) -> Iterator[Break]:
    """Yield a break for each head that was ever committed and is not in its chain, which no rewriting can hide.

    Args:
        former: the heads that were ever committed.
        chains: file -> its present documents.
        source: a description of the commits for messages.
    """
    hashes_by_file = {file: {document.seq: document.hash for document in chain} for file, chain in chains.items()}
    for commit, file, head in former:
        present_hash = hashes_by_file.get(file, {}).get(head.seq)
        if present_hash != head.hash:
            message = f"rewritten since {source} {commit[:12]}, which had another document here"
            yield Break(file, head.seq, message, head.hash, present_hash)


def _head_text(head: Head | None) -> str:
    return f"seq {head.seq} at {head.at}, {head.hash}" if head else "no such file"
