"""Each tensor of a call has a storage of its own, as a user's tensors have. `torch.compile` then accepts the call."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.runner import cuda_workload, reference
from harness.runner.cuda_workload import CudaWorkload
from harness.runner.messages import DeviceMemory, HostMemory, Load, Program, SlotField
from harness.runner.shared_memory import HostWorkload, SharedMemory, WorkloadSlots, address

SEVERAL_DTYPES = """
import torch

def run(x, state):
    state.add_(1)
    return x + 1, x.to(torch.bfloat16), (x > 1).to(torch.int32).view(2, 2)
"""
"""A reference with outputs of three dtypes, which also updates an input in place."""
INPUTS = (SlotField("x", "float32", (4,), 0, 16, None), SlotField("state", "float64", (2,), 64, 16, None))
OUTPUTS = (
    SlotField("y", "float32", (4,), 0, 16, None),
    SlotField("half", "bfloat16", (4,), 64, 8, None),
    SlotField("above", "int32", (2, 2), 128, 16, None),
    SlotField("next", "float64", (2,), 192, 16, None, updates="state"),
    SlotField("nothing", "int8", (0, 3), 256, 0, None),
)
STRIDE, SLOTS = 4096, 2
ON_GPU, ON_CPU = DeviceMemory(0, 0), HostMemory(0, 0)
PREPARED: dict[str, Any] = {"input_stride": STRIDE, "slots": SLOTS, "axes": ()}


def host_workload(outputs: tuple[SlotField, ...], variant: str = "compile") -> WorkloadSlots:
    memory = SharedMemory(mmap.mmap(-1, SLOTS * STRIDE), mmap.mmap(-1, SLOTS * STRIDE))
    return HostWorkload(
        inputs=INPUTS, outputs=outputs, **PREPARED, variant=variant, memory=memory, output_stride=STRIDE
    )


@pytest.fixture
def device_workload(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WorkloadSlots]:
    """A function that returns a workload of a GPU whose device memory is host memory."""
    mapping = mmap.mmap(-1, SLOTS * 2 * STRIDE)

    def host_bytes(begin: int, size: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(begin), dtype=torch.uint8)

    monkeypatch.setattr(cuda_workload, "bytes_tensor", host_bytes)
    memory: Any = SimpleNamespace(address=address(mapping), mapping=mapping)

    def workload(outputs: tuple[SlotField, ...], variant: str = "compile") -> WorkloadSlots:
        fields: dict[str, Any] = {"inputs": INPUTS, "outputs": outputs, **PREPARED, "variant": variant}
        return CudaWorkload(**fields, memory=memory, stride=2 * STRIDE, plan={})

    return workload


@pytest.fixture(params=["host", "device"])
def workload_of(request: pytest.FixtureRequest, device_workload: Callable[..., WorkloadSlots]) -> Any:
    return host_workload if request.param == "host" else device_workload


def test_no_two_tensors_share_a_storage_and_none_is_a_view(workload_of: Callable[..., WorkloadSlots]) -> None:
    workload = workload_of(OUTPUTS[:-1])
    tensors = [
        tensor for slot in range(SLOTS) for tensor in (*workload.input_tensors(slot), *workload.output_tensors(slot))
    ]
    assert len({tensor.untyped_storage()._cdata for tensor in tensors}) == len(tensors)  # noqa: SLF001 - its identity
    assert not any(tensor._is_view() for tensor in tensors)  # noqa: SLF001 - torch has no public name of it
    assert [tuple(tensor.shape) for tensor in tensors[:6]] == [(4,), (2,), (4,), (4,), (2, 2), (2,)]
    assert all(tensor.is_contiguous() for tensor in tensors)


def test_tensors_are_at_their_places_in_memory(workload_of: Callable[..., WorkloadSlots]) -> None:
    workload = workload_of(OUTPUTS[:-1])
    workload.output_tensors(1)[2].fill_(7)
    assert workload.output_tensors(1)[2].tolist() == [[7, 7], [7, 7]]
    assert workload.output_tensors(0)[2].tolist() == [[0, 0], [0, 0]]
    begin, end = (workload.output_tensors(slot)[0].data_ptr() for slot in range(2))
    assert end - begin in (STRIDE, 2 * STRIDE)
    assert workload.output_tensors(0)[3].data_ptr() - begin == 192


def test_a_tensor_without_elements_has_its_shape() -> None:
    empty = host_workload(OUTPUTS).output_tensors(0)[-1]
    assert (tuple(empty.shape), empty.dtype) == ((0, 3), torch.int8)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that loads a reference as a GPU's or a CPU's runner does. It is compiled without a C++ compiler."""
    compiler = torch.compile

    def aot_eager(function: Callable[..., Any], *, dynamic: bool | None, mode: object) -> Any:
        del mode  # of Inductor only
        return compiler(function, backend="aot_eager", dynamic=dynamic)

    def loaded(source: str, memory: HostMemory | DeviceMemory = ON_GPU) -> Any:
        file = tmp_path / "reference.py"
        file.write_text(source)
        return reference.load(Load(Program("reference", "run", source=str(file)), memory))

    monkeypatch.setattr(torch, "compile", aot_eager)
    torch._dynamo.reset()  # noqa: SLF001 - other tests compile the same code
    return loaded


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_reference_with_outputs_of_several_dtypes_compiles(
    workload_of: Callable[..., WorkloadSlots], load: Callable[..., Any], slot: int
) -> None:
    workload = workload_of(OUTPUTS[:-1])
    workload.input_tensors(slot)[0].copy_(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    load(SEVERAL_DTYPES)(workload)(slot)
    y, half, above, state = workload.output_tensors(slot)
    assert (y.tolist(), half.tolist()) == ([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0])
    assert above.tolist() == [[0, 0], [1, 1]]
    assert state.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("memory", "compilations"), [(ON_GPU, 20), (ON_CPU, 1)])
def test_each_of_many_workloads_is_compiled_once_on_a_gpu_and_all_together_on_a_cpu(
    load: Callable[..., Any], memory: HostMemory | DeviceMemory, compilations: int
) -> None:
    prepare = load("def run(x):\n    return x + 1\n", memory)
    counters = torch._dynamo.utils.counters["stats"]  # noqa: SLF001 - torch has no public count of compilations
    counters.clear()
    for size in (*range(2, 22), *range(2, 22)):
        field = SlotField("x", "float32", (size,), 0, 4 * size, None)
        shared = SharedMemory(mmap.mmap(-1, SLOTS * STRIDE), mmap.mmap(-1, SLOTS * STRIDE))
        fields: dict[str, Any] = {"inputs": (field,), "outputs": (field,), **PREPARED, "variant": "compile"}
        workload = HostWorkload(**fields, memory=shared, output_stride=STRIDE)
        for slot in range(SLOTS):
            prepare(workload)(slot)
            assert workload.output_tensors(slot)[0].tolist() == [1.0] * size
    assert counters["unique_graphs"] == compilations


def test_a_function_that_was_compiled_too_often_fails_and_does_not_run_eagerly(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_MOST_COMPILATIONS", 1)
    prepare = load("def run(x):\n    return x + 1\n")
    for size in (2, 3):
        field = SlotField("x", "float32", (size,), 0, 4 * size, None)
        memory = SharedMemory(mmap.mmap(-1, SLOTS * STRIDE), mmap.mmap(-1, SLOTS * STRIDE))
        fields: dict[str, Any] = {"inputs": (field,), "outputs": (field,), **PREPARED, "variant": "compile"}
        call = prepare(HostWorkload(**fields, memory=memory, output_stride=STRIDE))
        with pytest.raises(Exception, match="recompile_limit") if size == 3 else contextlib.nullcontext():
            call(0)
