"""Trial of the C++ compiler after a failed build, to detect a failure that the sources did not cause."""

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
    """Compile one function in a sandbox like that of builds.

    Args:
        compiler: path of the compiler.
        sandbox: kind of sandbox.

    Raises:
        ConfigurationError: the compiler does not work on this machine; the message has its output.
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
        cause = messages_text or (f"no answer within {_TRIAL_S:.0f} s" if code is None else f"it exited with {code}")
        raise ConfigurationError(
            f"the C++ compiler {compiler} does not compile one function: {cause}", remedy="apt-get install g++"
        )
