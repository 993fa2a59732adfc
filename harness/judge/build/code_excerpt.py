"""Machine code of one function of a build, for people and agents, cut to a limited number of lines.

Programs that read the output of a candidate's compiler run in the builder's sandbox.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from harness.judge.build.builder import BuildFailed, BuildPaths, Compilation, build_limits, compiled
from harness.judge.isolation.resource_limits import GIB
from harness.model.config import SandboxKind

MOST_LINES = 160
_WITHIN_S = 20.0
_CODE = "code.txt"
_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s*")


def assembly(artefact: Path, function: str, sandbox: SandboxKind) -> str:
    """Return the assembly of one function of a shared object by objdump, or the reason why there is none.

    Args:
        artefact: the shared object.
        function: part of the function's name.
        sandbox: kind of sandbox in which objdump runs.
    """
    program = shutil.which("objdump")
    if program is None:
        return "the assembly cannot be shown: objdump is not installed where the judge runs"
    options = ["-d", "--no-show-raw-insn", "-C", "-M", "intel"] if os.uname().machine == "x86_64" else ["-d", "-C"]
    text = _run([program, *options, str(artefact)], (artefact,), sandbox)
    return _functions(text, function, re.compile(r"^[0-9a-f]+ <(.+)>:$"))


def sass(cubin: Path, function: str, sandbox: SandboxKind) -> str:
    """Return the SASS of one kernel of a cubin by nvdisasm, or the reason why there is none.

    Args:
        cubin: the cubin.
        function: part of the kernel's name.
        sandbox: kind of sandbox in which nvdisasm runs.
    """
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    program = shutil.which("nvdisasm") or shutil.which(f"{home}/bin/nvdisasm")
    if program is None:
        return "SASS cannot be shown: nvdisasm is not installed where the judge runs; `ptx` can"
    text = _run([program, "-c", str(cubin)], (cubin, Path(program).resolve().parent), sandbox)
    return _functions(text, function, re.compile(r"^\.text\.(\S+):"))


def ptx(text: str, function: str) -> str:
    """Return the PTX of one kernel, or the names of the kernels that there are.

    Args:
        text: PTX of a module.
        function: part of the kernel's name.
    """
    return _functions(text, function, re.compile(r"^(?:\.visible |\.weak )*\.entry (\S+?)\(?$"))


def _run(command: list[str], shown: tuple[Path, ...], sandbox: SandboxKind) -> str:
    def line(paths: BuildPaths) -> list[str]:
        return ["/bin/sh", "-c", '"$@" > "$0"', f"{paths.output}/{_CODE}", *command]

    compilation = Compilation(line, build_limits(4 * GIB, processes=16), _WITHIN_S, shown, makes=(_CODE,))
    with tempfile.TemporaryDirectory(prefix="kernel-harness-code-") as scratch:
        try:
            output = compiled({}, compilation, Path(scratch), sandbox)
        except BuildFailed as failed:
            return f"the code cannot be shown: {failed.reason}"
        return (output / _CODE).read_text(errors="replace")


def _functions(text: str, function: str, header: re.Pattern[str]) -> str:
    """Return the lines of the first function whose name contains `function`, else the names that there are."""
    names: list[str] = []
    chosen: list[str] = []
    inside = False
    for line in text.splitlines():
        if match := header.match(line.strip()):
            names.append(match[1])
            inside = not chosen and function in match[1]
        if inside and line.strip():
            chosen.append(line)
    if not chosen:
        return f"no function `{function}`; there are: {', '.join(names[:20]) or 'none'}"
    omitted = [f"... and {len(chosen) - MOST_LINES} more lines"] if len(chosen) > MOST_LINES else []
    return "\n".join([*(_INSTRUCTION.sub("  ", line)[:160] for line in chosen[:MOST_LINES]), *omitted])
