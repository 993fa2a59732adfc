"""A real workspace for tests: git, problems, workers' commits, and the harness in real processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.git.repo import Repo
from harness.ledger.create_workspace import create_workspace
from harness.ledger.index import Index
from harness.model.entry import Entry
from harness.model.process_status import DaemonStatus, JudgeStatus
from harness.workspace.directories import Workspace
from harness.workspace.status import read_status
from tests.command_line import call_harness
from tests.kept_directory import kept_directory
from tests.waiting import DEADLINE_S, wait_until
from tests.whole_entries import whole_entries

STUB = Path(__file__).parent / "stub_judge.py"
TARGET = "cpu"
MARKER = "HARNESS_TEST_SITE"
"""A variable in the environment of every process that a site starts, and so of their children."""

DEFINITION = {
    "name": "increment",
    "description": "adds one",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "import torch\n\n\ndef run(x):\n    return x + 1\n",
}
SOLUTION = "language: cpp\nentry: kernel.cpp::increment\nparams: {WIDTH: 1}\n"
KERNEL = """#include <cstdint>

extern "C" void increment(const float *x, float *y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] + 1.0f;
}
"""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the process' environment without failpoints and git's variables, with an identity for git."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIT_", "HARNESS_", "STUB_", "ANTHROPIC_"))
    }
    return {
        **passed,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "tester",
        "GIT_AUTHOR_EMAIL": "tester@example.invalid",
        "GIT_COMMITTER_NAME": "tester",
        "GIT_COMMITTER_EMAIL": "tester@example.invalid",
        **(extra or {}),
    }


def git(directory: Path, *arguments: str, stdin: str | None = None, extra: Mapping[str, str] | None = None) -> str:
    """Run a git command and return its output."""
    completed = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env=clean_environment(extra),
        input=stdin,
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return completed.stdout.strip()


def write_problem(
    root: Path, key: str, *, workloads: int = 2, description: str = "adds one", tunable: bool = False
) -> None:
    """Write a small problem, with an initial solution if `tunable`; the stub follows directives in its description."""
    directory = root / "problems" / key
    directory.mkdir(parents=True, exist_ok=True)
    definition = {**DEFINITION, "name": key.partition("/")[2], "description": description}
    (directory / "definition.json").write_text(json.dumps(definition, indent=1))
    lines = [
        json.dumps({"uuid": f"{key}-{number}", "axes": {"n": 64 * (number + 1)}, "inputs": {"x": {"type": "random"}}})
        for number in range(workloads)
    ]
    (directory / "workload.jsonl").write_text("\n".join(lines) + "\n")
    if tunable:
        solution = directory / "solutions/cpu"
        solution.mkdir(parents=True)
        (solution / "solution.yaml").write_text(f"{SOLUTION}tune: {{WIDTH: [1, 2, 3, 4, 5, 6, 7, 8]}}\n")
        (solution / "kernel.cpp").write_text(KERNEL)


def make_site(root: Path, problems: tuple[str, ...] = ("t/one", "t/two"), *, tunable: bool = False) -> None:
    """Make a workspace with small problems, committed on main: a copy of one that this process has made before."""
    shutil.copytree(_site_template(problems, tunable), root, symlinks=True)


@functools.cache
def _site_template(problems: tuple[str, ...], tunable: bool) -> Path:
    root = kept_directory("site") / "site"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    create_workspace(root, suites=())
    for key in problems:
        write_problem(root, key, tunable=tunable)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "Add problems")
    return root


@dataclass(frozen=True)
class Commit:
    """A worker's commit."""

    id: str
    tree: str
    branch: str
    worker: str
    problem: str
    text: str


@dataclass
class Site:
    """A workspace and the processes that a test starts in it. `close` ends the remaining processes."""

    root: Path
    scratch: Path
    """The directory of files that must not be in the workspace: locks and recorded requests."""
    stub: bool = True
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root)

    @property
    def marker(self) -> str:
        return str(self.scratch)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the site's processes."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        own_variables = {
            MARKER: self.marker,
            "HARNESS_LOCK_DIR": str(self.scratch / "locks"),
            "STUB_JUDGE_REQUESTS": str(self.scratch / "requests.jsonl"),
        }
        if self.stub:
            own_variables["HARNESS_JUDGE_COMMAND"] = shlex.join([sys.executable, str(STUB)])
        return clean_environment({**own_variables, **(extra or {})})

    # --- workers ---

    def submit(
        self,
        worker: str,
        problem: str,
        text: str = "",
        *,
        solution: str = SOLUTION,
        file: str = "kernel.cpp",
        run: str = "main",
        publish: bool = True,
    ) -> Commit:
        """Commit a solution on a worker's branch, with plumbing only; `text` is added to the kernel as a comment.

        With `publish` false the branch is not moved, so that no process sees the commit yet.
        """
        branch = f"agents/{run}/{worker}/{problem}"
        index = {"GIT_INDEX_FILE": str(self.scratch / f"index-{worker}")}
        self.scratch.mkdir(parents=True, exist_ok=True)
        place = f"problems/{problem}/solutions/{TARGET}"
        try:
            parent = git(self.root, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        except subprocess.CalledProcessError:
            parent = git(self.root, "rev-parse", "main")
        git(self.root, "read-tree", parent, extra=index)
        for name, content in (("solution.yaml", solution), (file, f"{KERNEL}// {text}\n")):
            blob = git(self.root, "hash-object", "-w", "--stdin", stdin=content)
            git(self.root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{place}/{name}", extra=index)
        tree = git(self.root, "write-tree", extra=index)
        new_commit = git(
            self.root, "commit-tree", tree, "-p", parent, "-m", f"Try {text}\n\nRun: {run}\nWorker: {worker}"
        )
        if publish:
            git(self.root, "update-ref", f"refs/heads/{branch}", new_commit)
        commit = Commit(new_commit, git(self.root, "rev-parse", f"{new_commit}:{place}"), branch, worker, problem, text)
        self.commits.append(commit)
        return commit

    # --- processes ---

    def start(self, *arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `harness ARGUMENTS` in the workspace."""
        return self.start_program([sys.executable, "-m", "harness", *arguments], extra=extra)

    def start_program(self, command: Sequence[str], *, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a program in the workspace."""
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment(extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(
        self, *arguments: str, extra: Mapping[str, str] | None = None, deadline_s: float = 2 * DEADLINE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run `harness ARGUMENTS` to its end; stdout and stderr are merged."""
        return self.run_program([sys.executable, "-m", "harness", *arguments], extra=extra, deadline_s=deadline_s)

    def call(self, *arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `harness ARGUMENTS` in the test's own process, which is faster; stdout and stderr are merged."""
        return call_harness(*arguments, cwd=self.root, environment=self.environment(extra), merged=True)

    def run_program(
        self, command: Sequence[str], *, extra: Mapping[str, str] | None = None, deadline_s: float = 2 * DEADLINE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the workspace to its end; stdout and stderr are merged."""
        process = self.start_program(command, extra=extra)
        try:
            output, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            output, _ = process.communicate()
            raise TimeoutError(f"{' '.join(command)} did not end within {deadline_s} s:\n{output}") from None
        return subprocess.CompletedProcess(command, process.returncode, output)

    def strays(self) -> dict[int, str]:
        """Return pid -> command line of live processes that this site's processes have left."""
        marker = f"{MARKER}={self.marker}".encode()
        processes = {}
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marker in (directory / "environ").read_bytes().split(b"\0"):
                    state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        processes[int(directory.name)] = (
                            (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        )
        return processes

    def no_strays(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until every process of the site has ended.

        Raises:
            AssertionError: processes are left at the deadline.
        """
        try:
            wait_until(lambda: not self.strays(), event="the end of every process", deadline_s=deadline_s)
        except TimeoutError:
            raise AssertionError(f"stray processes: {self.strays()}") from None

    def close(self) -> None:
        """End the processes that a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for pid in self.strays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.communicate(timeout=120)

    # --- contents of the workspace ---

    def entries(self, problem: str | None = None, **filters: Any) -> list[Entry]:
        """Return the ledger's entries, committed or spooled."""
        with Repo(self.workspace) as repo, Index(self.workspace, branch="main") as index:
            index.refresh(repo)
            return whole_entries(index, problem, **filters)

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests to the stub, of all of its processes."""
        file = self.scratch / "requests.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def daemon(self) -> DaemonStatus:
        """Return the daemon's last status record, or an empty one before the first."""
        return read_status(self.workspace, DaemonStatus) or DaemonStatus()

    def judging(self) -> JudgeStatus:
        """Return the active judge from the daemon's status record, or a judge without a device if none is active."""
        return self.daemon().current or JudgeStatus(device="", state="idle")


@contextlib.contextmanager
def site_in(directory: Path, *, tunable: bool = False, stub: bool = True) -> Iterator[Site]:
    """Yield a new site below a directory, closed at the end; its judge is the real one without `stub`."""
    site = Site(directory / "work space", directory / "scratch", stub=stub)
    make_site(site.root, tunable=tunable)
    try:
        yield site
    finally:
        site.close()
