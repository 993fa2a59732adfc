"""The whole judge on extensions without a GPU: the CPU and host code are stand-ins for the GPU and device code.

Only a GPU supports `cuda_cpp`; here a patched judge process accepts it for the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.formats.solution_json import solution_from_json
from harness.model.judging import JudgeAnswer, JudgeRequest
from harness.model.verdict import Verdict
from tests.judge.attacks.conftest import Lines
from tests.judge.courtroom import write_problem
from tests.judge.extensions import PARTS, TVM_FFI, write_extension

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("judge")]

_JUDGE_CODE = (
    "from harness.judge.devices.cpu_hardware import CpuHardware; CpuHardware.languages = ('cuda_cpp',); "
    "from harness.judge.__main__ import main; main()"
)
_SOURCE = TVM_FFI.replace("AXIS_n", "40000")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    directory = tmp_path_factory.mktemp("judge")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _JUDGE_CODE,
                "--device",
                "cpu",
                "--cache",
                str(directory),
                "--sandbox",
                "bubblewrap",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "HARNESS_LOCK_DIR": str(directory)},
        )
    lines = Lines(process)
    try:
        assert json.loads(lines.answer())["event"] == "ready", (directory / "log").read_text()
        yield lines
    finally:
        lines.close()


def judged(judge: Lines, problem: Path, solution: Path) -> JudgeAnswer:
    request = JudgeRequest(
        id="1",
        kind="evaluation",
        problem="made/scale",
        problem_dir=str(problem),
        problem_digest=load_problem(problem).digest,
        solution_dir=str(solution),
        half_width=0.5,
        max_judge_s=60.0,
    )
    judge.ask(request.model_dump_json())
    while True:
        event = json.loads(judge.answer())
        if event["event"] == "answer":
            return JudgeAnswer.model_validate(event)


@pytest.mark.parametrize(
    ("source", "function", "passing", "verdict", "reason_part"),
    [
        (_SOURCE, "run", True, Verdict.PASSED, ""),
        (_SOURCE, "listed", False, Verdict.PASSED, ""),
        (_SOURCE.replace("factor, s", "factor * 1.01, s"), "run", True, Verdict.INCORRECT_NUMERICAL, "output `y`"),
        (_SOURCE.replace("x.ndim()", "x.rank()"), "run", True, Verdict.COMPILE_ERROR, "main.cpp:30:72: error: "),
        (_SOURCE, "refuses", True, Verdict.RUNTIME_ERROR, "ValueError: x has 1 dimensions, not two"),
        (_SOURCE, "hidden", True, Verdict.RUNTIME_ERROR, "no function `hidden`"),
        (_SOURCE.replace("{}\n", "{ abort(); }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(hidden, hidden)\n"), "hidden", True,
         Verdict.RUNTIME_ERROR, "killed by SIGABRT"),
    ],
)  # fmt: skip
def test_an_extension_gets_its_verdict(
    judge: Lines, tmp_path: Path, source: str, function: str, passing: bool, verdict: Verdict, reason_part: str
) -> None:
    solution = write_extension(tmp_path / "s", source, function=function, destination_passing=passing)
    answer = judged(judge, write_problem(tmp_path), solution.directory)
    assert answer.verdict is verdict, answer.reason
    assert reason_part in (answer.reason or "")


def test_a_solution_json_of_sol_execbench_is_judged(judge: Lines, tmp_path: Path) -> None:
    sources = {**PARTS, "main.cpp": _SOURCE}
    document = {
        "name": "scale",
        "definition": "scale",
        "author": "a",
        "spec": {
            "languages": ["cuda_cpp"],
            "target_hardware": ["LOCAL"],
            "entry_point": "main.cpp::run",
            "binding": "tvm_ffi",
            "compile_options": {"cflags": ["-ffast-math"], "ld_flags": []},
        },
        "sources": [{"path": path, "content": text} for path, text in sources.items()],
    }
    (tmp_path / "solution.json").write_text(json.dumps(document))
    solution = solution_from_json(tmp_path / "solution.json", tmp_path / "out")
    answer = judged(judge, write_problem(tmp_path), solution)
    assert answer.verdict is Verdict.PASSED, answer.reason
