"""Compilation of sources to an artefact, and the reasons for which it fails."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigurationError
from harness.formats.solutions import load_solution
from harness.judge.build import builder
from harness.judge.build.builder import BuildFailed, build_cpp
from harness.model.problem import Problem
from tests.judge.courtroom import KERNEL, write_cpp
from tests.judge.problem_in_memory import problem, tensor

pytestmark = pytest.mark.usefixtures("own_locks")


@pytest.fixture
def sample_problem() -> Problem:
    return problem(
        {"x": tensor("float32", "n")}, {"y": tensor("float32", "n")}, "def run(x):\n    return x\n", {"n": 7}
    )


def _build(sample_problem: Problem, directory: Path, cache: Path) -> builder.Built:
    return build_cpp(sample_problem, load_solution(directory), cache_dir=cache, sandbox="bubblewrap")


def test_axes_and_params_arrive_as_macros(sample_problem: Problem, tmp_path: Path) -> None:
    source = 'extern "C" int scale() { return AXIS_n * 1000 + WIDTH * 10 + FLAG; }\n'
    directory = write_cpp(tmp_path / "solution", source, params={"WIDTH": 8, "FLAG": True})
    built = _build(sample_problem, directory, tmp_path / "cache")
    assert not built.cached
    assert ctypes.CDLL(str(built.path)).scale() == 7081


def test_the_same_sources_are_compiled_once(sample_problem: Problem, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = _build(sample_problem, write_cpp(tmp_path / "a"), cache)
    assert _build(sample_problem, write_cpp(tmp_path / "b"), cache) == builder.Built(first.path, cached=True)
    paths = {first.path}
    changed_specs: tuple[dict[str, Any], ...] = ({"params": {"N": 2}}, {"compile": {"flags": ["-ffast-math"]}})
    for number, spec in enumerate(changed_specs):
        built = _build(sample_problem, write_cpp(tmp_path / f"c{number}", **spec), cache)
        assert not built.cached
        paths.add(built.path)
    assert not _build(sample_problem, write_cpp(tmp_path / "d", KERNEL + "\n"), cache).cached
    assert len(paths) == 3


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_an_artefact_with_a_damaged_index_is_built_again(tmp_path: Path, content: str) -> None:
    def make(scratch: Path) -> Path:
        (scratch / "artefact").write_text("code")
        return scratch / "artefact"

    built = builder.cached_artefact(tmp_path, "key", make)
    assert builder.cached_artefact(tmp_path, "key", make) == builder.Built(built.path, cached=True)
    built.path.with_suffix(".json").write_text(content)
    assert builder.cached_artefact(tmp_path, "key", make) == builder.Built(built.path, cached=False)
    assert builder.cached_artefact(tmp_path, "key", make).cached


def test_an_artefact_that_was_tampered_with_is_not_used(sample_problem: Problem, tmp_path: Path) -> None:
    directory = write_cpp(tmp_path / "solution")
    built = _build(sample_problem, directory, tmp_path / "cache")
    before = built.path.read_bytes()
    built.path.chmod(0o644)
    built.path.write_bytes(before + b"x")
    rebuilt = _build(sample_problem, directory, tmp_path / "cache")
    assert not rebuilt.cached
    assert rebuilt.path.read_bytes() == before


@pytest.mark.parametrize(
    ("source", "reason_part"),
    [
        ("int f() {\n    return y;\n}\n" + KERNEL, "kernel.cpp:2:12: error: 'y' was not declared in this scope"),
        ('#include "/etc/shadow"\n' + KERNEL, "kernel.cpp:1:10: fatal error: /etc/shadow: No such file"),
        ('#include "../solution.yaml"\n' + KERNEL, "No such file"),
        ("#include __FILE__\n" + KERNEL, "error"),
        ("char large[80 << 20] = {1};\n" + KERNEL, "error"),
    ],
)
def test_a_compiler_error_is_quoted(sample_problem: Problem, tmp_path: Path, source: str, reason_part: str) -> None:
    with pytest.raises(BuildFailed) as failed:
        _build(sample_problem, write_cpp(tmp_path / "solution", source), tmp_path / "cache")
    assert reason_part in failed.value.reason.replace("\u2018", "'").replace("\u2019", "'")
    assert "/sources" not in failed.value.reason
    assert "\n" not in failed.value.reason
    assert not list((tmp_path / "cache" / "artefacts").iterdir())


def test_a_compiler_that_takes_too_long_is_stopped(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "BUILD_S", 0.3)
    source = "template<int n> struct S { S<n - 1> a; S<n - 2> b; };\n" + "#include <bits/stdc++.h>\n" * 3 + KERNEL
    with pytest.raises(BuildFailed, match="stopped after"):
        _build(sample_problem, write_cpp(tmp_path / "solution", source), tmp_path / "cache")


def test_code_that_runs_while_compiling_reads_and_changes_no_file(sample_problem: Problem, tmp_path: Path) -> None:
    """An option of the compiler driver runs any program in place of the compiler proper."""
    secret, planted = tmp_path / "secret", tmp_path / "planted"
    secret.write_text("error: private business")
    script = f"echo error: here as $(id -u) $(ls /sys) >&2; cat {secret} >&2; touch {planted}; exit 1"
    directory = write_cpp(tmp_path / "solution", KERNEL, compile={"flags": ["-wrapper", f"/bin/sh,-c,{script}"]})
    solution = load_solution(directory)
    with pytest.raises(BuildFailed, match="error: here as") as failed:
        build_cpp(sample_problem, solution, cache_dir=tmp_path / "cache", sandbox="bubblewrap")
    assert "private business" not in failed.value.reason
    assert not planted.exists()


def test_what_a_build_writes_stays_in_memory_of_limited_size(sample_problem: Problem, tmp_path: Path) -> None:
    """A wrapper of the compiler fills every writable place; the host's cache stays empty."""
    fill = "for n in 1 2 3 4 5 6 7 8; do head -c 60M /dev/zero > /output/$n 2> /dev/null; done"
    script = f"{fill}; echo error: $(du -sm /output) >&2; exit 1"
    directory = write_cpp(tmp_path / "solution", KERNEL, compile={"flags": ["-wrapper", f"/bin/sh,-c,{script}"]})
    with pytest.raises(BuildFailed, match=r"^error: 256 /output$"):
        _build(sample_problem, directory, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "artefacts").iterdir())


def test_a_build_holds_no_timing_lock(sample_problem: Problem, tmp_path: Path) -> None:
    _build(sample_problem, write_cpp(tmp_path / "solution"), tmp_path / "cache")
    assert not list((tmp_path / "locks").glob("quiet*")), "a lock's file is created when the lock is first acquired"


def test_a_compiler_that_computes_too_long_is_stopped(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on processor time, because on a busy host the wall clock does not measure the candidate."""
    monkeypatch.setattr(builder, "BUILD_CPU_S", 1)
    source = "template<int n, int m> struct S { S<n - 1, 2 * m> a; S<n - 1, 2 * m + 1> b; };\n"
    source += "template<int m> struct S<0, m> {};\nint size = sizeof(S<24, 0>);\n"
    with pytest.raises(BuildFailed, match="the compiler was stopped after 1 s of processor time"):
        _build(sample_problem, write_cpp(tmp_path / "solution", source + KERNEL), tmp_path / "cache")


def test_without_a_compiler_the_error_names_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    builder.compiler.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigurationError, match="apt-get install g"):
        builder.compiler()
    monkeypatch.undo()
    assert Path(builder.compiler()[0]).exists()
