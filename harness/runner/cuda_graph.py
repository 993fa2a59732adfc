"""A problem's reference as a CUDA graph: what it launches eagerly, captured once and replayed without Python.

Each placement has a graph of its own, because a graph keeps the addresses of its inputs. All are captured when the
workload is prepared, so that no capture is inside a timed call.
Source: PyTorch documentation, CUDA semantics, "CUDA Graphs" (warm-up on a side stream, shared memory pools).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .arena import Sets
from .pytorch import Halves, store

_WARM_UPS = 2
"""Calls before a capture: libraries make their handles and workspaces then."""


def captured(function: Callable[..., Any], workload: Sets) -> Halves:
    """Return a call in two parts: the replay of a placement's graph, and the delivery of what it returned.

    Raises:
        ValueError: an input is a Python scalar, whose value a graph cannot read anew.
        RuntimeError: the function does what cannot be captured, such as waiting for the device.
    """
    if workload.scalar_readers():
        raise ValueError("a CUDA graph keeps the values of Python scalars, and an input here is one")
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]
    inputs = [workload.input_tensors(slot) for slot in range(workload.slots)]
    _warm_up(function, inputs[0])
    pool = torch.cuda.graph_pool_handle()
    graphs: list[torch.cuda.CUDAGraph] = []
    returned: list[Any] = []
    for given in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            returned.append(function(*given))
        graphs.append(graph)

    def compute(slot: int) -> Any:  # noqa: ANN401 - whatever it returns
        graphs[slot].replay()
        return returned[slot]

    def deliver(value: Any, slot: int) -> None:  # noqa: ANN401
        store(value, outputs[slot], workload.outputs)

    return compute, deliver


def _warm_up(function: Callable[..., Any], given: list[Any]) -> None:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            function(*given)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
