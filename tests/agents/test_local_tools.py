"""The programs of the agents' sandbox run inside it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.agents.confinement import command_line, empty_view, find_local_tools


def inside(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = command_line(empty_view(tmp_path), ["/bin/sh", "-euc", script], {})
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_listed_program_runs_in_the_sandbox(tmp_path: Path) -> None:
    programs = [name for name in find_local_tools().programs if not name.startswith("python3")]
    assert "g++" in programs, "the tests need a compiler"
    completed = inside(
        tmp_path, "\n".join(f"{name} --version >/tmp/version || {{ echo {name}; exit 9; }}" for name in programs)
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_code_is_compiled_and_disassembled_and_the_processor_is_described(tmp_path: Path) -> None:
    script = """
    cd /tmp
    echo 'extern "C" float twice(float x) { return x + x; }' > a.cpp
    g++ -O3 -march=native -shared -fPIC a.cpp -o a.so
    objdump -d --no-show-raw-insn a.so | grep -A9 '<twice>:'
    lscpu | grep -E 'Model name|L1d|NUMA node0'
    """
    completed = inside(tmp_path, script)
    assert completed.returncode == 0, completed.stderr
    assert "addss" in completed.stdout
    assert "L1d" in completed.stdout


@pytest.mark.slow
def test_python_has_torch_for_numerics(tmp_path: Path) -> None:
    completed = inside(tmp_path, "python3 -c 'import torch; print(torch.ones(4).bfloat16().sum().item())'")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip() == "4.0"


def test_a_toolkit_outside_the_system_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "nvdisasm").write_text("#!/bin/sh\necho disassembled\n")
    (home / "bin" / "nvdisasm").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    find_local_tools.cache_clear()
    try:
        assert "nvdisasm" in find_local_tools().programs
        completed = inside(tmp_path, "nvdisasm; touch /sys/devices/system/cpu/x 2>/dev/null && exit 9; exit 0")
    finally:
        find_local_tools.cache_clear()
    assert (completed.returncode, completed.stdout) == (0, "disassembled\n"), completed.stderr
