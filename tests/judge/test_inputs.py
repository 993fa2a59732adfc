from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from harness.errors import FormatError
from harness.judge.devices.cpu_copies import HostBatchedCopy
from harness.judge.input_data.copies import BatchedCopy, Piece
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.roles import Role, purpose_of
from harness.judge.native import load_native
from harness.judge.reference import InvalidReferenceError, Value
from harness.model.problem import Problem
from harness.sol.problem_tensors import torch_dtype
from tests.judge.problem_in_memory import SIZES, problem, problem_of_one_input, tensor


def _drawn(sample_problem: Problem, name: str, seed: int = 1) -> torch.Tensor:
    value = InputSource(sample_problem, seed=seed).draw(sample_problem.workloads[0])[name]
    assert isinstance(value, torch.Tensor)
    return value


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "role"),
    [
        ("hidden_states", "bfloat16", ("B", "H"), Role.NORMAL),
        ("weight", "float32", ("H",), Role.AROUND_ONE),
        ("input_layernorm_weight", "bfloat16", ("H",), Role.AROUND_ONE),
        ("weight", "float32", ("B", "H"), Role.WEIGHT),
        ("w1", "float32", ("B", "H"), Role.WEIGHT),
        ("gate_proj_weight", "float32", ("B", "H"), Role.WEIGHT),
        ("bias", "float32", ("H",), Role.BIAS),
        ("dt_bias", "float32", ("H",), Role.BIAS),
        ("shift_msa", "float32", ("H",), Role.BIAS),
        ("attention_mask", "float32", ("B", "H"), Role.ADDITIVE_MASK),
        ("attention_mask", "bool", ("B", "H"), Role.MASK),
        ("loss_mask", "float32", ("B",), Role.MASK),
        ("cos", "float32", ("B", "H"), Role.COSINE),
        ("rope_sin", "float32", ("B", "H"), Role.SINE),
        ("probs", "float32", ("B", "H"), Role.PROBABILITY),
        ("topk_weights", "float32", ("B", "E"), Role.PROBABILITY),
        ("decay", "float32", ("B", "H"), Role.DECAY),
        ("rstd", "float32", ("B",), Role.POSITIVE),
        ("x_scale", "float32", ("B",), Role.POSITIVE),
        ("A_log", "float32", ("H",), Role.NEGATIVE),
        ("topk_ids", "int32", ("B",), Role.INDEX),
        ("slot_mapping", "int64", ("B",), Role.DISTINCT),
        ("cu_seqlens_q", "int32", ("B",), Role.OFFSETS),
        ("seq_lens", "int32", ("B",), Role.LENGTHS),
        ("counts", "int32", ("B",), Role.INTEGER),
        ("tokens", "float32", ("B", "H"), Role.NORMAL),
        ("grad_output", "float32", ("B", "H"), Role.NORMAL),
        ("cosine_distance", "int8", ("B",), Role.INTEGER),
    ],
)
def test_roles_come_from_names_dtypes_and_ranks(name: str, dtype: str, shape: tuple[str, ...], role: Role) -> None:
    assert purpose_of(name, problem_of_one_input(name, dtype, *shape).definition, SIZES).role is role


def test_a_normalisation_weight_is_never_one() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        value = _drawn(problem_of_one_input("norm_weight", dtype, "T"), "norm_weight").float()
        assert float((value - 1).abs().min()) > 0.05
        assert float(value.min()) > 0.4
        assert float(value.max()) < 1.6


def test_products_with_weights_have_the_scale_of_the_activations() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "B", "T"), "w": tensor("float32", "H", "T")},
        {"y": tensor("float32", "B", "H")},
        "def run(x, w):\n    return x @ w.T\n",
        SIZES,
    )
    values = InputSource(sample_problem, seed=3).draw(sample_problem.workloads[0])
    x, w = values["x"], values["w"]
    assert isinstance(x, torch.Tensor)
    assert isinstance(w, torch.Tensor)
    assert 0.7 < float((x @ w.T).std()) < 1.4


def test_rotary_tables_have_the_same_random_angles() -> None:
    sample_problem = problem(
        {"cos": tensor("float32", "B", "H"), "sin": tensor("float32", "B", "H")},
        {"y": tensor("float32", "B", "H")},
        "def run(cos, sin):\n    return cos\n",
        SIZES,
    )
    values = InputSource(sample_problem, seed=4).draw(sample_problem.workloads[0])
    cos, sin = values["cos"], values["sin"]
    assert isinstance(cos, torch.Tensor)
    assert isinstance(sin, torch.Tensor)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones_like(cos))
    assert float(cos.std()) > 0.6


def test_probabilities_decays_masks_and_indices_stay_in_their_ranges() -> None:
    probs = _drawn(problem_of_one_input("probs"), "probs")
    torch.testing.assert_close(probs.sum(-1), torch.ones(SIZES["B"]))
    assert len({float(row[0]) for row in probs}) == SIZES["B"]
    decay = _drawn(problem_of_one_input("decay"), "decay")
    assert float(decay.min()) > 0
    assert float(decay.max()) < 1
    mask = _drawn(problem_of_one_input("attn_mask", "float32"), "attn_mask")
    assert set(mask.flatten().tolist()) == {0.0, -10000.0}
    assert not bool(mask[:, 0].any())
    ids = _drawn(problem_of_one_input("row_ids", "int64", "T"), "row_ids")
    assert int(ids.min()) >= 0
    assert int(ids.max()) == SIZES["V"] - 1
    slots = _drawn(problem_of_one_input("slots", "int64", "E"), "slots")
    assert len(set(slots.tolist())) == SIZES["E"]
    offsets = _drawn(problem_of_one_input("indptr", "int32", "B"), "indptr")
    assert int(offsets[0]) == 0
    assert bool((offsets.diff() >= 0).all())
    lengths = _drawn(problem_of_one_input("seq_lens", "int32", "B"), "seq_lens")
    assert int(lengths.min()) >= 1


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "float4_e2m1fn_x2",
     "int64", "int32", "int16", "int8", "bool"],
)  # fmt: skip
def test_every_dtype_is_drawn_varied_and_finite(dtype: str) -> None:
    value = _drawn(problem_of_one_input("q", dtype), "q")
    assert value.shape == (64, 96)
    if "float4" in dtype:
        assert len(set(value.view(torch.uint8).flatten().tolist())) > 200
        return
    floats = value.float()
    assert bool(floats.isfinite().all())
    assert float(floats.std()) > 0.3


def test_all_draws_and_all_sources_differ() -> None:
    sample_problem = problem_of_one_input("q")
    source = InputSource(sample_problem)
    first, second = source.draw(sample_problem.workloads[0])["q"], source.draw(sample_problem.workloads[0])["q"]
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    values = torch.cat((first, second)).view(-1)
    assert len(set(values.tolist())) > 0.99 * len(values)
    value_of_another_source = InputSource(sample_problem).draw(sample_problem.workloads[0])["q"]
    assert isinstance(value_of_another_source, torch.Tensor)
    assert not torch.equal(first, value_of_another_source)


def test_the_pool_cannot_be_recognised_by_its_values() -> None:
    """The result of a unary function could be looked up if slices had no factor."""
    sample_problem = problem_of_one_input("q", "float32", "T")
    source = InputSource(sample_problem, seed=7)
    earlier_values: set[float] = set()
    for _ in range(400):  # 256,000 values of a pool of 65,536
        value = source.draw(sample_problem.workloads[0])["q"]
        assert isinstance(value, torch.Tensor)
        assert len(earlier_values.intersection(value.tolist())) < 40
        earlier_values.update(value.tolist())


@dataclass
class SeparateCopies:
    """Stands in for a device's copies, on the host's memory."""

    scalable: frozenset[torch.dtype] = frozenset({torch.float32, torch.float16, torch.bfloat16})
    adds: bool = False
    launches: list[int] = field(default_factory=list)
    """Number of pieces of each call."""

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        self.launches.append(len(pieces))
        for piece in pieces:
            slices = [_slice_at(at, piece) for at in (piece.source, piece.second_source) if at]
            value = slices[0] if piece.factor is None else slices[0] * piece.factor
            if len(slices) == 2:
                value = value + slices[1] * piece.second_factor
            _slice_at(piece.target, piece).copy_(value)


def _slice_at(address: int, piece: Piece) -> torch.Tensor:
    size = piece.elements * piece.dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=piece.dtype)


@pytest.fixture(scope="module")
def host_copy(judge_cache: Path) -> HostBatchedCopy:
    native = load_native(judge_cache)
    assert native is not None

    def for_each_part(copy_part: Callable[[int], None], parts: Sequence[int]) -> None:
        for part in parts:
            copy_part(part)

    return HostBatchedCopy(native, for_each_part, 3)


@pytest.mark.parametrize("count", [1, 63, 192, 70_001])
def test_the_hosts_copies_have_the_result_of_torch(host_copy: HostBatchedCopy, count: int) -> None:
    pool = torch.randn(2, count)
    for dtype in (torch.float32, torch.bfloat16):
        first, second = pool.to(dtype)
        product, total, copy = (torch.empty(count, dtype=dtype) for _ in range(3))
        addresses = [tensor.data_ptr() for tensor in (product, total, copy)]
        source, added = first.data_ptr(), second.data_ptr()
        host_copy(
            [
                Piece(source, addresses[0], count, dtype, -1.03),
                Piece(source, addresses[1], count, dtype, 0.9, added, -0.4),
                Piece(source, addresses[2], count, dtype, None),
            ]
        )
        assert torch.equal(product, first * -1.03)
        assert torch.equal(total, (first.float() * 0.9 + second.float() * -0.4).to(dtype))
        assert torch.equal(copy, first)


def test_the_host_fills_inputs_at_once_if_all_are_copies_of_slices(host_copy: HostBatchedCopy) -> None:
    by_dtype = {"float32": True, "bfloat16": True, "int64": True, "float16": False}
    for dtype, at_once in by_dtype.items():
        sample_problem = problem_of_one_input("q", dtype, "T")
        source = InputSource(sample_problem, seed=8, copy_all=host_copy)
        assert source.fills_at_once(sample_problem.workloads[0]) == at_once, dtype
        sets = [_tensors(source.draw(sample_problem.workloads[0])) for _ in range(2)]
        source.refill_all(sample_problem.workloads[0], sets)
        assert not torch.equal(sets[0]["q"], sets[1]["q"])


def _tensors(inputs: Mapping[str, Value]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}


def _is_slice_of_a_pool(value: torch.Tensor, source: InputSource) -> bool:
    """Return true if the ratios of the first three values are those of three neighbours in a pool."""
    ratios = value[1:3] / value[0]
    for pool in source._pools.values():  # noqa: SLF001
        difference = (torch.stack((pool[1:-1], pool[2:])) / pool[:-2] - ratios[:, None]).abs().amax(dim=0)
        if float(difference.min()) <= 1e-5:
            return True
    return False


@pytest.mark.parametrize(
    "batched_copy", [None, SeparateCopies(), SeparateCopies(adds=True)], ids=["separate", "products", "sums"]
)
@pytest.mark.parametrize("name", ["q", "bias", "decay", "rstd", "a_log"])
def test_host_code_gets_no_slice_of_the_pool_times_a_factor(name: str, batched_copy: BatchedCopy | None) -> None:
    """Otherwise a candidate could look up a sum of the slice, and multiply it by the factor."""
    sample_problem = problem_of_one_input(name, "float32", "T")
    source = InputSource(sample_problem, seed=8, copy_all=batched_copy)
    values = _tensors(source.draw(sample_problem.workloads[0]))
    source.refill_all(sample_problem.workloads[0], [values])
    assert not _is_slice_of_a_pool(values[name], source)


def test_device_code_gets_slices_in_one_launch() -> None:
    sample_problem = problem_of_one_input("q", "float32", "T")
    copies = SeparateCopies()
    source = InputSource(sample_problem, seed=8, copy_all=copies)
    source.for_host_code = False
    sets = [_tensors(source.draw(sample_problem.workloads[0])) for _ in range(5)]
    source.refill_all(sample_problem.workloads[0], sets)
    assert all(_is_slice_of_a_pool(values["q"], source) for values in sets)
    assert copies.launches == [10], "two inputs of five sets"


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("for_host_code", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sets_of_one_batch_have_the_same_distribution_as_single_sets(
    dtype: str, *, for_host_code: bool, adds: bool
) -> None:
    inputs = {"x": tensor(dtype, "R", "C"), "weight": tensor(dtype, "C")}
    sample_problem = problem(
        inputs, {"y": tensor(dtype, "R", "C")}, "def run(x, weight):\n    return x\n", {"R": 16, "C": 512}
    )
    sets = [
        {
            "x": torch.empty(16, 512, dtype=torch_dtype(dtype)),
            "weight": torch.empty(512, dtype=torch_dtype(dtype)),
        }
        for _ in range(64)
    ]
    source = InputSource(sample_problem, seed=3, copy_all=SeparateCopies(adds=adds))
    source.for_host_code = for_host_code
    source.refill_all(sample_problem.workloads[0], sets)
    x = torch.stack([into["x"].float() for into in sets])
    assert abs(float(x.std()) - 1.0) < 0.05
    assert abs(float(x.mean())) < 0.02
    weight = torch.stack([into["weight"].float() for into in sets])
    assert 0.7 < float(weight.mean()) < 1.3
    assert float(weight.min()) > 0  # about one, always with the same sign
    scales = weight.mean(dim=1)
    assert float(scales.max() - scales.min()) > 0.02  # each slice has another factor
    for number, values in enumerate(x):
        assert not any(
            torch.equal(values, earlier_values) or torch.equal(values, -earlier_values) for earlier_values in x[:number]
        )


def test_batched_copies_have_the_result_of_separate_copies() -> None:
    """A stand-in replaces the device's copies. The batched copies must have the same result as separate copies."""
    inputs = {
        "mask": tensor("bool", "R", "C"),
        "ids": tensor("int64", "R"),
        "cos": tensor("float32", "R", "C"),
        "sin": tensor("float32", "R", "C"),
        "wide": tensor("float64", "C"),
        "eps": {"dtype": "float32", "shape": None},
    }
    sample_problem = problem(inputs, {"y": tensor("float32", "R", "C")}, "def run():\n    pass\n", {"R": 96, "C": 1024})

    def empty() -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(
                sample_problem.shape(spec, sample_problem.sizes(sample_problem.workloads[0])),
                dtype=torch_dtype(spec.dtype),
            )
            if spec.shape is not None
            else torch.empty((), dtype=torch.float64)
            for name, spec in sample_problem.definition.inputs.items()
        }

    plain, batched = [empty() for _ in range(3)], [empty() for _ in range(3)]
    source = InputSource(sample_problem, seed=4)
    for into in plain:
        source.refill(sample_problem.workloads[0], into)
    copies = SeparateCopies()
    batching_source = InputSource(sample_problem, seed=4, copy_all=copies)
    for into in batched:
        batching_source.refill_all(sample_problem.workloads[0], [into])
    for plain_set, batched_set in zip(plain, batched, strict=True):
        for name, value in plain_set.items():
            assert torch.equal(value, batched_set[name]), name
    assert (
        len(copies.launches) == 6
    )  # a mask's first column is set after its copies, which therefore need a separate launch


@pytest.mark.slow
@pytest.mark.serial
def test_refill_writes_in_place_at_the_speed_of_memory() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "R", "C"), "eps": {"dtype": "float32", "shape": None}},
        {"y": tensor("float32", "R", "C")},
        "def run(x, eps):\n    return x\n",
        {"R": 256, "C": 4096},
        input_sources={"eps": {"type": "scalar", "value": 1e-5}},
    )
    source = InputSource(sample_problem)
    into = {"x": torch.empty(256, 4096), "eps": torch.empty((), dtype=torch.float64)}
    source.refill(sample_problem.workloads[0], into)
    address = into["x"].data_ptr()
    fastest = math.inf
    for _ in range(20):
        begin = time.perf_counter()
        source.refill(sample_problem.workloads[0], into)
        fastest = min(fastest, time.perf_counter() - begin)
    assert into["x"].data_ptr() == address
    assert float(into["eps"]) == 1e-5
    assert fastest < 0.004  # 4 MiB; a fresh torch.randn of it takes 8 ms or more


def test_scalars_are_python_numbers_of_their_kind() -> None:
    sample_problem = problem(
        {
            "x": tensor("float32", "B"),
            "n": {"dtype": "int32", "shape": None},
            "flag": {"dtype": "bool", "shape": None},
            "alpha": {"dtype": "float32", "shape": None},
        },
        {"y": tensor("float32", "B")},
        "def run(x, n, flag, alpha):\n    return x\n",
        SIZES,
        input_sources={"n": {"type": "scalar", "value": 7}, "flag": {"type": "scalar", "value": True}},
    )
    values = InputSource(sample_problem).draw(sample_problem.workloads[0])
    assert values["n"] == 7
    assert type(values["n"]) is int
    assert values["flag"] is True
    assert isinstance(values["alpha"], float)
    assert 0.5 <= values["alpha"] <= 1.5


def test_a_problem_can_state_the_role_of_an_input() -> None:
    sample_problem = problem_of_one_input("q", "float32", "T", x_distribution={"role": "uniform", "low": 2, "high": 3})
    value = _drawn(sample_problem, "q")
    assert float(value.min()) >= 2
    assert float(value.max()) <= 3
    sample_problem = problem_of_one_input("ids", "int32", "T", x_distribution={"role": "index", "below": "E"})
    assert int(_drawn(sample_problem, "ids").max()) == SIZES["E"] - 1
    with pytest.raises(
        FormatError, match="input `q`: `x_distribution` is 'gaussian'; expected one of normal, around_one"
    ):
        _drawn(problem_of_one_input("q", x_distribution="gaussian"), "q")
    with pytest.raises(
        FormatError, match="`x_distribution` has the bound 'Q'; expected a number or the name of an axis"
    ):
        _drawn(problem_of_one_input("q", x_distribution={"role": "uniform", "high": "Q"}), "q")


def test_custom_inputs_come_from_the_problems_own_function_and_are_checked() -> None:
    reference = (
        "import torch\n"
        "def run(x, n):\n    return x\n"
        "def make(sizes, device):\n    return {'x': torch.rand(sizes['B'], device=device), 'n': 3}\n"
        "def wrong(sizes, device):\n    return {'x': torch.rand(2), 'n': 3}\n"
    )
    inputs = {"x": tensor("float32", "B"), "n": {"dtype": "int32", "shape": None}}
    sources = {name: {"type": "custom"} for name in inputs}
    outputs = {"y": tensor("float32", "B")}
    sample_problem = problem(inputs, outputs, reference, SIZES, input_sources=sources, entrypoint="make")
    source = InputSource(sample_problem)
    state = torch.get_rng_state()
    first, second = (source.draw(sample_problem.workloads[0])["x"] for _ in range(2))
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert not torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())  # the state of the judge's generator stays unchanged
    into = {"x": torch.empty(64), "n": torch.empty((), dtype=torch.int64)}
    source.refill(sample_problem.workloads[0], into)
    assert int(into["n"]) == 3
    bad = problem(inputs, outputs, reference, SIZES, input_sources=sources, entrypoint="wrong")
    with pytest.raises(
        InvalidReferenceError, match=r"input `x` is torch.float32 \(2,\); expected torch.float32 \(64,\)"
    ):
        InputSource(bad).draw(bad.workloads[0])
