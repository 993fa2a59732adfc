"""A trial of the C++ compiler after a build has failed: with a broken compiler the sources are not to blame."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.errors import ConfigurationError
from harness.judge.build.output import memory_file
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import Binds, launch
from harness.model.config import SandboxKind

_TRIAL_S = 20.0
_MESSAGE_BYTES = 4096
_SOURCE = 'extern "C" int trial() { return 0; }\n'


def compile_one_function(compiler: str, sandbox: SandboxKind) -> None:
    """Compile one function in a sandbox as builds have it.

    Args:
        compiler: path of the compiler.
        sandbox: which.

    Raises:
        ConfigurationError: the compiler does not work here; the message is its own.
        OSError: the host's disk is full.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-harness-") as directory, memory_file("messages") as messages:
        source = Path(directory) / "trial.cpp"
        source.write_text(_SOURCE)
        confined = sandbox == "bubblewrap"
        inside, output = ("/trial.cpp", "/output") if confined else (str(source), directory)
        process = launch(
            sandbox,
            [compiler, "-shared", "-fPIC", inside, "-o", f"{output}/trial.so"],
            binds=Binds(read_only={source: inside}, tmpfs={output: 16 << 20}),
            limits=SandboxLimits(),
            env={},
            stderr=messages,
            cwd=Path(directory),
        )
        code = process.exit_signal_or_code(_TRIAL_S)
        process.kill()
        messages_text = " ".join(os.pread(messages.fileno(), _MESSAGE_BYTES, 0).decode(errors="replace").split())
    if code != 0:
        why = messages_text or ("no answer within 20 s" if code is None else f"it ended with {code}")
        raise ConfigurationError(
            f"the C++ compiler {compiler} does not compile one function: {why}", remedy="apt-get install g++"
        )
