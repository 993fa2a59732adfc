"""Named places where a test can kill this process or make it raise an exception.

`HARNESS_FAILPOINT=name` acts the first time the process passes `failpoint("name")`; `name:3` the third time.
`HARNESS_FAILPOINT_ACTION` is `kill` (SIGKILL, the default) or the name of a built-in exception, which is raised. With
`HARNESS_FAILPOINT_MARK=file` only one process acts. It creates the file first, and if the file exists, nothing happens:
a judge that is started again continues, and the test sees that the failpoint was reached. Without `HARNESS_FAILPOINT` a
failpoint costs one dictionary look-up.
"""

from __future__ import annotations

import builtins
import os
import signal
from pathlib import Path

_VARIABLE = "HARNESS_FAILPOINT"
_ACTION = "HARNESS_FAILPOINT_ACTION"
_MARK = "HARNESS_FAILPOINT_MARK"
_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Kill this process with SIGKILL, or raise an exception, if the environment requests it."""
    setting = os.environ.get(_VARIABLE)
    if setting is None:
        return
    target, _, count = setting.partition(":")
    if target != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(count or 1) and _marked(os.environ.get(_MARK), name):
        action = os.environ.get(_ACTION, "kill")
        if action != "kill":
            raise getattr(builtins, action)(f"failpoint {name}")
        os.kill(os.getpid(), signal.SIGKILL)


def _marked(file: str | None, name: str) -> bool:
    """Create the mark; return False if another process has already acted at this failpoint."""
    if file is None:
        return True
    try:
        with Path(file).open("x") as mark:
            mark.write(f"{name} {os.getpid()}\n")
    except FileExistsError:
        return False
    return True
