"""A problem's reference as a baseline: eagerly, or under torch.compile. Trusted code, the candidate's way.

Both deliver into the given outputs as a candidate must. Under torch.compile the delivery is part of the compiled
function, so that the compiler can write its last result where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .arena import Sets
from .pytorch import Call, Halves, halves, load_function, prepare, store


def load(message: dict[str, Any]) -> Callable[[Sets], Call | Halves]:
    """Import the reference; a workload says which variant runs."""
    run = load_function(message["source"], message["entry"])
    build = halves if message.get("timed") else prepare
    compiled: list[Callable[..., Any]] = []

    def workload_call(workload: Sets) -> Call | Halves:
        if workload.variant == "eager":
            return build(run, workload, {}, destination_passing=False)
        fields = workload.outputs
        given = len(workload.inputs)

        def run_into(*values: Any) -> None:  # noqa: ANN401 - tensors and scalars as the problem declares them
            store(run(*values[:given]), values[given:], fields)

        if not compiled:
            compiled.append(torch.compile(run_into, dynamic=True))
        return build(compiled[0], workload, {}, destination_passing=True)

    return workload_call
