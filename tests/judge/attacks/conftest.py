"""One naive judge and one real judge per test process, and the directories of attacks."""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.formats.problems import load_problem
from harness.model.judging import JudgeAnswer, JudgeRequest
from tests.judge.attacks.cases import HONEST, HONEST_CPP, HONEST_MEAN_CPP, HONEST_NORM_CPP, PROBLEMS, write_problem

_ROOT = Path(__file__).resolve().parents[3]
_PATIENCE_S = 240.0


@dataclass
class Lines:
    """A process with requests and answers as lines."""

    process: subprocess.Popen[bytes]
    _text: bytes = b""

    def ask(self, line: str) -> None:
        """Send one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Return the next line, or fail at a deadline."""
        assert self.process.stdout is not None
        while b"\n" not in self._text:
            ready, _, _ = select.select([self.process.stdout], [], [], _PATIENCE_S)
            assert ready, "no answer"
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"ended with {self.process.wait(timeout=120)}"
            self._text += chunk
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """Close the input and wait for the end of the process, or kill it after 120 s."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=120)
        self.process.stdout.close()


class Case(Protocol):
    """A solution for both judges, on any device: an attack, or an honest solution."""

    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def fools(self) -> str: ...
    def write(self, directory: Path, words: dict[str, str]) -> Path:
        """Write the solution to a directory and return it."""


@dataclass(frozen=True)
class Naive:
    """Result of the naive judge."""

    passed: bool
    speedup: float
    workloads: int
    hung: bool
    output_bytes: int
    output_tail: str
    left_alive: bool


@dataclass
class Courts:
    """Both judges, and their results for honest solutions."""

    directory: Path
    start_naive: Callable[[], Lines]
    real_judge: Lines
    problems: dict[str, Path]
    port: int
    count: int = 0
    _naive_judge: Lines | None = None
    _naive: dict[str, Naive] = field(default_factory=dict)
    _real: dict[str, JudgeAnswer] = field(default_factory=dict)

    @property
    def secret(self) -> Path:
        """Path of a file outside every solution."""
        return self.directory / "secret"

    def plant(self, attack: Case) -> Path:
        """Return the path of the file that an attack tries to create."""
        return self.directory / f"planted-{attack.name}"

    def put(self, attack: Case) -> Path:
        """Write the attack to a new solution directory and return it."""
        self.count += 1
        words = {"SECRET": str(self.secret), "PLANT": str(self.plant(attack)), "PORT": str(self.port)}
        return attack.write(self.directory / "solutions" / f"{attack.name}-{self.count}", words)

    def sweep(self, attack: Case) -> None:
        """Remove the files that an attack left in shared directories when the naive judge ran it without a sandbox."""
        for source in (self.directory / "solutions").glob(f"{attack.name}-*/kernel.py"):
            name = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
            for place in ("/tmp", "/dev/shm"):
                for leftover in Path(place).glob(f"{name}-*.pt"):
                    leftover.unlink()

    def naive(self, attack: Case) -> Naive:
        """Return the naive judge's result."""
        if self._naive_judge is None:
            self._naive_judge = self.start_naive()
            assert self._naive_judge.answer() == "ready"
        solution = self.put(attack)
        clock = getattr(attack, "naive_clock", "each")
        request = {"problem": str(self.problems[attack.problem]), "solution": str(solution), "clock": clock}
        self._naive_judge.ask(json.dumps(request))
        return Naive(**json.loads(self._naive_judge.answer()))

    def close(self) -> None:
        """End both judges."""
        self.real_judge.close()
        if self._naive_judge is not None:
            self._naive_judge.close()

    @contextmanager
    def without(self, defence: str, directory: Path) -> Iterator[Courts]:
        """Yield the same courts with a judge that lacks a defence (tests.judge.attacks.undefended)."""
        judge = start(
            ["tests.judge.attacks.undefended", defence, *_options(directory)],
            _environment(directory),
            directory / "log",
        )
        try:
            assert json.loads(judge.answer())["event"] == "ready"
            yield Courts(directory, self.start_naive, judge, self.problems, self.port)
        finally:
            judge.close()

    def real(self, attack: Case, **settings: Any) -> JudgeAnswer:
        """Return the real judge's answer."""
        directory = self.problems[attack.problem]
        solution = self.put(attack)
        request = JudgeRequest(
            id=solution.name,
            kind="evaluation",
            problem=f"attacked/{attack.problem}",
            problem_dir=str(directory),
            problem_digest=load_problem(directory).digest,
            solution_dir=str(solution),
            **{"half_width": 0.5, "max_judge_s": 60.0, **settings},
        )
        self.real_judge.ask(request.model_dump_json())
        while True:
            event = json.loads(self.real_judge.answer())
            if event["event"] == "answer":
                return JudgeAnswer.model_validate(event)

    def honest(self, attack: Case) -> Case:
        """Return the honest solution that an attack is compared with."""
        if attack.language == "cpp":
            return {"mean": HONEST_MEAN_CPP, "norm": HONEST_NORM_CPP}.get(attack.problem, HONEST_CPP)
        return HONEST

    def naive_once(self, attack: Case) -> Naive:
        """Return the naive judge's result for an honest solution, which is judged once per test process."""
        if attack.name not in self._naive:
            self._naive[attack.name] = self.naive(attack)
        return self._naive[attack.name]

    def real_once(self, attack: Case, **settings: Any) -> JudgeAnswer:
        """Return the real judge's answer for an honest solution, which is judged once per test process."""
        if attack.name not in self._real:
            self._real[attack.name] = self.real(attack, **settings)
        return self._real[attack.name]


def start(arguments: list[str], environment: dict[str, str], log: Path) -> Lines:
    """Start a Python program of this repository, with its stderr in a file."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=_ROOT,
            env={**os.environ, **environment},
        )
    return Lines(process)


def _options(directory: Path) -> list[str]:
    return ["--device", "cpu", "--cache", str(directory / "cache"), "--sandbox", "bubblewrap"]


def _environment(directory: Path) -> dict[str, str]:
    """Create locks, a cache and a home below `directory`, and return the environment of a judge that uses them."""
    for name in ("locks", "cache", "home"):
        (directory / name).mkdir()
    return {
        "HARNESS_LOCK_DIR": str(directory / "locks"), "HOME": str(directory / "home"),
        "COURT_SECRET": "private business",
    }  # fmt: skip


@pytest.fixture(scope="session")
def courts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Courts]:
    directory = tmp_path_factory.mktemp("courts")
    environment = _environment(directory)
    real = start(["harness.judge", *_options(directory)], environment, directory / "real.log")
    problems = {name: write_problem(directory / "problems", name) for name in PROBLEMS}
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    naive = partial(start, ["tests.judge.attacks.naive"], environment, directory / "naive.log")
    courts = Courts(directory, naive, real, problems, listener.getsockname()[1])
    courts.secret.write_text('"private business"')
    try:
        assert json.loads(real.answer())["event"] == "ready"
        yield courts
    finally:
        courts.close()
        listener.close()
