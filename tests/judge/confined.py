"""Python code run in the sandbox of a judged candidate, for tests of its isolation."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import Binds, Sandboxed, launch


@contextmanager
def confined(
    code: str,
    directory: Path,
    *,
    limits: SandboxLimits | None = None,
    binds: Binds | None = None,
    inherit: tuple[int, ...] = (),
) -> Iterator[tuple[Sandboxed, Path]]:
    """Yield a running sandbox and the file with its stderr."""
    log = directory / "stderr.log"
    with log.open("w+b") as stderr:
        sandbox = launch(
            "bubblewrap",
            [sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *map(str, inherit)],
            binds=binds or Binds(),
            limits=limits or SandboxLimits(),
            env={},
            stderr=stderr,
            inherit=inherit,
        )
        try:
            yield sandbox, log
        finally:
            sandbox.kill()


def stderr_of(code: str, directory: Path, *, limits: SandboxLimits | None = None, binds: Binds | None = None) -> str:
    """Return the stderr of the code, once it has ended."""
    with confined(code, directory, limits=limits, binds=binds) as (sandbox, log):
        assert sandbox.exit_signal_or_code(60.0) == 0, log.read_text()
        return log.read_text().strip()
