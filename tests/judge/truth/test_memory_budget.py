from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.judge.precision import Truth, find_truth, outputs_in
from harness.judge.reference import Reference, Value, load_reference
from harness.judge.truth.memory_budget import MemoryBudget, memory_budget
from tests.judge.problem_in_memory import problem, tensor

MATRIX_BYTES = 64 * 64 * 8


@pytest.fixture(autouse=True)
def _without_garbage_collection() -> Iterator[None]:
    """Without it, a tensor in a reference cycle stays alive."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def storage_of(tensor: torch.Tensor) -> weakref.ref[torch.UntypedStorage]:
    """Return a tensor's storage without pinning it, as `untyped_storage` does within a budget."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - torch offers nothing else
        return weakref.ref(tensor.untyped_storage())


def bytes_of(storage: weakref.ref[torch.UntypedStorage]) -> int:
    living = storage()
    assert living is not None
    return living.nbytes()


def chain(x: torch.Tensor) -> torch.Tensor:
    """Return a sum of eight matrices, all of which are alive at once."""
    steps = [x]
    for _ in range(8):
        steps.append(torch.tanh(steps[-1] @ x))
    total = torch.zeros_like(x)
    for step in steps:
        total += step
    return total


def attention_layer(x: torch.Tensor) -> torch.Tensor:
    query, key, value = ((x @ (x + offset)).view(64, 1, 64).transpose(0, 1) for offset in (0.1, 0.2, 0.3))
    hidden = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1).reshape(64, 64)
    hidden = torch.layer_norm(hidden + x, [64])
    return torch.nn.functional.gelu(hidden @ x.T) @ x + hidden


def views_and_updates(x: torch.Tensor) -> torch.Tensor:
    """Use views of tensors that were moved, in-place operators, and results of a size that depends on values."""
    first = x.clone()
    row, column = first[3], first[:, 5]
    products = [x * factor for factor in range(6)]
    first.mul_(2.0)
    row += column
    column[2:9].zero_()
    chosen = products[-1][products[-1] > 0.5]
    products[0].copy_(first)
    torch.add(products[1], row, out=products[2])
    return sum(products, first) + chosen.sum()


def differentiated(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((chain(leaf) ** 2).sum(), leaf)
    return gradient


def read_directly(x: torch.Tensor) -> torch.Tensor:
    """Read memory without operators, and keep it while products are moved."""
    first = x + 1.0
    array = first.numpy()
    products = [x * factor for factor in range(6)]
    return sum(products, torch.from_numpy(array) + torch.tensor(products[0].tolist()))


def in_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return attention_layer(x).clone()


RUNS = [chain, attention_layer, views_and_updates, differentiated, read_directly, in_inference_mode]


@pytest.mark.parametrize("run", RUNS)
def test_results_within_a_budget_are_bit_identical(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(2)
    x = torch.randn(64, 64, dtype=torch.float64)
    before = x.clone()
    expected = run(x)
    with memory_budget(2**60, "cpu") as unlimited:
        run(x)
    assert unlimited.spilled_bytes == 0
    with memory_budget(4 * MATRIX_BYTES, "cpu") as budget:
        actual = run(x)
        assert budget.spilled_bytes > 0
        assert budget.peak_bytes < unlimited.peak_bytes
    assert actual.untyped_storage().nbytes() > 0
    assert torch.equal(actual, expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("run", [chain, attention_layer, differentiated])
def test_the_peak_is_within_the_budget(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(64, 64, dtype=torch.float64)
    with memory_budget(5 * MATRIX_BYTES, "cpu") as budget:
        run(x)
    assert 4 * MATRIX_BYTES <= budget.peak_bytes <= 5 * MATRIX_BYTES


def test_the_peak_is_that_of_living_storages() -> None:
    x = torch.zeros(64, 64, dtype=torch.float64)
    with memory_budget(2**60, "cpu") as budget:
        for _ in range(5):
            x = x + 1.0
        view = x[3:]
        del x
        assert budget.live_bytes == MATRIX_BYTES
        del view
        assert budget.live_bytes == 0
    assert budget.peak_bytes == 2 * MATRIX_BYTES


def test_tensors_of_the_caller_are_never_moved() -> None:
    x = torch.randn(64, 64, dtype=torch.float64)
    with memory_budget(MATRIX_BYTES, "cpu") as budget:
        for _ in range(3):
            y = x.T.contiguous() * 2.0
            assert bytes_of(storage_of(x)) == MATRIX_BYTES
        del y
    assert budget.spilled_bytes > 0


def test_the_least_recently_used_storage_is_moved_first() -> None:
    with memory_budget(3 * MATRIX_BYTES, "cpu"):
        first, second, third = (torch.full((64, 64), value, dtype=torch.float64) for value in (1.0, 2.0, 3.0))
        storages = [storage_of(value) for value in (first, second, third)]
        first.add_(1.0)
        product = third * 2.0
        sizes = [bytes_of(storage) for storage in storages]
    assert sizes == [MATRIX_BYTES, 0, MATRIX_BYTES]
    assert [float(value[0, 0]) for value in (first, second, third, product)] == [2.0, 2.0, 3.0, 6.0]


def test_an_operator_runs_again_where_memory_was_exhausted() -> None:
    """Allocators need more than operands and results, for workspaces and because of fragmentation."""
    failures = [torch.OutOfMemoryError("CUDA out of memory")]

    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return left.clone().add_(right)

    library = torch.library.Library("harness_memory_test", "DEF")  # type: ignore[no-untyped-call]
    library.define("add(Tensor left, Tensor right) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("add", add, "CPU")  # type: ignore[no-untyped-call]
    with memory_budget(2**60, "cpu") as budget:
        unused, x = torch.ones(64, 64), torch.ones(64, 64)
        total = torch.ops.harness_memory_test.add(x, x)
        assert budget.spilled_bytes == unused.nbytes
    assert float(total.sum() + unused.sum()) == 3 * 64 * 64


CODE = """
import torch

def run(x):
    steps = [x.float()]
    for _ in range(8):
        steps.append(torch.tanh(steps[-1] @ steps[0]))
        CREATED(steps[-1])
    return sum(steps).to(x.dtype)
"""


def reference_of(code: str, created: Callable[[torch.Tensor], object]) -> Reference:
    sample_problem = problem(
        {"x": tensor("bfloat16", "N", "N")}, {"out": tensor("bfloat16", "N", "N")}, code, {"N": 64}
    )
    reference = load_reference(sample_problem)
    reference.run.__globals__["CREATED"] = created
    return reference


def inputs_of() -> list[Value]:
    return [torch.randn(64, 64).bfloat16()]


@pytest.mark.parametrize("budget_bytes", [None, 4 * MATRIX_BYTES])
def test_nothing_but_the_outputs_remains(budget_bytes: int | None) -> None:
    living: list[weakref.ref[torch.UntypedStorage]] = []
    reference = reference_of(CODE, lambda value: living.append(storage_of(value)))
    inputs = inputs_of()
    truth = find_truth(reference, inputs, reference.outputs(inputs), budget_bytes)
    assert isinstance(truth, Truth)
    assert len(truth.moved()) == 1
    assert len(living) == 3 * 8
    assert [storage for storage in living if storage() is not None] == []


def test_the_truth_is_the_same_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[MemoryBudget] = []
    close = MemoryBudget.close

    def recorded(budget: MemoryBudget) -> None:
        budgets.append(budget)
        close(budget)

    monkeypatch.setattr(MemoryBudget, "close", recorded)
    reference, inputs = reference_of(CODE, lambda _: None), inputs_of()
    expected = reference.outputs(inputs)
    unlimited, limited = find_truth(reference, inputs, expected), find_truth(reference, inputs, expected, 4 * 2**15)
    assert isinstance(unlimited, Truth)
    assert isinstance(limited, Truth)
    assert torch.equal(limited.outputs["out"], unlimited.outputs["out"])
    assert limited.allowed == unlimited.allowed
    torch.manual_seed(0)
    moved = unlimited.moved()
    torch.manual_seed(0)
    assert torch.equal(limited.moved()["out"], moved["out"])
    assert [budget.spilled_bytes > 0 and budget.peak_bytes <= 4 * 2**15 for budget in budgets] == [True, True]


@pytest.mark.parametrize("budget_bytes", [None, 4 * MATRIX_BYTES])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_exhausted_memory_is_not_a_missing_truth(error: RuntimeError, budget_bytes: int | None) -> None:
    living: list[weakref.ref[torch.UntypedStorage]] = []

    def fail(value: torch.Tensor) -> None:
        living.append(storage_of(value))
        if len(living) == 6:
            raise error

    reference, inputs = reference_of(CODE, fail), inputs_of()
    with pytest.raises(torch.OutOfMemoryError, match=str(error)):
        find_truth(reference, inputs, {"out": torch.zeros(64, 64)}, budget_bytes)
    # The exception, whose traceback is still there, keeps no tensor of the reference alive.
    assert [storage for storage in living if storage() is not None] == []


def test_exhausted_memory_passes_through_the_run_with_default_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def fail(_: torch.Tensor) -> None:
        if torch.backends.cudnn.allow_tf32:
            raise torch.OutOfMemoryError("no memory")

    reference, inputs = reference_of(CODE, fail), inputs_of()
    expected = reference.outputs(inputs)
    with pytest.raises(torch.OutOfMemoryError):
        find_truth(reference, inputs, expected)
    assert not torch.backends.cudnn.allow_tf32


def test_exhausted_memory_passes_through_the_sensitivity() -> None:
    calls: list[torch.Tensor] = []

    def fail(value: torch.Tensor) -> None:
        calls.append(value)
        if len(calls) > 16:
            raise torch.OutOfMemoryError("no memory")

    reference, inputs = reference_of(CODE, fail), inputs_of()
    truth = find_truth(reference, inputs, reference.outputs(inputs))
    assert isinstance(truth, Truth)
    with pytest.raises(torch.OutOfMemoryError):
        truth.broken_by({"out": torch.ones(64, 64)})


@pytest.mark.parametrize("budget_bytes", [None, 4 * MATRIX_BYTES])
def test_an_error_of_the_reference_is_a_missing_truth(budget_bytes: int | None) -> None:
    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("not in float64")

    reference = reference_of(CODE, fail)
    reason = find_truth(reference, inputs_of(), {"out": torch.zeros(64, 64)}, budget_bytes)
    assert reason == "no float64 truth: the reference raises RuntimeError in float64: not in float64"


def test_outputs_of_a_differentiating_reference_keep_no_graph() -> None:
    code = "import torch\ndef run(x):\n    with torch.enable_grad():\n        y = x.clone().requires_grad_() * 2\n"
    code += "        CREATED(y)\n        return y.exp()\n"
    living: list[weakref.ref[torch.UntypedStorage]] = []
    reference = reference_of(code, lambda value: living.append(storage_of(value)))
    outputs = outputs_in(torch.float64, reference, inputs_of())
    assert outputs["out"].grad_fn is None
    assert living[0]() is None
