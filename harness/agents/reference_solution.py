"""The first solution of a tuner for a problem without a solution: variants of a call of the reference.

The solution calls the reference, so it passes if the reference does. A tuner searches eager and compiled calls and a
few switches of PyTorch. The result is seldom faster than the baseline, which is the faster of an eager and a compiled
call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from harness.formats.solutions import SOLUTION_NAME
from harness.model.problem import Problem

_SPACES: Mapping[str, Mapping[str, Sequence[str | bool]]] = {
    "cpu": {"MODE": ("eager", "compiled", "compiled_static"), "ONEDNN": (True, False), "DENORMALS": (True, False)},
    "gpu": {"MODE": ("eager", "compiled", "compiled_static", "compiled_tuned"), "BENCHMARK": (False, True)},
}
"""Kind of target -> parameter -> values; the first value is PyTorch's default."""

_KERNEL = '''\
"""Calls of the problem's reference, eager or compiled. Written for a tuner, which chooses the values of `params`."""

import functools

import torch
from problem_code import run as reference

INPUTS = {inputs}
OUTPUTS = {outputs}
UPDATES = {updates}
COMPILE = {{
    "compiled": {{"dynamic": True}},
    "compiled_static": {{"dynamic": False}},
    "compiled_tuned": {{"dynamic": False, "mode": "max-autotune-no-cudagraphs"}},
}}


def complete(*values):
    """All outputs by name. A problem with updated inputs passes its outputs, which begin as these: they are updated."""
    given = dict(zip(INPUTS, values))
    places = dict(zip(OUTPUTS, values[len(INPUTS) :]))
    for output, name in UPDATES.items():
        given[name] = places[output]
    returned = reference(*given.values())
    updated = {{output: given[name] for output, name in UPDATES.items()}}
    if not isinstance(returned, dict):
        results = [] if returned is None else list(returned) if isinstance(returned, (tuple, list)) else [returned]
        names = OUTPUTS if len(results) == len(OUTPUTS) else [name for name in OUTPUTS if name not in UPDATES]
        returned = dict(zip(names, results))
    outputs = {{**updated, **returned}}
    for name, place in places.items():
        if outputs[name] is not place:
            place.copy_(outputs[name])
    return outputs


@functools.cache
def variant(mode):
    return complete if mode == "eager" else torch.compile(complete, **COMPILE[mode])


@functools.cache
def configure(switches):
    """Set PyTorch's switches, once."""
    for name, value in switches:
        if name == "ONEDNN":
            torch.backends.mkldnn.enabled = value
        elif name == "DENORMALS":
            torch.set_flush_denormal(not value)
        elif name == "BENCHMARK":
            torch.backends.cudnn.benchmark = value


def solve(*values, MODE, **switches):
    configure(tuple(switches.items()))
    with torch.no_grad():
        return variant(MODE)(*values)
'''


def write_reference_solution(directory: Path, problem: Problem, target: str) -> bool:
    """Write a solution with `tune:` that calls the problem's reference, unless the directory has a solution.

    Args:
        target: `cpu`, or the name of a GPU.

    Returns:
        True if a solution was written.
    """
    if (directory / SOLUTION_NAME).is_file():
        return False
    definition = problem.definition
    space = _SPACES["cpu" if target == "cpu" else "gpu"]
    kernel = _KERNEL.format(
        inputs=json.dumps(list(definition.inputs)),
        outputs=json.dumps(list(definition.outputs)),
        updates=json.dumps(definition.updates),
    )
    solution = {
        "language": "pytorch",
        "entry": "kernel.py::solve",
        "destination_passing": bool(definition.updates),
        "params": {name: values[0] for name, values in space.items()},
        "tune": {name: list(values) for name, values in space.items()},
        "notes": "Variants of the reference, for a tuner.",
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "problem_code.py").write_text(definition.reference)
    (directory / "kernel.py").write_text(kernel)
    (directory / SOLUTION_NAME).write_text(yaml.safe_dump(solution, sort_keys=False))
    return True
