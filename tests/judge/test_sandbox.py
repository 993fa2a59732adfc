"""Files, processes and system calls that judged code can access."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.isolation.sandbox import Binds, check, launch
from harness.judge.isolation.seccomp import program
from harness.judge.shared_memory import Region
from harness.model.config import SandboxKind
from tests.judge.confined import confined, stderr_of
from tests.waiting import wait_until

_CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(*arguments)
    print(name, answer, ctypes.get_errno(), file=sys.stderr)
"""


def test_only_libraries_of_the_host_are_visible(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("private business")
    repository = Path(__file__).resolve().parents[2]
    output = stderr_of(
        f"""
        import os, sys
        paths = [{str(secret)!r}, {str(repository / "harness")!r}, {str(repository / ".git")!r}]
        paths += ["/etc/passwd", "/root/.ssh", "/sys", "/run", "/var"]
        print([path for path in paths if os.path.exists(path)], file=sys.stderr)
        print(sorted(name for name in os.listdir("/proc") if name.isdigit()), file=sys.stderr)
        names = sorted(name for name in os.environ if "HARNESS" in name or "TOKEN" in name)
        print(names, os.environ["HOME"], file=sys.stderr)
        rest = set(os.listdir("/dev/shm") + os.listdir("/tmp")) - {set(repository.parts[2:3])!r}
        print(sorted(rest), sorted(os.listdir("/opt/judge")), file=sys.stderr)
        """,
        tmp_path,
    )
    assert output.splitlines() == ["[]", "['1', '2']", "[] /tmp", "[] ['runner']"]


def test_only_private_scratch_is_writable(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "file").write_text("original")
    output = stderr_of(
        """
        import sys
        for path in ("/stage/file", "/usr/x", "/opt/judge/runner/main.py", "/x", "/proc/sys/kernel/core_pattern",
                     "/proc/sysrq-trigger", "/tmp/x", "/dev/shm/x"):
            try:
                open(path, "w").close()
            except OSError:
                continue
            print(path, file=sys.stderr)
        """,
        tmp_path,
        binds=Binds(read_only={stage: "/stage"}),
    )
    assert output.split() == ["/tmp/x", "/dev/shm/x"]
    assert (stage / "file").read_text() == "original"


@pytest.mark.parametrize("kind", ["bubblewrap", "none"])
def test_a_command_whose_limits_cannot_be_set_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SandboxKind
) -> None:
    first_processes: list[int] = []

    def refuse(pid: int, _: SandboxLimits) -> None:
        first_processes.append(pid)
        raise OSError("no limits")

    monkeypatch.setattr("harness.judge.isolation.sandbox.apply_limits", refuse)
    with (tmp_path / "stderr").open("w+b") as stderr, pytest.raises(OSError, match="no limits"):
        launch(kind, ["/bin/sleep", "60"], binds=Binds(), limits=SandboxLimits(), env={}, stderr=stderr)
    assert not Path(f"/proc/{first_processes[0]}").exists()


def test_there_is_no_network(tmp_path: Path) -> None:
    code = """
    import socket, sys
    print(socket.if_nameindex(), file=sys.stderr)
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=2)
    except OSError as error:
        print("no", file=sys.stderr)
    """
    assert stderr_of(code, tmp_path).splitlines()[-1] == "no"
    assert "'lo'" in stderr_of(code, tmp_path).splitlines()[0]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are this architecture's")
def test_calls_that_would_escape_the_clock_or_the_stop_are_denied(tmp_path: Path) -> None:
    output = stderr_of(
        _CALLS
        + """
mask = ctypes.c_ulong(3)
attempt("sched_setaffinity", 203, 0, 8, ctypes.byref(mask))
attempt("setpriority", 141, 0, 0, -5)
attempt("sched_setscheduler", 144, 0, 0, ctypes.byref(ctypes.c_int(0)))
attempt("ptrace", 101, 0, 1, 0, 0)
attempt("process_vm_writev", 311, 1, None, 0, None, 0, 0)
attempt("io_uring_setup", 425, 8, None)
attempt("io_setup", 206, 8, ctypes.byref(ctypes.c_ulong()))
attempt("perf_event_open", 298, None, 0, -1, -1, 0)
attempt("userfaultfd", 323, 0)
attempt("unshare", 272, 0x10000000)
attempt("mount", 165, b"x", b"/tmp", b"tmpfs", 0, None)
attempt("clone_newuser", 56, 0x10000000 | 17, 0, 0, 0, 0)
attempt("setns", 308, 0, 0)
attempt("bpf", 321, 0, None, 0)
attempt("x32", 0x40000000 + 39)
attempt("timer_create", 222, 0, None, ctypes.byref(ctypes.c_int()))
attempt("mq_notify", 244, 0, None)
attempt("F_SETOWN", 72, 0, 8, os.getpid())
attempt("F_SETSIG", 72, 0, 10, 18)
attempt("F_SETOWN_EX", 72, 0, 15, None)
attempt("PR_SCHED_CORE", 157, 62, 1, 0, 0, 0)
attempt("MADV_COLLAPSE", 28, None, 0, 25)
attempt("MADV_HUGEPAGE", 28, None, 0, 14)
attempt("MADV_REMOVE", 28, None, 0, 9)
attempt("FALLOC_FL_PUNCH_HOLE", 285, 0, 3, 0, 4096)
attempt("FALLOC_FL_ZERO_RANGE", 285, 0, 0x10, 0, 4096)
""",
        tmp_path,
    )
    lines = [line.split() for line in output.splitlines()]
    assert len(lines) == 26
    assert all(answer == "-1" and error == "1" for _, answer, error in lines), output


def test_other_uses_of_calls_that_are_denied_by_argument_are_allowed(tmp_path: Path) -> None:
    code = """
    import fcntl, mmap, os, sys
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    mmap.mmap(-1, 1 << 22).madvise(mmap.MADV_NOHUGEPAGE)
    mmap.mmap(-1, 1 << 22).madvise(mmap.MADV_DONTNEED)
    os.posix_fallocate(os.memfd_create("file"), 0, 4096)
    print("allowed", file=sys.stderr)
    """
    assert stderr_of(code, tmp_path) == "allowed"


def test_a_sandbox_with_a_device_may_ask_for_pages_of_its_own(tmp_path: Path) -> None:
    """This sandbox shares no host memory with the judge, and the device's driver may need such pages."""
    code = """
    import mmap, sys
    mmap.mmap(-1, 1 << 22).madvise(mmap.MADV_HUGEPAGE)
    try:
        mmap.mmap(-1, 1 << 22).madvise(25)  # MADV_COLLAPSE
    except PermissionError:
        print("collapsing is denied", file=sys.stderr)
    """
    assert stderr_of(code, tmp_path, binds=Binds(devices=("/dev/null",))) == "collapsing is denied"


def test_threads_and_children_are_allowed(tmp_path: Path) -> None:
    code = """
    import os, subprocess, sys, threading
    thread = threading.Thread(target=lambda: print("thread", file=sys.stderr))
    thread.start(); thread.join()
    print(subprocess.run(["/usr/bin/env", "echo", "child"], capture_output=True, text=True).stdout, file=sys.stderr)
    """
    assert stderr_of(code, tmp_path).split() == ["thread", "child"]


def test_resource_limits_are_enforced(tmp_path: Path) -> None:
    processor = max(os.sched_getaffinity(0))
    output = stderr_of(
        """
        import os, resource, sys
        print(sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_CORE), file=sys.stderr)
        for limit, value in ((resource.RLIMIT_AS, 1 << 40), (resource.RLIMIT_FSIZE, 1 << 40)):
            try:
                resource.setrlimit(limit, (value, value))
            except (ValueError, PermissionError):
                print("held", file=sys.stderr)
        try:
            open("/tmp/large", "wb").write(b"x" * (2 << 20))
        except OSError as error:
            print(error.strerror, file=sys.stderr)
        try:
            bytearray(2 << 30)
        except MemoryError:
            print("no memory", file=sys.stderr)
        """,
        tmp_path,
        limits=SandboxLimits(cpus=frozenset({processor}), address_space_bytes=1 << 30, file_bytes=1 << 20),
    )
    assert output.splitlines() == [f"[{processor}] (0, 0)", "held", "held", "File too large", "no memory"]


def test_sealed_inputs_can_be_read_and_never_written(tmp_path: Path) -> None:
    region = Region(mmap.PAGESIZE, sealed=True)
    region.all.fill_(7)
    code = """
    import ctypes, mmap, os, sys
    fd = int(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
    print(ctypes.string_at(at, 1)[0], file=sys.stderr)
    def attempt(name, action):
        try:
            action()
            print(name, file=sys.stderr)
        except OSError:
            pass
    def mprotect():
        if libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 3):
            raise OSError
    def remove():
        if libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(4096), 9):
            raise OSError
    attempt("mprotect", mprotect)
    attempt("remove", remove)
    attempt("map", lambda: mmap.mmap(fd, 4096))
    attempt("write", lambda: os.write(fd, b"x"))
    attempt("reopened", lambda: os.write(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x"))
    attempt("truncate", lambda: os.ftruncate(fd, 0))
    def punch():
        if libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)):
            raise OSError
    attempt("punch", punch)
    """
    with confined(code, tmp_path, inherit=(region.descriptor,)) as (sandbox, log):
        assert sandbox.exit_signal_or_code(30.0) == 0, log.read_text()
        assert log.read_text().split() == ["7"]
    assert bool((region.all == 7).all())
    region.close()


def test_the_exit_code_or_signal_is_reported(tmp_path: Path) -> None:
    for code, ended in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -11)):
        with confined(code, tmp_path) as (sandbox, _):
            assert sandbox.exit_signal_or_code(30.0) == ended


def test_all_processes_of_a_forking_candidate_are_killed(tmp_path: Path) -> None:
    code = """
    import os, sys, time
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            time.sleep(600)
    print("forked", file=sys.stderr, flush=True)
    time.sleep(600)
    """
    with confined(code, tmp_path) as (sandbox, log):
        wait_until(lambda: "forked" in log.read_text(), event="the forks")
        namespace = Path(f"/proc/{sandbox.first}/ns/pid").readlink()
        sandbox.kill()
    left = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                left += [directory.name] if (directory / "ns" / "pid").readlink() == namespace else []
            except OSError:
                continue
    assert not left


def test_a_missing_bubblewrap_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check("none")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigurationError, match="bubblewrap is missing") as missing:
        check("bubblewrap")
    assert "apt-get install bubblewrap" in str(missing.value)


def test_the_output_of_a_failing_bubblewrap_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigurationError, match="No permissions to create new namespace"):
        check("bubblewrap")


def test_the_filter_exists_for_two_architectures_only() -> None:
    assert len(program("x86_64")) % 8 == 0
    assert program("x86_64") != program("aarch64")
    with pytest.raises(ConfigurationError, match="riscv64"):
        program("riscv64")
