"""Running git so that nothing of the user's reaches it: no variable, no hook, no signing, no template, no pager.

Every command is told its repository by name (`--git-dir`, `--work-tree`), so a worktree that lost its `.git` file can
never fall through to the repository around it, and every command has a deadline.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import RepositoryError

DEADLINE_S = 120.0
_TERMINATE_S = 5.0  # git removes its lock files on SIGTERM, not on SIGKILL: it gets the chance to
NAME, EMAIL = "kernel-harness", "kernel-harness@localhost"

# The command's scope beats whatever the repository's own configuration says.
_OVERRIDES = {
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.quotePath": "false",
    "core.splitIndex": "false",
    "core.excludesFile": "/dev/null",
    "core.attributesFile": "/dev/null",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.updateSparsePath": "false",
    "submodule.recurse": "false",
    "safe.directory": "*",
}
# What a program may need to run at all; everything else, GIT_* above all, stays out.
_KEPT = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment a git command gets."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "LC_ALL": "C",
        "LANGUAGE": "C",
        "HOME": "/nonexistent",  # git before 2.32 knows no GIT_CONFIG_GLOBAL
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_EDITOR": "true",
        "GIT_AUTHOR_NAME": NAME,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
        **(extra or {}),
    }


def options() -> list[str]:
    """`-c` options that go before every git command."""
    return [part for key, value in _OVERRIDES.items() for part in ("-c", f"{key}={value}")]


@dataclass(frozen=True)
class GitAnswer:
    """Exit status and output of a git command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Standard output without the last newline. Names that are not UTF-8 survive a round trip."""
        return self.stdout.decode(errors="surrogateescape").removesuffix("\n")


@dataclass(frozen=True)
class Git:
    """Git on one repository, and with one checkout and one index if they are given."""

    git_dir: Path
    work_tree: Path | None = None
    index_file: Path | None = None

    def using(self, *, work_tree: Path | None = None, index_file: Path | None = None) -> Git:
        """The same repository with another checkout or index."""
        return replace(self, work_tree=work_tree or self.work_tree, index_file=index_file or self.index_file)

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        where = [f"--git-dir={self.git_dir}", *([f"--work-tree={self.work_tree}"] if self.work_tree else [])]
        return ["git", "--no-pager", *where, *options(), *arguments]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The command's whole environment."""
        index = {"GIT_INDEX_FILE": str(self.index_file)} if self.index_file else {}
        ceiling = (self.work_tree or self.git_dir).parent
        return clean_environment({"GIT_CEILING_DIRECTORIES": str(ceiling), **index, **(extra or {})})

    def ask(
        self,
        *arguments: str,
        stdin: bytes = b"",
        extra: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> GitAnswer:
        """Run a command and hand back what it said, whatever its exit status.

        Raises:
            RepositoryError: git is missing, or did not end within `deadline_s`.
        """
        return run_git(
            self.command(*arguments),
            environment=self.environment(extra),
            directory=self.work_tree or self.git_dir,
            stdin=stdin,
            deadline_s=deadline_s,
        )

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        extra: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> GitAnswer:
        """Run a command that must succeed.

        Raises:
            RepositoryError: it did not; the message has git's own words.
        """
        answer = self.ask(*arguments, stdin=stdin, extra=extra, deadline_s=deadline_s)
        if answer.code:
            raise refused(self.git_dir, arguments, answer)
        return answer


def refused(git_dir: Path, arguments: tuple[str, ...], answer: GitAnswer) -> RepositoryError:
    """Return the error for a git command that failed."""
    said = answer.stderr.strip() or f"exit status {answer.code}"
    return RepositoryError(f"git {' '.join(arguments)[:200]}: {said}", where=str(git_dir))


def run_git(
    command: list[str], *, environment: dict[str, str], directory: Path, stdin: bytes, deadline_s: float
) -> GitAnswer:
    """Run one command line of git in a directory: deadline, then SIGTERM, then SIGKILL.

    Raises:
        RepositoryError: git is missing, the directory is gone, or the deadline has passed.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own, to be ended together
        )
    except FileNotFoundError as error:
        if not directory.is_dir():
            raise RepositoryError("this directory is gone", where=str(directory)) from error
        raise RepositoryError("git is not installed", remedy="install git 2.30 or newer") from error
    with process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise RepositoryError(
                f"git did not answer within {deadline_s:g} s: {' '.join(command)[-200:]}", where=str(directory)
            ) from error
        except BaseException:
            _end(process)
            raise
    return GitAnswer(process.returncode, stdout, stderr.decode(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End git and what it started: a filter or transport of it would keep the pipes open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=_TERMINATE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
