"""Commits and trees from the raw bytes of git objects, so that reading one costs no process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_ID_BYTES = 20
"""Length of an object id in a tree. Repositories with SHA-256 ids are refused (`harness.git.repo.requirements`)."""


@dataclass(frozen=True)
class Commit:
    """One commit."""

    id: str
    tree: str
    parents: tuple[str, ...]
    at: int
    """Committer's time in seconds since 1970."""
    trailers: dict[str, str]
    """`Key: value` lines of the last paragraph."""
    subject: str


def commit_of(oid: str, raw: bytes) -> Commit:
    """Return a commit from its object's bytes.

    Args:
        raw: the content of the commit object.
    """
    head, _, message = raw.partition(b"\n\n")
    fields: dict[bytes, list[bytes]] = {}
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        fields.setdefault(key, []).append(value)
    encoding = fields.get(b"encoding", [b"utf-8"])[0]
    try:
        text = message.decode(encoding.decode())
    except (LookupError, ValueError):  # an unknown encoding, or bytes that are not text in it
        text = message.decode(errors="surrogateescape")
    paragraph = text.lstrip("\n").partition("\n\n")[0]
    at = int(fields[b"committer"][0].rsplit(b" ", 2)[1])
    parents = tuple(parent.decode() for parent in fields.get(b"parent", ()))
    subject = " ".join(line for line in paragraph.split("\n") if line)
    return Commit(oid, fields[b"tree"][0].decode(), parents, at, trailers_of(text), subject)


def trailers_of(message: str) -> dict[str, str]:
    """Return the `Key: value` lines of a message's last paragraph, unless it is the only paragraph."""
    paragraphs = message.strip().split("\n\n")
    pairs = (line.partition(": ") for line in paragraphs[-1].splitlines()) if len(paragraphs) > 1 else ()
    return {key: value for key, colon, value in pairs if colon and " " not in key}


def tree_entries_of(raw: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield the name, mode and id of each row of a tree object; a mode has six digits, 040000 for a directory."""
    position = 0
    while position < len(raw):
        name_at = raw.index(b" ", position)
        name_end = raw.index(b"\0", name_at)
        end = name_end + 1 + _ID_BYTES
        name = raw[name_at + 1 : name_end].decode(errors="surrogateescape")
        yield name, raw[position:name_at].decode().zfill(6), raw[name_end + 1 : end].hex()
        position = end
