"""Problems in memory, for tests of parts of the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.model.problem import Definition, Problem, Workload


def problem(
    inputs: dict[str, dict[str, Any]],
    outputs: dict[str, dict[str, Any]],
    reference: str,
    axes: dict[str, int],
    *,
    input_sources: dict[str, dict[str, Any]] | None = None,
    tolerance: dict[str, Any] | None = None,
    directory: Path = Path("/nonexistent"),
    entrypoint: str | None = None,
) -> Problem:
    """Return a problem of one workload whose axes are all constant; inputs not in `input_sources` are random."""
    definition = Definition.model_validate(
        {
            "name": "made",
            "axes": {name: {"type": "const", "value": value} for name, value in axes.items()},
            "inputs": inputs,
            "outputs": outputs,
            "reference": reference,
            "custom_inputs_entrypoint": entrypoint,
        }
    )
    sources = {name: {"type": "random"} for name in inputs} | (input_sources or {})
    workload = Workload.model_validate({"uuid": "w", "axes": {}, "inputs": sources, "tolerance": tolerance or {}})
    return Problem(
        key="made/made", directory=directory, digest="sha256:" + "0" * 64, definition=definition, workloads=(workload,)
    )


def tensor(dtype: str, *shape: str, **fields: Any) -> dict[str, Any]:
    """Return the specification of an input or output."""
    return {"dtype": dtype, "shape": list(shape), **fields}


SIZES = {"B": 64, "H": 96, "V": 50, "E": 8, "P": 33, "T": 640}
"""Sizes of the axes of `problem_of_one_input`."""


def problem_of_one_input(name: str, dtype: str = "float32", *shape: str, **spec: Any) -> Problem:
    """Return a problem with an input of this name and shape, and another one.

    Args:
        name: determines the role of the input.
        dtype: of the input.
        shape: axes of the input; by default those of a batch of rows.
        spec: further keys of the input in the definition.
    """
    return problem(
        {name: tensor(dtype, *(shape or ("B", "H")), **spec), "x": tensor("float32", "V", "H")},
        {"y": tensor("float32", "B", "H")},
        f"def run({name}, x):\n    return x\n",
        SIZES,
    )
