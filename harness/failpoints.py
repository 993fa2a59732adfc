"""Named places where a test can kill this process.

`HARNESS_FAILPOINT=name` kills the process with SIGKILL the first time it passes `failpoint("name")`;
`name:3` the third time. Unset, a failpoint is one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

_VARIABLE = "HARNESS_FAILPOINT"
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
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
