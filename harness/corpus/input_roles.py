"""Role and scale of each input, so that the judge draws values with the distribution of a trained model's.

The result is the value of `x_distribution` in definition.json (harness.judge.input_data.roles).
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import fx

from harness.corpus.errors import SkippedError
from harness.corpus.exporting import GraphInput
from harness.corpus.printing import resolved
from harness.corpus.variable_names import operation_of

Distribution = str | dict[str, Any]

_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}
_NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"}


def distribution_of(graph_input: GraphInput, users: list[fx.Node]) -> Distribution:
    """Return the role of an input, from its name, its dtype and the operators that read it.

    Args:
        users: operations that read it, identities resolved.

    Raises:
        SkippedError: the input contains integers whose range is unknown.
    """
    value = graph_input.node.meta["val"]
    if value.dtype in {torch.int64, torch.int32, torch.int16, torch.int8}:
        return _integers(graph_input, users)
    if value.dtype == torch.bool:
        return "mask"
    if not value.dtype.is_floating_point:
        raise SkippedError(f"the input `{graph_input.name}` is {value.dtype}, which problems do not have")
    if graph_input.source == "gradient":
        return "normal"
    if graph_input.source == "saved":
        return _SAVED.get(graph_input.node.meta["saved_operation"], "normal")
    if graph_input.source == "activation":
        name = graph_input.name.lower()
        role = next((role for pattern, role in _ACTIVATIONS if pattern.search(name)), "normal")
        return "mask" if role == "additive_mask" and _is_inverted(users) else role
    return _weight(graph_input, users, value)


_ACTIVATIONS = (
    (re.compile(r"(^|_)cos$"), "cosine"),
    (re.compile(r"(^|_)sin$"), "sine"),
    (re.compile(r"mask"), "additive_mask"),
    (re.compile(r"(topk|top_k|routing|router|expert)\w*(weights?|scores?)|prob"), "probability"),
    (re.compile(r"timestep|sigma"), "positive"),
)


_PASSED_ON = {"to", "_to_copy", "unsqueeze", "view", "reshape", "expand"}


def _is_inverted(users: list[fx.Node]) -> bool:
    """Return true if the model computes `1 - mask`: the mask is 1 where a position counts, and is not itself added."""
    for user in users:
        operation = operation_of(user)
        if operation == "rsub" and user.args[1] == 1:
            return True
        if operation == "sub" and user.args[0] == 1:
            return True
        if operation in _PASSED_ON and _is_inverted(list(user.users)):
            return True
    return False


_SAVED = {"_softmax": "probability", "softmax": "probability", "rsqrt": "positive", "exp": "positive",
          "sigmoid": "decay", "sqrt": "positive", "reciprocal": "positive"}  # fmt: skip
"""Operator that computed a saved value -> role."""


def _integers(graph_input: GraphInput, users: list[fx.Node]) -> Distribution:  # noqa: C901, PLR0911 - one rule each
    for user in users:
        operation = operation_of(user)
        if operation == "embedding":
            return {"role": "index", "below": _length(user.args[0], 0)}
        if operation in {"index_select", "gather"} and len(user.args) > 2 and _is(user.args[2], graph_input.node):
            dim = user.args[1]
            return {"role": "index", "below": _length(user.args[0], dim if isinstance(dim, int) else 0)}
        if operation == "index" and isinstance(user.args[1], list | tuple):
            for dim, index in enumerate(user.args[1]):
                if _is(index, graph_input.node):
                    return {"role": "index", "below": _length(user.args[0], dim)}
        if operation == "one_hot" and isinstance(user.args[1], int):
            return {"role": "index", "below": user.args[1]}
    if _EXPERTS.search(graph_input.name):
        # The parameters of the graph that contain one matrix for each expert.
        nodes = [node for node in users[0].graph.nodes if node.op == "placeholder"] if users else []
        weights = [node.meta.get("val") for node in nodes if node.name.startswith("p_")]
        experts = [weight.shape[0] for weight in weights if isinstance(weight, torch.Tensor) and weight.dim() == 3]
        if experts:
            return {"role": "index", "below": min(experts)}
    below = next((below for word, below in _BELOW.items() if word in graph_input.name), None)
    if below is not None:
        return {"role": "index", "below": below}
    if "mask" in graph_input.name:
        return "mask"
    raise SkippedError(f"the range of the integers in `{graph_input.name}` is unknown")


_BELOW = {"timestep": 1000, "token_type": 2, "position": 2048}
"""Upper bounds of integers that do not index a table: steps of diffusion schedules, segments, positions."""
_EXPERTS = re.compile(r"expert|top_?k|routing|selected")


def _is(value: object, node: fx.Node) -> bool:
    return isinstance(value, fx.Node) and resolved(value) is node


def _length(tensor: Any, dim: int) -> int:  # noqa: ANN401 - a node
    size = tensor.meta["val"].shape[dim]
    if not isinstance(size, int):
        raise SkippedError("an index selects along an axis that varies")
    return size


def _weight(graph_input: GraphInput, users: list[fx.Node], value: torch.Tensor) -> Distribution:  # noqa: PLR0911 - one rule each
    """Return the role of a parameter or buffer."""
    name = graph_input.name.lower()
    leaf = name.rpartition(".")[2]
    operations = {operation_of(user) for user in users}
    if graph_input.source == "buffer":
        return "positive" if "inv_freq" in leaf or "var" in leaf or "std" in leaf else "normal"
    if leaf.endswith("bias") and value.dim() == 1:
        return "bias"
    if "a_log" in leaf:
        return "negative"
    if operations & _NORMS or (value.dim() == 1 and re.search(r"norm|gamma|scale|weight", name)):
        return "bias" if _is_offset(graph_input.node, users) else "around_one"
    if operations & _CONVOLUTIONS or "conv" in operations:
        return _scaled(math.prod(value.shape[1:]))
    if "linear" in operations or operations & {"matmul", "mm", "addmm", "bmm", "baddbmm"}:
        contracted = value.shape[-1] if "linear" in operations or value.dim() < 2 else value.shape[-2]
        return _scaled(int(contracted))
    if "embedding" in operations or value.dim() < 2:
        return "normal" if value.dim() > 1 else "bias"
    return _scaled(int(value.shape[-1]))


def _is_offset(node: fx.Node, users: list[fx.Node]) -> bool:
    """Return true for a scale that the model stores as its difference from 1: it computes `1 + weight`."""
    casts = [user for user in users if operation_of(user) in {"to", "_to_copy"} and _is(user.args[0], node)]
    readers = [*users, *(following for cast in casts for following in cast.users)]
    sums = [reader for reader in readers if operation_of(reader) == "add"]
    return any(isinstance(value, int | float) and value == 1 for addition in sums for value in addition.args)


def _scaled(fan_in: int) -> dict[str, Any]:
    """Return the role of a weight whose products keep the scale of its input: standard deviation 1 / sqrt(fan-in)."""
    return {"role": "weight", "std": float(f"{1 / math.sqrt(max(1, fan_in)):.4g}")}
