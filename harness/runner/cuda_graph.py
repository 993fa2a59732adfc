"""A problem's reference as a CUDA graph: its eager launches, captured once and replayed without Python.

Each placement has its own graph, because a graph contains the addresses of its inputs. All graphs are captured when
the workload is prepared, so that no timed call contains a capture.
Source: PyTorch documentation, CUDA semantics, "CUDA Graphs" (warm-up on a side stream, shared memory pools).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .pytorch import SplitCall, store
from .shared_memory import WorkloadSlots

_WARM_UPS = 2
"""Calls before a capture, in which libraries create their handles and workspaces."""


def captured(function: Callable[..., Any], workload: WorkloadSlots) -> SplitCall:
    """Return a call in two parts: the replay of a placement's graph, and the copy of returned values to the outputs.

    Args:
        function: the reference.
        workload: the placements.

    Raises:
        ValueError: an input is a Python scalar, whose value a replay cannot read again.
        RuntimeError: the function does something that cannot be captured, such as waiting for the device.
    """
    if workload.scalar_readers():
        raise ValueError("a CUDA graph contains the values of Python scalars, and an input here is a Python scalar")
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]
    inputs = [workload.input_tensors(slot) for slot in range(workload.slots)]
    _warm_up(function, inputs[0])
    pool = torch.cuda.graph_pool_handle()
    graphs: list[torch.cuda.CUDAGraph] = []
    returned: list[Any] = []
    for slot_inputs in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            returned.append(function(*slot_inputs))
        graphs.append(graph)

    def compute(slot: int) -> Any:  # noqa: ANN401 - whatever it returns
        graphs[slot].replay()
        return returned[slot]

    def deliver(value: Any, slot: int) -> None:  # noqa: ANN401
        store(value, outputs[slot], workload.outputs)

    return compute, deliver


def _warm_up(function: Callable[..., Any], inputs: list[Any]) -> None:
    side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(_WARM_UPS):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(side_stream)
    torch.cuda.synchronize()
