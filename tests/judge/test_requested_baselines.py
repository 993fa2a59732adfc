"""Baselines that are measured on request: backends of attention, cuBLASLt, and files of `baselines/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from harness.errors import FormatError
from harness.formats.problems import load_problem
from harness.judge.baseline import baseline_runners, baselines
from harness.judge.devices.interface import RunnerTrust
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
from harness.judge.requested_baselines import find_library_baseline, requested_variants, standard_variants
from harness.judge.runners import BaselineFailed
from harness.judge.sides import Stage, Staged
from harness.model.judging import MoreBaseline
from harness.model.verdict import Verdict
from harness.runner import reference
from harness.runner.messages import HostMemory, Load, Program
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import SCALE, judge, write_cpp, write_problem
from tests.judge.planner_stand_in import planner_of
from tests.judge.problem_in_memory import problem, tensor
from tests.judge.test_baseline_variants import ADD, Slots, ThreeWorkloads

ALL: tuple[MoreBaseline, ...] = (
    "sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "cublaslt", "library",
)  # fmt: skip
ATTENTION = """
import torch.nn.functional as F

def run(x):
    heads = x.view(1, 1, -1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).flatten()
"""
LINEAR = "import torch\n\ndef run(x):\n    return torch.nn.functional.linear(x.view(2, 2), x.view(2, 2)).flatten()\n"
FACTOR = "import torch\n\ndef run(x, factor):\n    return torch.mul(x, factor)\n"
VECTOR = tensor("float32", "n")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (ADD, "cpu", ()),
        (ATTENTION, "cpu", ("sdpa_math", "sdpa_flash")),
        (LINEAR, "cpu", ()),
        (ADD, "h200", ()),
        (ATTENTION, "h200", ("sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn")),
        (LINEAR, "h200", ("cublaslt",)),
    ],
)
def test_a_problem_has_the_variants_that_its_reference_and_the_device_allow(
    source: str, target: str, expected: tuple[str, ...]
) -> None:
    sample_problem = problem({"x": VECTOR}, {"y": VECTOR}, source, {"n": 4})
    assert requested_variants(sample_problem, target, ALL) == expected
    assert requested_variants(sample_problem, target, ()) == ()


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (LINEAR, "cpu", ("eager", "compile")),
        (ADD, "h200", ("eager", "compile", "compile_graph", "cuda_graph")),
        (LINEAR, "h200", ("eager", "compile", "compile_graph", "cuda_graph", "max_autotune")),
        (
            "import torch\n\ndef run(x):\n    return torch.conv1d(x, x)\n",
            "h200",
            ("eager", "compile", "compile_graph", "cuda_graph", "max_autotune"),
        ),
    ],
)
def test_every_measurement_includes_the_forms_that_exist(source: str, target: str, expected: tuple[str, ...]) -> None:
    assert standard_variants(problem({"x": VECTOR}, {"y": VECTOR}, source, {"n": 4}), target) == expected


def test_a_call_with_python_scalars_cannot_be_captured() -> None:
    scalar = {"dtype": "float32", "shape": None}
    sample_problem = problem({"x": VECTOR, "factor": scalar}, {"y": VECTOR}, FACTOR, {"n": 4})
    assert standard_variants(sample_problem, "h200") == ("eager", "compile")


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """A problem with three library baselines: a correct one, a wrong one, and one whose library does not exist."""
    root = write_problem(tmp_path)
    (root / "baselines").mkdir()
    (root / "baselines" / "torch_mul.py").write_text(FACTOR)
    (root / "baselines" / "wrong.py").write_text(FACTOR.replace("factor)\n", "2 * factor)\n", 2))
    (root / "baselines" / "absent.py").write_text(f"import no_such_library\n{FACTOR}")
    return root


def test_each_file_of_a_problem_is_a_variant(scale: Path) -> None:
    sample_problem = load_problem(scale)
    variants = requested_variants(sample_problem, "cpu", ("library",))
    assert variants == ("library_absent", "library_torch_mul", "library_wrong")
    assert find_library_baseline(sample_problem, "library_torch_mul").source == FACTOR
    with pytest.raises(BaselineFailed, match=r"baselines/absent.py needs no_such_library: not installed"):
        find_library_baseline(sample_problem, "library_absent")
    with pytest.raises(BaselineFailed, match=r"baselines/other.py does not exist"):
        find_library_baseline(sample_problem, "library_other")


class Libraries(ThreeWorkloads):
    """Runners of the reference and of libraries, of which one is not installed."""

    def trusted(self, _: object, variant: str) -> ThreeWorkloads:
        if variant == "library_absent":
            raise BaselineFailed("not installed")
        return self


def test_a_missing_library_has_a_reason_instead_of_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_screening_us", lambda *_: 1.0)
    monkeypatch.setattr(baselines, "_full_us", lambda *_: 1.0)
    sample_problem = problem({"x": VECTOR}, {"y": VECTOR}, ADD, {"n": 4})
    libraries: Any = Libraries({})
    clock: Any = SimpleNamespace(
        runners=SimpleNamespace(settle=lambda: None), memory=lambda *_: SimpleNamespace(capacity=4)
    )
    source = InputSource(sample_problem, reference=load_reference(sample_problem))
    bench = baselines.Bench(
        sample_problem,
        load_reference(sample_problem),
        source,
        clock,
        libraries,
        planner_of(sample_problem, None).planner,
        lambda _: None,
        ("eager", "compile", "library_absent", "library_torch_mul"),
    )
    assert bench.times() == {"w": {"eager": 1.0, "compile": 1.0, "library_absent": None, "library_torch_mul": 1.0}}
    assert bench.missing == {"library_absent": "not installed"}


def test_each_library_has_its_runner_and_forms_of_the_reference_share_one(
    monkeypatch: pytest.MonkeyPatch, scale: Path, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, str)
    closed: list[str] = []

    def load(_clock: object, _runner: object, staged: Staged, trust: RunnerTrust, *, is_baseline: bool) -> Any:
        assert is_baseline
        assert trust is RunnerTrust.REFERENCE
        source = Path(staged.put(stage).source).read_text()
        return SimpleNamespace(source=source, close=lambda: closed.append(source))

    monkeypatch.setattr(baseline_runners, "load", load)
    clock: Any = SimpleNamespace(runners=SimpleNamespace(take=lambda trust: trust))
    opponents, sample_problem = baseline_runners.Opponents(clock, tmp_path, "none"), load_problem(scale)
    eager, library = opponents.trusted(sample_problem, "eager"), opponents.trusted(sample_problem, "library_torch_mul")
    assert [getattr(side, "source", "") for side in (eager, library)] == [SCALE, FACTOR]
    assert opponents.trusted(sample_problem, "sdpa_math") is eager
    assert opponents.trusted(sample_problem, "library_torch_mul") is library
    opponents.drop(sample_problem, "library_torch_mul")
    assert opponents.trusted(sample_problem, "max_autotune") is eager
    assert opponents.trusted(sample_problem, "library_torch_mul") is not library
    opponents.close()
    assert closed == [FACTOR, SCALE, FACTOR]


def test_a_malformed_launch_plan_of_the_own_baseline_is_a_failure_of_that_baseline(
    monkeypatch: pytest.MonkeyPatch, scale: Path, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> Staged:
        raise FormatError("grid: expected three numbers")

    write_cpp(scale / "baseline")
    monkeypatch.setattr(baseline_runners, "stage_solution", refuse)
    clock: Any = SimpleNamespace(hardware=SimpleNamespace(languages=("cpp",), target="cpu"))
    with pytest.raises(BaselineFailed, match="baseline/ is malformed: grid: expected three numbers"):
        baseline_runners.Opponents(clock, tmp_path, "none").own(load_problem(scale))


@pytest.mark.slow
def test_a_candidate_races_a_library_baseline(court: JudgeProcess, scale: Path, tmp_path: Path) -> None:
    solution = write_cpp(tmp_path / "solution")
    answer = judge(court, scale, solution, baseline={"n40000": "library_torch_mul"})
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.workloads[0].variant == "library_torch_mul"


@pytest.mark.slow
def test_library_baselines_are_measured_and_checked_against_the_reference(
    court: JudgeProcess, scale: Path, tmp_path: Path
) -> None:
    answer = judge(court, scale, None, more_variants=("library",))
    assert answer.verdict is Verdict.PASSED, answer.reason
    times = answer.baselines["n40000"]
    assert times["library_torch_mul"]
    assert (times["library_wrong"], times["library_absent"]) == (None, None)
    assert answer.environment.model_extra is not None
    missing = answer.environment.model_extra["missing_baselines"]
    assert missing["library_absent"] == "baselines/absent.py needs no_such_library: not installed"
    assert "output `y`" in missing["library_wrong"]
    raced = judge(court, scale, write_cpp(tmp_path / "solution"), baseline={"n40000": "library_wrong"})
    assert raced.verdict is Verdict.INVALID_REFERENCE


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """A function that loads a reference into this process; PyTorch's backends are restored afterwards."""
    cuda = torch.backends.cuda
    names = ("flash", "mem_efficient", "math", "cudnn")
    before = {name: getattr(cuda, f"{name}_sdp_enabled")() for name in names}

    def loaded(source: str) -> Any:
        file = tmp_path / "reference.py"
        file.write_text(source)
        return reference.load(Load(Program("reference", "run", source=str(file)), HostMemory(0, 0)))

    yield loaded
    for name, enabled in before.items():
        getattr(cuda, f"enable_{name}_sdp")(enabled)


def _operators(call: Callable[[int], Any]) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call(1)
    return {event.key for event in recorded.key_averages()}


def test_each_variant_uses_its_backend_of_attention_only(load: Callable[[str], Any]) -> None:
    prepare = load(ATTENTION)
    math, flash = "aten::_scaled_dot_product_attention_math", "aten::_scaled_dot_product_flash_attention_for_cpu"
    results = []
    for variant, used in (("sdpa_math", {math}), ("sdpa_flash", {flash}), ("sdpa_math", {math}), ("eager", {flash})):
        sets = Slots(variant)
        sets.vectors = [torch.arange(4.0) + slot for slot in range(2)]
        assert _operators(prepare(sets)) & {math, flash} == used
        results.append(sets.results[1])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_a_backend_that_cannot_compute_the_call_fails(load: Callable[[str], Any]) -> None:
    with pytest.raises(RuntimeError, match="scaled_dot_product_attention"):
        load(ATTENTION)(Slots("sdpa_cudnn"))(1)
