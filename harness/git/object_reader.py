"""Objects of a repository, read through one persistent `git cat-file` of GitPython: reading one starts no process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from harness.errors import RepositoryError
from harness.git.environment import Git

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # without git `harness doctor` must still be able to report it
import git as gitpython

T = TypeVar("T")


class GitObject(NamedTuple):
    """Type and content of an object."""

    kind: str
    content: bytes


class _CleanGit(gitpython.Git):
    """GitPython's command wrapper, with the clean environment instead of the process' own."""

    def __init__(self, plain: Git) -> None:
        super().__init__(str(plain.git_dir))
        self._plain = plain

    def execute(self, command: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - GitPython's signature
        # `env -i` because GitPython always adds the process' environment, GIT_* included.
        clean = [f"{name}={value}" for name, value in self._plain.environment().items()]
        return super().execute(["env", "-i", *clean, *self._plain.command(*command[1:])], *args, **options)

    def alive(self) -> bool:
        """Return whether every persistent process is running."""
        return all(process is None or process.poll() is None for process in (self.cat_file_all, self.cat_file_header))


class ObjectReader:
    """Reads objects of one repository. Safe to use from several threads; `close` ends its git processes."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._reading = threading.Lock()
        self._cat: _CleanGit | None = None
        self._cat_pid = 0

    def close(self) -> None:
        """End the persistent git processes."""
        with self._reading:
            if self._cat is not None and self._cat_pid == os.getpid():
                self._cat.clear_cache()
            self._cat = None

    def read(self, name: str) -> GitObject | None:
        """Return an object by id or revision expression; None if it does not exist."""
        data = self._query(lambda reader: reader.get_object_data(name))
        return GitObject(_text(data[1]), bytes(data[3])) if data else None

    def id_of(self, name: str) -> str | None:
        """Return the id of an object by id or revision expression; None if it does not exist."""
        data = self._query(lambda reader: reader.get_object_header(name))
        return _text(data[0]) if data else None

    def _query(self, request: Callable[[_CleanGit], T]) -> T | None:
        """Query the persistent `git cat-file`, restarted once if it has ended; None if there is no such object."""
        with self._reading:
            for _ in range(2):
                if self._cat is None or self._cat_pid != os.getpid():  # a forked child must not share these pipes
                    self._cat, self._cat_pid = _CleanGit(self._git), os.getpid()
                try:
                    return request(self._cat)
                except (ValueError, BrokenPipeError):
                    if self._cat.alive():
                        return None
                    self._cat = None
        raise RepositoryError("git cat-file ends immediately", where=str(self._git.git_dir), remedy="try `git fsck`")


def _text(value: str | bytes) -> str:
    """Return text: GitPython declares str, and most of its versions return bytes."""
    return value.decode() if isinstance(value, bytes) else value
