"""Comparison of entries with git: the commits, the candidates' trees, and the forms of the problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.git.problem_digests import digest_at
from harness.git.repo import Repo
from harness.model.entry import Entry
from harness.model.paths import problem_path, solution_path

Fault = tuple[int, str, object, object]


class Origins:
    """Objects of one repository, each read once.

    Args:
        repo: the workspace's repository.
        tip: the coordination branch's commit.
        shallow: the repository is a shallow clone, so that missing objects are no faults.
    """

    def __init__(self, repo: Repo, tip: str, *, shallow: bool = False) -> None:
        self._repo, self._tip, self._shallow = repo, tip, shallow
        self.unchecked: set[tuple[str, int]] = set()
        """Problem and seq of entries that a shallow clone cannot check."""
        self._trees: dict[tuple[str, str], str | None] = {}

    def faults(self, problem: str, entries: Sequence[Entry]) -> Iterator[Fault]:
        """Yield the parts of a problem's entries that git does not confirm.

        Args:
            problem: the problem's key, `suite/name`.
            entries: its entries.
        """
        digests = self._digests(problem) if entries else set()
        for entry in entries:
            yield from self._candidate_faults(problem, entry)
            if entry.problem_digest not in digests and self._shallow:
                self.unchecked.add((problem, entry.seq))
            elif entry.problem_digest not in digests:
                path = problem_path(problem)
                message = f"no version of {path} in the history of the coordination branch has this digest"
                yield entry.seq, message, f"one of {len(digests)} versions", entry.problem_digest

    def _candidate_faults(self, problem: str, entry: Entry) -> Iterator[Fault]:
        candidate = entry.candidate
        if candidate is None:
            return
        path = solution_path(problem, entry.target)
        key = (candidate.commit, path)
        if key not in self._trees:
            self._trees[key] = self._repo.tree_of(*key)
        tree = self._trees[key]
        if tree == candidate.tree:
            return
        if self._shallow and not self._repo.has_object(candidate.commit):
            self.unchecked.add((problem, entry.seq))
        elif not self._repo.has_object(candidate.commit):
            yield entry.seq, "the candidate's commit is not in the repository", candidate.commit, None
        else:
            yield entry.seq, f"commit {candidate.commit[:12]} has another tree at {path}", candidate.tree, tree

    def _digests(self, problem: str) -> set[str]:
        """Return the digests of every form that a problem ever had on the coordination branch."""
        directory = problem_path(problem)
        digest_by_tree: dict[str, str] = {}
        for commit in self._repo.history(self._tip, directory):
            tree = self._repo.tree_of(commit, directory)
            if tree is None or tree in digest_by_tree:
                continue
            digest_by_tree[tree] = digest_at(self._repo, commit, problem) or ""
        return set(digest_by_tree.values())
