"""Process of `benchmarks.plain_compile`: compiles references for workloads, and prints the errors of each as JSON.

python -m benchmarks.plain_compile_process DEVICE BACKEND [[PROBLEM,UUID,WAY],...]
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.plain_compile import PROBLEMS, variants_of
from harness.formats.problems import load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import Layout, layout_of
from harness.judge.reference import Value
from harness.judge.requested_baselines import can_autotune
from harness.model.problem import Problem, Workload
from harness.runner import reference
from harness.runner.messages import DeviceMemory, HostMemory, Load, Program
from harness.runner.pytorch import load_function
from harness.runner.shared_memory import SCALAR_FORMATS, HostWorkload, SharedMemory, WorkloadSlots

_SLOTS = 2
_MODES = {"compile": None, "compile_graph": None, "max_autotune": "max-autotune-no-cudagraphs"}
_LONGEST_ERROR = 400


Compiler = Callable[[Problem, Workload, str, torch.device], None]
"""Compiles the reference for a workload in a variant, and calls it."""


def plain_compiler(source: Path) -> Compiler:
    """Return what compiles the reference of a file as a user's script does."""
    run = load_function(str(source), "run")

    def compile_plainly(problem: Problem, workload: Workload, variant: str, device: torch.device) -> None:
        inputs = list(InputSource(problem, device=device).draw(workload).values())
        compiled = torch.compile(run, mode=_MODES[variant])
        compiled(*inputs)
        if variant == "compile_graph":
            _capture(compiled, inputs)

    return compile_plainly


def _capture(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Capture a call as a CUDA graph, and replay it. Source: PyTorch documentation, CUDA semantics, "CUDA Graphs"."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(*inputs)
    graph.replay()


def judge_compiler(source: Path, device: str) -> Compiler:
    """Return what compiles the reference of a file with the loader of the judge's runners, at every placement."""
    memory = DeviceMemory(0, 0) if device == "cuda" else HostMemory(0, 0)
    prepare = reference.load(Load(Program("reference", "run", source=str(source)), memory))

    def compile_in_judge(problem: Problem, workload: Workload, variant: str, device: torch.device) -> None:
        layout = layout_of(problem, workload)
        slots_of = _device_slots if device.type == "cuda" else _host_slots
        drawn = InputSource(problem, device=device).draw(workload)
        for name in (reference.UNCAPTURED.get(variant), variant):
            if name is not None:
                slots = slots_of(layout, name, list(drawn.values()))
                call = prepare(slots)  # one function: nothing is timed by events
                _write(slots, layout, drawn)  # after a capture, which writes zeros
                for slot in range(slots.slots):
                    call(slot)  # type: ignore[operator]

    return compile_in_judge


def _write(slots: WorkloadSlots, layout: Layout, drawn: dict[str, Value]) -> None:
    """Write inputs to every slot, and the content of updated inputs to the outputs."""
    for slot in range(slots.slots):
        for tensor, value in zip(slots.input_tensors(slot), drawn.values(), strict=True):
            if isinstance(value, torch.Tensor):
                tensor.copy_(value)
        outputs = dict(zip((field.name for field in layout.outputs), slots.output_tensors(slot), strict=True))
        for updated_input, output in layout.updated:
            content = drawn[updated_input.name]
            assert isinstance(content, torch.Tensor)
            outputs[output.name].copy_(content)


def _scalar_bytes(value: Value, kind: str) -> bytes:
    return struct.pack(SCALAR_FORMATS[kind], value)


def _host_slots(layout: Layout, variant: str, values: Sequence[Value]) -> WorkloadSlots:
    """Return slots in host memory, as the CPU judge maps them."""
    inputs, outputs = (mmap.mmap(-1, _SLOTS * size) for size in (layout.input_stride, layout.output_stride))
    for field, value in zip(layout.inputs, values, strict=True):
        for slot in range(_SLOTS if field.scalar else 0):
            begin = slot * layout.input_stride + field.offset
            inputs[begin : begin + 8] = _scalar_bytes(value, str(field.scalar))
    message = layout.message(_SLOTS, variant)
    return HostWorkload.of(message, memory=SharedMemory(inputs, outputs), output_stride=layout.output_stride)


def _device_slots(layout: Layout, variant: str, values: Sequence[Value]) -> WorkloadSlots:
    """Return slots in device memory, as the GPU judge shares them with a runner."""
    from harness.runner.cuda_workload import PlacementMemory
    from harness.runner.device_memory import PhysicalMemory

    torch.zeros(1, device="cuda")
    memories = [PhysicalMemory.create(layout.input_stride + layout.output_stride) for _ in range(_SLOTS)]
    scalars = os.memfd_create("scalars")
    row = b"".join(
        _scalar_bytes(value, field.scalar) if field.scalar else bytes(8)
        for field, value in zip(layout.inputs, values, strict=True)
    )
    os.ftruncate(scalars, mmap.PAGESIZE * (1 + _SLOTS * len(row) // mmap.PAGESIZE))
    os.pwrite(scalars, _SLOTS * row, 0)
    size = memories[0].bytes
    placements = PlacementMemory(scalars, DeviceMemory(_SLOTS * size, os.fstat(scalars).st_size))
    placements.map([memory.descriptor() for memory in memories], size)
    for memory in memories:
        memory.close()
    return placements.workload(layout.message(_SLOTS, variant, placement_bytes=size))


def compile_errors(name: str, uuid: str, way: str, device: str, module: str) -> dict[str, str | None]:
    """Return the error of each variant of a workload, or None where it was compiled and called.

    Args:
        name: problem as `suite/name`.
        uuid: of the workload.
        way: `plain` or `judge`.
        device: `cpu` or `cuda`.
        module: name of the reference's module, another one for each task of a process.
    """
    problem = load_problem(PROBLEMS / name)
    workload = next(workload for workload in problem.workloads if workload.uuid == uuid)
    errors: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / f"{module}.py"
        source.write_text(problem.definition.reference)
        compiler = plain_compiler(source) if way == "plain" else judge_compiler(source, device)
        for variant in variants_of(device):
            if variant == "max_autotune" and not can_autotune(problem):
                continue
            errors[variant] = None
            try:
                compiler(problem, workload, variant, torch.device(device))
                if device == "cuda":
                    torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the result
                text = " ".join(str(error).split())
                errors[variant] = f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]
    return errors


def _use_backend(backend: str) -> None:
    """Let torch.compile use a backend other than Inductor, which alone has modes."""
    compiler = torch.compile

    def compile_with(function: Callable[..., Any], *, mode: str | None = None, dynamic: bool | None = None) -> Any:  # noqa: ANN401
        del mode
        return compiler(function, backend=backend, dynamic=dynamic)

    torch.compile = compile_with  # type: ignore[assignment]


def main(device: str, backend: str, tasks: str) -> None:
    """Compile for all tasks, and print a line for each."""
    torch.set_num_threads(1)
    if backend != "inductor":
        _use_backend(backend)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what references and compilers print is no result
    for number, (name, uuid, way) in enumerate(json.loads(tasks)):
        errors = compile_errors(name, uuid, way, device, f"reference_{number}")
        lines.write(json.dumps(errors) + "\n")
        lines.flush()
        torch._dynamo.reset()  # noqa: SLF001 - torch offers nothing else
        if device == "cuda":
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
