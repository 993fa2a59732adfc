"""The check that the agents' sandbox shows the program of a session."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from harness.agents.command import PLACEHOLDERS, bound_paths, check_template
from harness.agents.confinement import TASK, command_line, empty_view
from harness.errors import ConfigurationError
from harness.model.config import AgentKind, Config
from harness.workspace.sandbox_mounts import ALLOW_USER_NAMESPACES, python_prefixes

_TRY_S = 20.0
_HIDDEN = 9
_LOOK = f"""
command -v -- "$1" >/dev/null || {{ echo "$1"; exit {_HIDDEN}; }}
shift
for path do test -e "$path" || {{ echo "$path"; exit {_HIDDEN}; }}; done
"""
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_PREFIXES = {"exec", "env"}
_SEPARATORS = set("();<>|&")


def check_program(config: Config, kind: AgentKind, root: Path | None) -> str | None:
    """Check that a session's program is visible inside the agents' sandbox.

    Args:
        root: the workspace; None outside of one.

    Returns:
        The program; None for a kind without a program, or for a program below `/task`.

    Raises:
        ConfigurationError: the sandbox does not show the program, or a file that its command line names.
    """
    if kind == "tuner":
        return None
    words = [claude_cli()] if kind == "claude" else _words(check_template(config.agent.command))
    if not words or words[0].startswith(f"{TASK}/"):
        return None
    files = [word for word in words[1:] if word.startswith("/") and Path(word).exists()]
    hidden = _hidden([words[0], *files], bound_paths(config.agent, root) if kind == "command" else ())
    if hidden is not None:
        raise _not_visible(hidden)
    return words[0]


def claude_cli() -> str:
    """Return the CLI in HARNESS_CLAUDE_CLI, or the SDK's; the SDK is not imported, because that takes seconds."""
    spec = find_spec("claude_agent_sdk")
    bundled = Path(spec.origin).parent / "_bundled" / "claude" if spec is not None and spec.origin else "claude"
    return os.environ.get("HARNESS_CLAUDE_CLI") or str(bundled)


def _words(template: str) -> list[str]:
    """Return the program of a command line and its arguments, without assignments and shell words before it."""
    command = template.format(**{name: f"{TASK}/{name}" for name in PLACEHOLDERS})
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as error:
        raise ConfigurationError(
            f"not a command line of a shell: {error}", where="agent.command", remedy="close every quotation mark"
        ) from error
    while words and (_VARIABLE.match(words[0]) or words[0] in _PREFIXES or set(words[0]) <= _SEPARATORS):
        words.pop(0)
    return words


def _hidden(words: Sequence[str], binds: tuple[Path, ...]) -> str | None:
    """Return the first of a program and files that the sandbox does not show; None if it shows all of them."""
    with tempfile.TemporaryDirectory(prefix="kernel-harness-agent-") as scratch:
        command = command_line(empty_view(Path(scratch), binds=binds), ["/bin/sh", "-c", _LOOK, "sh", *words], {})
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_S, check=False)
    if done.returncode == _HIDDEN:
        return done.stdout.strip()
    if done.returncode:
        raise ConfigurationError(
            f"the agents' sandbox cannot run: {done.stderr.strip() or f'exit code {done.returncode}'}",
            remedy=ALLOW_USER_NAMESPACES,
        )
    return None


def _not_visible(word: str) -> ConfigurationError:
    if shutil.which(word) is None and not Path(word).exists():
        return ConfigurationError(
            f"there is no program `{word}`", where="agent.command", remedy="install it, or name it by its path"
        )
    shown = ", ".join(["/usr", *map(str, python_prefixes())])
    return ConfigurationError(
        f"the agents' sandbox does not show `{word}`",
        where="agent.command",
        remedy=f"name it in `agent.binds`, or install it in a directory that the sandbox shows: {shown}",
    )
