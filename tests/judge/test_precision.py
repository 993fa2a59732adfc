from __future__ import annotations

import pytest
import torch

from harness.judge.input_data.inputs import InputSource
from harness.judge.precision import Truth, find_truth, outputs_in, relative_error
from harness.judge.reference import Reference, Value, load_reference
from harness.model.problem import Problem
from tests.judge.problem_in_memory import problem, tensor

ROWS, LONG = 8, 16384


def _truth(sample_problem: Problem, seed: int = 5) -> tuple[Reference, list[Value], dict[str, torch.Tensor], Truth]:
    reference = load_reference(sample_problem)
    inputs = list(InputSource(sample_problem, seed=seed).draw(sample_problem.workloads[0]).values())
    expected = reference.outputs(inputs)
    truth = find_truth(reference, inputs, expected)
    assert isinstance(truth, Truth), truth
    return reference, inputs, expected, truth


def _dot(dtype: str) -> Problem:
    return problem(
        {"x": tensor(dtype, "R", "K"), "y": tensor(dtype, "R", "K")},
        {"out": tensor(dtype, "R")},
        "def run(x, y):\n    return (x.float() * y.float()).sum(-1).to(x.dtype)\n",
        {"R": ROWS, "K": LONG},
    )


def _rmsnorm(dtype: str) -> Problem:
    return problem(
        {"x": tensor(dtype, "R", "K"), "weight": tensor(dtype, "K")},
        {"out": tensor(dtype, "R", "K")},
        "import torch\n"
        "def run(x, weight):\n"
        "    wide = x.to(torch.float32)\n"
        "    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + torch.tensor(1e-6, dtype=torch.float32))\n"
        "    return (wide * scale * weight.to(torch.float32)).to(x.dtype)\n",
        {"R": 64, "K": LONG},
    )


def _one_by_one(terms: torch.Tensor) -> torch.Tensor:
    """Return sums along the last axis in the terms' precision, sequentially: the worst honest order."""
    total = torch.zeros(terms.shape[:-1], dtype=terms.dtype)
    for column in terms.unbind(-1):
        total = total + column
    return total


def _pair(inputs: list[Value]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = inputs
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    return x, y


def test_explicit_casts_in_the_reference_do_not_change_the_truth() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        _, inputs, _, truth = _truth(_rmsnorm(dtype))
        x, weight = (value.double() for value in _pair(inputs))
        exact = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
        assert relative_error(exact, truth.outputs["out"]) < 1e-12


@pytest.mark.parametrize(
    "line",
    [
        "x.to(dtype=torch.float32).sum(-1)",
        "x.type(torch.float32).sum(-1)",
        "x.half().float().sum(-1)",
        "torch.sum(x, -1, dtype=torch.float32)",
        "x.sum(-1) + torch.zeros(1, dtype=torch.float32)",
        "(x @ torch.ones(x.shape[-1], 1)).squeeze(-1)",
        "torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32).cumsum(-1)[:, 7]",
        "x.to(torch.zeros(1).dtype).sum(-1)",
        "torch.empty_like(x, dtype=torch.bfloat16).copy_(x).sum(-1)",
        "torch.nn.functional.layer_norm(x.float(), (x.shape[-1],))[:, 0]",
    ],
)
def test_every_way_to_name_a_precision_gives_float64(line: str) -> None:
    sample_problem = problem(
        {"x": tensor("float32", "R", "K")},
        {"out": tensor("float32", "R")},
        f"import torch\ndef run(x):\n    return ({line}).to(torch.float32)\n",
        {"R": ROWS, "K": 256},
    )
    _, _, _, truth = _truth(sample_problem)
    assert truth.outputs["out"].dtype == torch.float64


@pytest.mark.parametrize(
    ("a", "b", "offsets"),
    [((12, 8), (3, 8, 16), (4, 4, 12)), ((8, 12), (12, 16), (4, 4, 12)), ((3, 8, 16), (16, 12), (4, 4, 12)),
     ((3, 4, 8), (3, 8, 16), None)],
)  # fmt: skip
def test_a_grouped_product_has_a_truth(a: tuple[int, ...], b: tuple[int, ...], offsets: tuple[int, ...] | None) -> None:
    """Torch has no grouped product in float64."""
    sample_problem = problem(
        {"a": tensor("float32", *map(str, a)), "b": tensor("float32", *map(str, b))},
        {"out": tensor("float32", *["8"] * 3)},
        "import torch\nimport torch.nn.functional as F\ndef run(a, b):\n"
        f"    offsets = {offsets}\n"
        "    offsets = None if offsets is None else torch.tensor(offsets, dtype=torch.int32)\n"
        "    return F.grouped_mm(a, b, offs=offsets)\n",
        {},
    )
    generator = torch.Generator().manual_seed(5)
    values = [torch.randn(shape, generator=generator) for shape in (a, b)]
    offs = None if offsets is None else torch.tensor(offsets, dtype=torch.int32)
    expected = torch.nn.functional.grouped_mm(*values, offs=offs)
    (actual,) = outputs_in(torch.float64, load_reference(sample_problem), values).values()
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual.float(), expected, rtol=1e-4, atol=1e-4)


def test_the_judges_default_dtype_is_restored() -> None:
    _truth(_dot("float32"))
    assert torch.get_default_dtype() == torch.float32
    sample_problem = problem(
        {"x": tensor("float32", "R")}, {"out": tensor("float32", "R")}, "def run(x):\n    1 / 0\n", {"R": 4}
    )
    reference = load_reference(sample_problem)
    reason = find_truth(reference, [torch.zeros(4)], {"out": torch.zeros(4)})
    assert reason == "no float64 truth: the reference raises ZeroDivisionError in float64: division by zero"
    assert torch.get_default_dtype() == torch.float32


def test_where_the_reference_rounds_regardless_there_is_no_truth() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "R")},
        {"out": tensor("float32", "R")},
        "import torch, numpy\ndef run(x):\n    return torch.from_numpy(x.numpy().astype(numpy.float32))\n",
        {"R": 4},
    )
    reference = load_reference(sample_problem)
    reason = find_truth(reference, [torch.randn(4)], {"out": torch.randn(4)})
    assert reason == "no float64 truth: the reference returns `out` in torch.float32 even when run in float64"


def test_integer_outputs_have_no_precision() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "R", "K")},
        {"out": tensor("int64", "R")},
        "def run(x):\n    return x.argmax(-1)\n",
        {"R": 4, "K": 9},
    )
    reference = load_reference(sample_problem)
    x = torch.randn(4, 9)
    reason = find_truth(reference, [x], {"out": x.argmax(-1)})
    assert reason == "no float64 truth: no output is a float of at least 16 bits"


@pytest.mark.parametrize("seed", range(4))
def test_honest_float32_sums_in_any_order_pass(seed: int) -> None:
    _, inputs, _, truth = _truth(_dot("float32"), seed)
    x, y = _pair(inputs)
    naive = _one_by_one(x * y)
    assert relative_error(truth.outputs["out"], naive) > 3e-7  # the order differs from the reference's
    assert truth.broken_by({"out": naive}) is None


def test_an_honest_naive_sum_of_positive_terms_passes() -> None:
    _, inputs, _, truth = _truth(_rmsnorm("float32"))
    x, weight = _pair(inputs)
    mean = _one_by_one(x * x).unsqueeze(-1) / LONG
    assert truth.broken_by({"out": x * torch.rsqrt(mean + 1e-6) * weight}) is None


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_a_float32_problem_done_in_16_bits_fails(lower: torch.dtype) -> None:
    for sample_problem in (_dot("float32"), _rmsnorm("float32")):
        reference, inputs, _, truth = _truth(sample_problem)
        coarse: list[Value] = [value.to(lower).float() for value in _pair(inputs)]
        reason = truth.broken_by(reference.outputs(coarse))
        assert reason is not None
        assert "less precise than an honest implementation (our rule)" in reason


def test_a_float32_problem_done_in_tf32_fails() -> None:
    reference, inputs, _, truth = _truth(_dot("float32"))
    coarse: list[Value] = [
        ((value.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)  # ten bits of mantissa, rounded
        for value in _pair(inputs)
    ]
    assert truth.broken_by(reference.outputs(coarse)) is not None


def test_a_bfloat16_problem_added_in_float32_and_rounded_once_passes() -> None:
    for seed in range(4):
        _, inputs, _, truth = _truth(_dot("bfloat16"), seed)
        x, y = _pair(inputs)
        assert truth.broken_by({"out": _one_by_one(x.float() * y.float()).bfloat16()}) is None
    _, inputs, _, truth = _truth(_rmsnorm("bfloat16"))
    x, weight = _pair(inputs)
    wide = x.float()
    scaled = wide * torch.rsqrt(_one_by_one(wide * wide).unsqueeze(-1) / LONG + 1e-6)
    assert truth.broken_by({"out": (scaled * weight.float()).bfloat16()}) is None
    assert truth.broken_by({"out": scaled.bfloat16() * weight}) is None  # rounded twice: still honest


def test_a_bfloat16_problem_added_in_bfloat16_fails() -> None:
    _, inputs, _, truth = _truth(_dot("bfloat16"))
    x, y = _pair(inputs)
    assert truth.broken_by({"out": _one_by_one(x * y)}) is not None


def test_a_bfloat16_problem_done_in_8_bits_fails() -> None:
    for sample_problem in (_dot("bfloat16"), _rmsnorm("bfloat16")):
        reference, inputs, _, truth = _truth(sample_problem)
        coarse: list[Value] = [value.to(torch.float8_e4m3fn).bfloat16() for value in _pair(inputs)]
        assert truth.broken_by(reference.outputs(coarse)) is not None


def test_honest_errors_that_the_problem_amplifies_are_allowed() -> None:
    """A difference of nearly equal sums has a large error in float32 for every order of the terms."""
    sample_problem = problem(
        {"x": tensor("float32", "R", "K")},
        {"out": tensor("float32", "R")},
        "def run(x):\n    return ((x + 3000.0).sum(-1) - 3000.0 * x.shape[-1])\n",
        {"R": 256, "K": 64},
    )
    reference, inputs, expected, truth = _truth(sample_problem)
    (x,) = inputs
    assert isinstance(x, torch.Tensor)
    naive = _one_by_one(x + 3000.0) - 3000.0 * 64
    assert relative_error(truth.outputs["out"], naive) > 1e-5
    assert truth.broken_by({"out": naive}) is None
    assert truth.broken_by({"out": expected["out"] * 1.01}) is not None
    del reference


def test_skipping_one_element_in_ten_thousand_fails() -> None:
    _, _, expected, truth = _truth(_rmsnorm("float32"))
    skipped = expected["out"].clone()
    skipped.view(-1)[::10000] = 0.0
    assert truth.broken_by({"out": skipped}) is not None


def test_both_errors_together_bound_the_distance_to_the_reference() -> None:
    _, inputs, expected, truth = _truth(_dot("float32"))
    x, y = _pair(inputs)
    naive = _one_by_one(x * y)
    distance = relative_error(expected["out"].double(), naive)
    assert distance < truth.limits_to_reference()["out"] < 1e-4


def test_eager_torch_with_its_default_flags_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a convolution on a GPU, which uses TF32 by default; the judge's own outputs are without TF32."""
    sample_problem = problem(
        {"x": tensor("float32", "R", "K")},
        {"out": tensor("float32", "R")},
        "import torch\n"
        "def run(x):\n"
        "    bits = x.view(torch.int32) & -8192 if x.dtype == torch.float32 else x\n"
        "    cut = torch.backends.cudnn.allow_tf32 and x.dtype == torch.float32\n"
        "    return (bits.view(torch.float32) if cut else x).sum(-1)\n",
        {"R": ROWS, "K": LONG},
    )
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    reference, inputs, _, truth = _truth(sample_problem)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    by_default = reference.outputs(inputs)
    assert relative_error(truth.outputs["out"], by_default["out"]) > 3e-5
    assert truth.broken_by(by_default) is None
    assert _truth(sample_problem)[3].broken_by({"out": by_default["out"] * (1 + 5e-3)}) is not None
