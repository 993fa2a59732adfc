"""Faults of the machine end the judge with their own exit code; faults of a candidate are a verdict."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import ConfigurationError, HarnessError, HostFaultError, OutOfMachineMemoryError
from harness.formats.solutions import load_solution
from harness.judge.build import builder
from harness.judge.build.builder import BuildFailed, build_cpp
from harness.judge.host_faults import host_fault
from harness.judge.isolation import sandbox
from harness.judge.isolation.resource_limits import SandboxLimits, reached_memory_limit
from harness.model.judging import JudgeReady, JudgeRequest
from harness.model.problem import Problem
from harness.model.verdict import Verdict
from harness.workspace.judge_client import JudgeClient, JudgeLost, RequestAnswered, judge_command
from harness.workspace.judge_endpoint import JudgeNotice
from tests.judge.confined import confined
from tests.judge.courtroom import KERNEL, write_cpp, write_problem
from tests.judge.problem_in_memory import problem, tensor
from tests.ledger.ledgers import required_small_disk, small_disk
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("own_locks")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/a"), HostFaultError, "No space left on device"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/cache/a"), HostFaultError, "Read-only file system"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), HostFaultError, "too many files are open"),
        (MemoryError(), OutOfMachineMemoryError, "this machine is out of memory"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), OutOfMachineMemoryError, "Cannot allocate memory"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            OutOfMachineMemoryError,
            "no further process",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMachineMemoryError, "can't allocate memory"),
        (RuntimeError("CUDA error: no CUDA-capable device is detected"), HostFaultError, "driver does not work"),
        (HarnessError("GPU is lost"), HostFaultError, "the GPU's driver does not work: GPU is lost"),
    ],
)
def test_an_exception_of_the_machine_is_a_host_fault(error: Exception, kind: type[HostFaultError], words: str) -> None:
    fault = host_fault(error)
    assert type(fault) is kind
    assert words in fault.message
    assert fault.remedy


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/7/stat"),
        RuntimeError("shape '[3]' is invalid for input of size 4"),
        ValueError("n"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
    ],
)
def test_other_exceptions_are_defects(error: Exception) -> None:
    assert host_fault(error) is None


@pytest.fixture
def sample_problem() -> Problem:
    return problem(
        {"x": tensor("float32", "n")}, {"y": tensor("float32", "n")}, "def run(x):\n    return x\n", {"n": 7}
    )


def test_a_compiler_that_compiles_nothing_is_no_compile_error(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "toolchain" / "bin" / "broken-c++"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\ncase $* in *--version*) echo 1; exit 0;; esac\necho error: no cc1plus >&2; exit 1\n")
    broken.chmod(0o755)
    solution = load_solution(write_cpp(tmp_path / "solution"))
    builder.compiler.cache_clear()
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(ConfigurationError, match="does not compile one function: error: no cc1plus"):
        build_cpp(sample_problem, solution, cache_dir=tmp_path / "cache", sandbox="bubblewrap")
    monkeypatch.undo()
    builder.compiler.cache_clear()
    wrong = load_solution(write_cpp(tmp_path / "wrong", KERNEL + "no\n"))
    with pytest.raises(BuildFailed, match=r"kernel\.cpp:6:1: error"):
        build_cpp(sample_problem, wrong, cache_dir=tmp_path / "cache", sandbox="bubblewrap")


@pytest.mark.parametrize("own_limit", [False, True, None])
def test_a_compiler_killed_for_lack_of_host_memory_is_no_compile_error(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_limit: bool | None
) -> None:
    """This holds only if the build's control group reached no limit; without a control group the cause is unknown."""
    kills = iter(range(10**6))
    monkeypatch.setattr(sandbox, "oom_kills", lambda: next(kills))
    monkeypatch.setattr(sandbox, "reached_memory_limit", lambda _: own_limit)
    spec = {"compile": {"flags": ["-wrapper", "/bin/sh,-c,kill -9 $$"]}}
    solution = load_solution(write_cpp(tmp_path / "solution", KERNEL, **spec))
    with pytest.raises(MemoryError if own_limit is False else BuildFailed, match=r"Killed|within its memory limit"):
        build_cpp(sample_problem, solution, cache_dir=tmp_path / "cache", sandbox="bubblewrap")


def test_a_candidate_at_its_memory_limit_is_no_fault_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SandboxLimits(memory_bytes=64 << 20)
    with confined("held = bytearray(256 << 20)", tmp_path, limits=limits) as (greedy, _):
        code, limited = greedy.exit_signal_or_code(60.0), reached_memory_limit(greedy.groups)
        assert (code, limited) in {(-signal.SIGKILL, True), (0, None)}, "None if no control group can be created"
        assert not greedy.was_killed_for_others()
    with confined("import os; os.kill(os.getpid(), 9)", tmp_path, limits=limits) as (innocent, _):
        assert innocent.exit_signal_or_code(60.0) == -signal.SIGKILL
        monkeypatch.setattr(sandbox, "oom_kills", lambda: innocent.oom_kills_before + 1)
        assert innocent.was_killed_for_others() == (limited is not None)


def test_a_full_disk_is_no_compile_error(sample_problem: Problem, tmp_path: Path) -> None:
    solution = load_solution(write_cpp(tmp_path / "solution"))
    with required_small_disk(tmp_path / "disk", "128k"):
        fill(tmp_path / "disk")
        with pytest.raises(OSError, match="No space left on device") as raised:
            build_cpp(sample_problem, solution, cache_dir=tmp_path / "disk", sandbox="bubblewrap")
        assert isinstance(host_fault(raised.value), HostFaultError)
        (tmp_path / "disk" / "filling").unlink()
        assert build_cpp(sample_problem, solution, cache_dir=tmp_path / "disk", sandbox="bubblewrap").path.is_file()


def fill(disk: Path) -> None:
    """Fill a small disk."""
    with (disk / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def outcome(
    cache: Path, log: Path, request: JudgeRequest, before: Callable[[], None] = lambda: None
) -> RequestAnswered | JudgeLost:
    """Return the outcome of a request to a new judge; `before` is called when the judge is ready."""
    notices: queue.SimpleQueue[JudgeNotice] = queue.SimpleQueue()
    judge = JudgeClient("cpu", judge_command("cpu", cache, "bubblewrap"), log, notices.put)
    judge.start()
    try:
        while True:
            event = judge.handle(notices.get(timeout=DEADLINE_S))
            if isinstance(event, JudgeReady):
                before()
                judge.ask(request)
            elif isinstance(event, RequestAnswered | JudgeLost):
                return event
    finally:
        judge.close(grace_s=20)


@pytest.mark.slow
@pytest.mark.xdist_group("judge")
def test_a_real_judge_without_compiler_or_disk_reports_it_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_problem(tmp_path / "problems")
    request = JudgeRequest(
        id="1",
        kind="evaluation",
        problem="made/scale",
        problem_dir=str(directory),
        problem_digest="sha256:0",
        solution_dir=str(write_cpp(tmp_path / "solution")),
        baseline={"n40000": "eager"},
    )
    log = tmp_path / "judge.log"
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "bwrap").symlink_to(str(shutil.which("bwrap")))
    with small_disk(tmp_path / "disk", "64m") as mounted:
        cache = tmp_path / "disk"
        if mounted:
            lost = outcome(cache, log, request, before=lambda: fill(cache))
            assert isinstance(lost, JudgeLost)
            assert lost.cause == "host"
            assert "the disk cannot be written: No space left on device" in lost.error
            (cache / "filling").unlink()
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(programs))
            patch.delenv("CXX", raising=False)
            lost = outcome(cache, log, request)
        assert isinstance(lost, JudgeLost)
        assert lost.cause == "host"
        assert lost.error.splitlines() == ["no C++ compiler", "  apt-get install g++"]
        recovered = outcome(cache, log, request)
        assert isinstance(recovered, RequestAnswered)
        assert recovered.answer.verdict is Verdict.PASSED, recovered.answer.reason
