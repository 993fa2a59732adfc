"""Named places where a test can kill this process.

`HARNESS_FAILPOINT=name` kills the process with SIGKILL the first time it passes `failpoint("name")`;
`name:3` the third time. With `HARNESS_FAILPOINT_MARK=file` only one process dies there: it makes the file first, and
where the file exists nobody dies (a judge that is started again goes on, and the test sees that the place was
reached). Unset, a failpoint is one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

_VARIABLE = "HARNESS_FAILPOINT"
_MARK = "HARNESS_FAILPOINT_MARK"
_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Die here, by SIGKILL, when the environment asks for it."""
    wanted = os.environ.get(_VARIABLE)
    if wanted is None:
        return
    target, _, count = wanted.partition(":")
    if target != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(count or 1) and _marked(os.environ.get(_MARK), name):
        os.kill(os.getpid(), signal.SIGKILL)


def _marked(file: str | None, name: str) -> bool:
    """Make the mark; False when another process has died here already."""
    if file is None:
        return True
    try:
        mark = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    os.write(mark, f"{name} {os.getpid()}\n".encode())
    os.close(mark)
    return True
