"""What git's own history says about the ledger, besides what the ledger says of itself."""

from __future__ import annotations

from collections import Counter

from harness.git.repo import Repo


def pushed_copy(repo: Repo, branch: str) -> tuple[str, str] | None:
    """The name and commit of the branch as `origin` (or the only remote) was last seen to have it, if it was."""
    listing = repo.git.run("for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes").text
    refs = {
        name.removeprefix("refs/remotes/"): oid
        for oid, _, name in (line.partition(" ") for line in listing.splitlines())
    }
    copies = {name: oid for name, oid in refs.items() if name.partition("/")[2] == branch}
    if len(copies) > 1:
        copies = {name: oid for name, oid in copies.items() if name.startswith("origin/")}
    return next(iter(copies.items()), None)


def authors(repo: Repo, tip: str, path: str) -> Counter[str]:
    """Author's address -> how many commits below `tip`, other than merges, changed something at `path`."""
    plain = ("--no-merges", "--no-show-signature", "--no-mailmap", "--format=%ae")
    return Counter(repo.git.run("log", *plain, tip, "--", path).text.split())
