"""Git commands in a clean environment: without the user's variables, hooks, signing, templates and pager.

Every command names its repository (`--git-dir`, `--work-tree`), so that a worktree without its `.git` file never falls
through to the repository around it. Every command has a deadline.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

from harness.errors import RepositoryError

DEADLINE_S = 120.0
_TERMINATE_S = 5.0  # git removes its lock files on SIGTERM, not on SIGKILL
NAME, EMAIL = "kernel-harness", "kernel-harness@localhost"

# Options of the command override the repository's own configuration.
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
# Variables that a program may need to run at all. All others are left out, GIT_* above all.
_PASSED_VARIABLES = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")
_VARIABLES = {
    "LC_ALL": "C",
    "LANGUAGE": "C",
    "HOME": "/nonexistent",  # git before 2.32 does not read GIT_CONFIG_GLOBAL
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
}


def text_of(path: Path) -> str | None:
    """Return the text of one of git's own files; None if it does not exist."""
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def checked_out_branch(git_dir: Path) -> str | None:
    """Return the branch of a checkout, by its git directory; None if HEAD is detached or missing."""
    head = (text_of(git_dir / "HEAD") or "").strip()
    return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None


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
    """Git on one repository, with one checkout and one index if they are set."""

    git_dir: Path
    work_tree: Path | None = None
    index_file: Path | None = None

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        locations = [f"--git-dir={self.git_dir}", *([f"--work-tree={self.work_tree}"] if self.work_tree else [])]
        overrides = [part for key, value in _OVERRIDES.items() for part in ("-c", f"{key}={value}")]
        return ["git", "--no-pager", *locations, *overrides, *arguments]

    def environment(self) -> dict[str, str]:
        """Return the command's whole environment."""
        passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        index = {"GIT_INDEX_FILE": str(self.index_file)} if self.index_file else {}
        ceiling = (self.work_tree or self.git_dir).parent
        return {**passed, **_VARIABLES, "GIT_CEILING_DIRECTORIES": str(ceiling), **index}

    def ask(
        self,
        *arguments: str,
        stdin: bytes = b"",
        extra: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> GitAnswer:
        """Run a command and return its output, whatever its exit status. At the deadline it gets SIGTERM, then SIGKILL.

        Raises:
            RepositoryError: git is missing, its directory does not exist, or it did not end within `deadline_s`.
        """
        command, environment = self.command(*arguments), {**self.environment(), **(extra or {})}
        directory = self.work_tree or self.git_dir
        try:
            # It has a process group of its own, which is ended as a whole.
            process = Popen(
                command, cwd=directory, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise RepositoryError("this directory does not exist", where=str(directory)) from error
            raise RepositoryError("git is not installed", remedy="install git 2.30 or newer") from error
        with process:
            try:
                stdout, stderr = process.communicate(stdin, timeout=deadline_s)
            except TimeoutExpired as error:
                _end(process)
                raise RepositoryError(
                    f"git did not answer within {deadline_s:g} s: {' '.join(command)[-200:]}", where=str(directory)
                ) from error
            except BaseException:
                _end(process)
                raise
        return GitAnswer(process.returncode, stdout, stderr.decode(errors="replace"))

    def run(self, *arguments: str, stdin: bytes = b"") -> GitAnswer:
        """Run a command that must succeed, and return its output.

        Raises:
            RepositoryError: the command failed; the message has git's error output.
        """
        answer = self.ask(*arguments, stdin=stdin)
        if answer.code:
            reason = answer.stderr.strip() or f"exit status {answer.code}"
            raise RepositoryError(f"git {' '.join(arguments)[:200]}: {reason}", where=str(self.git_dir))
        return answer


@contextmanager
def scratch_index(git: Git, directory: Path) -> Iterator[Git]:
    """Provide the same repository with an empty private index within a `with` block.

    Args:
        directory: the directory of the index' file, which is removed at the end unless it was renamed.
    """
    index = directory / f"index.{secrets.token_hex(6)}"
    try:
        yield replace(git, index_file=index)
    finally:
        index.unlink(missing_ok=True)


def _end(process: Popen[bytes]) -> None:
    """End git and its child processes: a filter or transport would keep the pipes open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=_TERMINATE_S)
    except TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
