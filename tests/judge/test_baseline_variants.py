"""More forms of the reference as baselines on a GPU; tests/gpu/test_baseline_variants.py measures them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from harness.daemon.drafts import fastest
from harness.judge.baseline import baselines
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
from harness.judge.runners import BaselineFailed, NoDeviceMemory, RunnerFailed
from harness.model.judging import Variant
from harness.model.verdict import Verdict
from harness.runner import reference
from harness.runner.messages import DeviceMemory, HostMemory, Load, Program, SlotField
from harness.runner.shared_memory import WorkloadSlots
from tests.judge.planner_stand_in import memory_state, planner_of
from tests.judge.problem_in_memory import problem, tensor

ADD = "def run(x):\n    return x + 1\n"


class ThreeWorkloads:
    """Stand-in for the reference's runners without a GPU.

    A variant in `fails` raises its error: when it is compiled if no runner broke, otherwise when it is prepared.
    """

    def __init__(self, fails: dict[str, Exception] | None = None) -> None:
        self.fails = fails or {}
        self.prepared: list[tuple[str, str]] = []
        self.dropped: list[str] = []

    def compile_ahead(self, _problem: object, _workloads: object, _progress: object, variant: str = "compile") -> None:
        if self._fails_to_compile(variant):
            raise self.fails[variant]

    def trusted(self, _: object, __: str) -> ThreeWorkloads:
        return self

    def drop(self, _: object, variant: str) -> None:
        self.dropped.append(variant)

    def prepare(self, workload: Any, _layout: object, _slots: object, variant: str, _plan: object) -> None:
        self.prepared.append((workload.uuid, variant))
        if variant in self.fails and not self._fails_to_compile(variant):
            raise self.fails[variant]

    def _fails_to_compile(self, variant: str) -> bool:
        failure = self.fails.get(variant)
        return isinstance(failure, BaselineFailed) and failure.broken is None


def broken(verdict: Verdict, reason: str) -> BaselineFailed:
    """Return the failure of a baseline whose runner cannot be used any more."""
    return BaselineFailed(reason, broken=RunnerFailed(verdict, reason))


class Readings:
    """Stand-in for both measurements of a variant, by workload and variant; a call that is full adds a tenth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: dict[str, float | Exception]) -> None:
        self.times, self.full = times, list[tuple[str, str]]()
        self.fails_in_full: dict[tuple[str, str], Exception] = {}
        monkeypatch.setattr(baselines, "_screening_us", lambda _memory, side, *_: self._time(side))
        monkeypatch.setattr(baselines, "_full_us", self._full)

    def _full(self, _memory: object, side: Any, *_: object) -> float:
        self.full.append(side.prepared[-1])
        if side.prepared[-1] in self.fails_in_full:
            raise self.fails_in_full[side.prepared[-1]]
        return self._time(side) + 0.1

    def _time(self, side: Any) -> float:
        uuid, variant = side.prepared[-1]
        time = self.times.get(f"{variant} on {uuid}", self.times[variant])
        if isinstance(time, Exception):
            raise time
        return time


def bench(opponents: ThreeWorkloads, *variants: Variant) -> baselines.Bench:
    vector = tensor("float32", "n")
    template = problem({"x": vector}, {"y": vector}, ADD, {"n": 4})
    workloads = tuple(template.workloads[0].model_copy(update={"uuid": uuid}) for uuid in ("a", "b", "c"))
    sample_problem = template.model_copy(update={"workloads": workloads})
    clock: Any = SimpleNamespace(
        hardware=SimpleNamespace(summed=None),
        runners=SimpleNamespace(settle=lambda: None),
        memory=lambda *_: SimpleNamespace(capacity=4),
        most_calls=lambda _: 4,
    )
    source = InputSource(sample_problem, reference=load_reference(sample_problem))
    runners: Any = opponents
    return baselines.Bench(
        sample_problem,
        load_reference(sample_problem),
        source,
        clock,
        runners,
        planner_of(sample_problem, memory_state()).planner,
        lambda _: None,
        ("eager", "compile", *variants),
    )


def test_only_variants_that_could_be_the_fastest_are_timed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    times: dict[str, float | Exception] = {"eager": 3.0, "compile": 1.4, "compile_graph": 1.0, "compile on b": 1.6}
    readings = Readings(monkeypatch, times)
    measured = bench(ThreeWorkloads(), "compile_graph")
    table = measured.times()
    assert table["a"] == {"eager": 3.0, "compile": 1.5, "compile_graph": 1.1}
    assert table["b"] == {"eager": 3.0, "compile": 1.6, "compile_graph": 1.1}
    assert measured.screened == {"a": ("eager",), "b": ("eager", "compile"), "c": ("eager",)}
    assert [variant for uuid, variant in readings.full if uuid == "b"] == ["compile_graph"]
    assert measured.missing == {}


def test_a_variant_that_fails_when_it_is_timed_in_full_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = Readings(monkeypatch, {"eager": 3.0, "compile": 1.0})
    readings.fails_in_full = {("a", "compile"): broken(Verdict.TIMEOUT, "no answer")}
    measured = bench(ThreeWorkloads())
    table = measured.times()
    assert (table["a"], table["b"]) == ({"eager": 3.1, "compile": None}, {"eager": 3.0, "compile": 1.1})
    assert (measured.screened["a"], measured.missing) == ((), {"compile": "workload a: no answer"})


def test_a_variant_that_cannot_be_prepared_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, {"eager": 1.0, "compile": 1.0, "cuda_graph": 1.0})
    opponents = ThreeWorkloads({"cuda_graph": broken(Verdict.RUNTIME_ERROR, "RuntimeError: not captured")})
    measured = bench(opponents, "cuda_graph")
    table = measured.times()
    assert [uuid for uuid, variant in opponents.prepared if variant == "cuda_graph"] == ["a"]
    assert opponents.dropped == ["cuda_graph"]
    assert measured.missing == {"cuda_graph": "workload a: RuntimeError: not captured"}
    assert table["c"] == {"eager": 1.1, "compile": 1.1, "cuda_graph": None}


def test_a_variant_that_is_wrong_or_lacks_memory_on_one_workload_is_tried_on_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: dict[str, float | Exception] = {"eager": 1.0, "compile": 1.0, "cuda_graph": 1.0}
    times |= {"compile on a": BaselineFailed("output `y`: wrong"), "cuda_graph on b": torch.OutOfMemoryError("full")}
    Readings(monkeypatch, times)
    opponents = ThreeWorkloads()
    measured = bench(opponents, "cuda_graph")
    table = measured.times()
    assert table["a"] == {"eager": 1.1, "compile": None, "cuda_graph": 1.1}
    assert table["b"] == {"eager": 1.1, "compile": 1.1, "cuda_graph": None}
    assert table["c"] == {"eager": 1.1, "compile": 1.1, "cuda_graph": 1.1}
    assert measured.missing["compile"] == "workload a: output `y`: wrong"
    assert measured.missing["cuda_graph"].startswith("workload b: the device is too small")
    assert opponents.dropped == ["cuda_graph"], "a wrong output does not break a runner"


def test_a_workload_without_memory_does_not_end_the_trials_of_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, {"eager": 1.0, "compile": 1.0, "cuda_graph": 1.0})
    opponents = ThreeWorkloads({"cuda_graph": NoDeviceMemory("full")})
    bench(opponents, "cuda_graph").times()
    assert [uuid for uuid, variant in opponents.prepared if variant == "cuda_graph"] == [*"aabbcc"], "once more each"


def test_a_variant_that_does_not_compile_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, {"eager": 1.0, "compile": 1.0})
    measured = bench(ThreeWorkloads({"max_autotune": BaselineFailed("no template")}), "max_autotune")
    assert measured.times()["b"] == {"eager": 1.1, "compile": 1.1, "max_autotune": None}
    assert measured.missing == {"max_autotune": "workload a: no template"}
    assert bench(ThreeWorkloads()).times()["a"] == {"eager": 1.1, "compile": 1.1}


@pytest.mark.parametrize(("largest", "tried"), [(1.4, ["a", "b", "c"]), (1.6, ["a", "b"])])
def test_max_autotune_is_tried_on_the_largest_workloads_first(
    monkeypatch: pytest.MonkeyPatch, largest: float, tried: list[str]
) -> None:
    times: dict[str, float | Exception] = {"eager": 2.0, "compile": 1.0, "max_autotune": 2.0}
    Readings(monkeypatch, times | {"max_autotune on b": largest})
    opponents = ThreeWorkloads()
    measured = bench(opponents, "max_autotune")
    table = measured.times()
    assert list(dict.fromkeys(uuid for uuid, variant in opponents.prepared if variant == "max_autotune")) == tried
    assert table["a"]["max_autotune"] == 2.0
    assert ("max_autotune" in measured.missing) == (len(tried) == 2)


def test_any_variant_that_was_timed_in_full_may_be_the_fastest() -> None:
    table: Any = {"a": {"eager": 3.0, "compile": 2.0, "cuda_graph": 1.0}, "b": {"eager": 3.0, "max_autotune": 2.0}}
    assert fastest(table, {}) == {"a": "cuda_graph", "b": "max_autotune"}
    assert fastest(table, {"a": ("cuda_graph",), "b": ("eager", "max_autotune")}) == {"a": "compile"}


class Slots:
    """Two slots of one vector in host memory."""

    inputs = (SlotField("x", "float32", (4,), 0, 16, None),)
    outputs = (SlotField("y", "float32", (4,), 0, 16, None),)
    slots = 2

    def __init__(self, variant: str, scalars: list[tuple[int, str, Any]] | None = None) -> None:
        self.variant, self.scalars = variant, scalars or []
        self.vectors = [torch.full((4,), float(slot)) for slot in range(2)]
        self.results = [torch.zeros(4) for _ in range(2)]

    def input_tensors(self, slot: int) -> list[Any]:
        return [self.vectors[slot]]

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        return [self.results[slot]]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        return self.scalars


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[Any], Any]:
    source = tmp_path / "reference.py"
    source.write_text(ADD)
    return reference.load(Load(Program("reference", "run", source=str(source)), DeviceMemory(0, 0)))


class Graph:
    """Stand-in for a CUDA graph: a replay calls the captured function."""

    captured: Graph | None = None

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    captured_graphs: list[Graph] = []

    @contextlib.contextmanager
    def capture(graph: Graph, pool: object) -> Iterator[None]:
        assert pool == "pool"
        captured_graphs.append(graph)
        yield

    cuda = SimpleNamespace(CUDAGraph=Graph, graph=capture, graph_pool_handle=lambda: "pool")
    cuda.Stream = lambda: SimpleNamespace(wait_stream=lambda _: None)
    cuda.current_stream = cuda.Stream
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.synchronize = lambda: None
    monkeypatch.setattr(torch, "cuda", cuda)
    return captured_graphs


class Compiler:
    """Stand-in for `torch.compile` that records the options."""

    def __init__(self) -> None:
        self.options: list[tuple[object, object]] = []

    def __call__(self, function: Callable[..., Any], *, mode: object, dynamic: object) -> Callable[..., Any]:
        self.options.append((mode, dynamic))
        return function


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    stand_in = Compiler()
    monkeypatch.setattr(reference, "_compiled", stand_in)
    return stand_in


def test_both_forms_of_a_compiled_variant_use_one_compilation(
    loaded: Callable[[Any], Any], graphs: list[Graph], compiler: Compiler
) -> None:
    for variant, captured in (
        ("compile", False), ("compile_graph", True), ("max_autotune_uncaptured", False), ("max_autotune", True),
    ):  # fmt: skip
        sets = Slots(variant)
        graphs.clear()
        call = loaded(sets)
        assert len(graphs) == 2 * captured
        call(1)
        assert sum(graph.replays for graph in graphs) == captured
        assert captured or sets.results[1].tolist() == [2.0] * 4
    assert compiler.options == [(None, False), ("max-autotune-no-cudagraphs", False)]


def test_a_compiled_function_that_cannot_be_captured_is_called_directly_with_max_autotune_only(
    loaded: Callable[[Any], Any], graphs: list[Graph], compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    sets = Slots("max_autotune")
    loaded(sets)(1)
    assert sets.results[1].tolist() == [2.0] * 4
    with pytest.raises(RuntimeError, match="capturing"):
        loaded(Slots("compile_graph"))
    assert (graphs, len(compiler.options)) == ([], 2)


def test_the_values_of_python_scalars_are_not_compiled_one_by_one(
    loaded: Callable[[Any], Any], compiler: Compiler
) -> None:
    loaded(Slots("compile", [(0, "int", [1, 2])]))
    assert compiler.options == [(None, None)]


@pytest.mark.parametrize("scalars", [[], [(0, "int", [1, 2])]])
def test_a_cpu_compiles_once_with_dynamic_shapes(
    tmp_path: Path, compiler: Compiler, scalars: list[tuple[int, str, Any]]
) -> None:
    source = tmp_path / "reference.py"
    source.write_text(ADD)
    prepare = reference.load(Load(Program("reference", "run", source=str(source)), HostMemory(0, 0)))
    for _ in range(2):
        prepare(cast("WorkloadSlots", Slots("compile", scalars)))
    assert compiler.options == [(None, True)]


def test_every_placement_has_a_graph_that_was_captured_before_it_is_called(
    loaded: Callable[[Any], Any], graphs: list[Graph]
) -> None:
    sets = Slots("cuda_graph")
    sets.vectors[0].fill_(5.0)
    call = loaded(sets)
    assert [graph.replays for graph in graphs] == [0, 0]
    call(1)
    assert [graph.replays for graph in graphs] == [0, 1]
    assert [result.tolist() for result in sets.results] == [[0.0] * 4, [2.0] * 4]
    assert sets.vectors[0].tolist() == [0.0] * 4, "the calls before the capture have no arbitrary inputs"


@pytest.mark.usefixtures("graphs")
def test_a_scalar_input_cannot_be_captured(loaded: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="contains the values of Python scalars"):
        loaded(Slots("cuda_graph", [(0, "int", None)]))
