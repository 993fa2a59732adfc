"""PyTorch expressions of ATen operators, in the form that people write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import fx

from harness.corpus.errors import SkippedError
from harness.corpus.variable_names import operation_of

Text = Callable[[Any], str]
"""Text of an argument: a variable, a size or a literal."""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "__and__": "&", "__or__": "|", "remainder": "%",
    "floor_divide": "//",
}  # fmt: skip
_METHODS = {
    "transpose", "permute", "unsqueeze", "squeeze", "expand", "expand_as", "flatten", "unflatten", "mean", "sum",
    "repeat", "chunk", "split", "unbind", "masked_fill", "amax", "amin", "argmax", "cumsum", "contiguous", "gather",
    "index_select", "scatter", "scatter_add", "type_as", "clone", "unfold", "movedim", "narrow", "tril", "triu", "pow",
    "clamp", "clamp_min", "clamp_max", "max", "min", "any", "all", "new_zeros", "new_ones", "new_full", "new_empty",
    "index_add", "index_copy", "index_put", "repeat_interleave", "roll", "flip", "t", "diagonal", "var", "std", "norm",
    "logsumexp", "sort", "reshape_as", "view_as", "argsort", "topk", "masked_scatter", "square", "prod",
}  # fmt: skip
"""Operators that are written as methods of their first argument."""
_FUNCTIONAL = {
    "linear", "layer_norm", "rms_norm", "group_norm", "batch_norm", "scaled_dot_product_attention", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "gelu", "silu", "relu", "relu6", "elu", "leaky_relu", "mish",
    "hardswish", "hardsigmoid", "hardtanh", "softplus", "pad", "one_hot", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "max_pool1d", "max_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "pixel_shuffle", "pixel_unshuffle",
    "normalize", "glu", "bilinear", "instance_norm", "grid_sample", "im2col", "cosine_similarity", "prelu",
    "logsigmoid", "log_sigmoid", "selu", "celu", "channel_shuffle", "l1_loss", "mse_loss", "cross_entropy_loss",
}  # fmt: skip
_RENAMED = {"im2col": "unfold", "cross_entropy_loss": "cross_entropy", "log_sigmoid": "logsigmoid",
            "_grouped_mm": "grouped_mm", "view": "reshape", "_unsafe_view": "reshape"}  # fmt: skip
_SIZES_AS_ARGUMENTS = {"reshape", "view", "_unsafe_view", "permute", "expand", "repeat"}
_IDENTITIES = {"dropout", "detach", "alias", "lift_fresh_copy", "lift_fresh", "feature_dropout", "native_dropout",
               "detach_", "_assert_tensor_metadata"}  # fmt: skip
"""Operators that return their first argument in evaluation mode."""
_DROPPED = {"cudnn_enable", "cudnn_enabled", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "sparse",
            "scale_grad_by_freq", "padding_idx", "implicit"}  # fmt: skip
_KEYWORDS = {
    "dim", "keepdim", "dtype", "eps", "approximate", "is_causal", "dropout_p", "descending", "largest", "sorted", "min",
    "max", "diagonal", "stride", "padding", "dilation", "groups", "output_padding", "mode", "value", "start_dim",
    "end_dim", "attn_mask", "correction", "unbiased", "negative_slope", "beta", "threshold", "ceil_mode",
    "count_include_pad", "training", "momentum", "num_classes", "alpha", "scale", "shifts", "dims", "rounding_mode",
    "negative", "offset", "offs", "output_size", "out_dtype", "bias",
}  # fmt: skip
"""Arguments that are written with their names."""


def is_identity(node: fx.Node) -> bool:
    """Return true if a node returns its first argument unchanged, so that it needs no statement."""
    operation = operation_of(node)
    return operation in _IDENTITIES or (operation == "slice" and _is_whole(node))


_WHOLE = 2**62


def _is_whole(node: fx.Node) -> bool:
    """Return true for a slice from the first to the last element."""
    start, end, step = [*node.args, None, None, None, None][2:5]
    return start in {None, 0} and step in {None, 1} and (end is None or (isinstance(end, int) and end > _WHOLE))


def expression(node: fx.Node, text: Text, device: str) -> str:
    """Return the expression that computes a node.

    Args:
        text: returns the text of an argument.
        device: an expression of the device of new tensors.

    Raises:
        SkippedError: the operator has no plain form.
    """
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name of this type
        raise SkippedError(f"the graph calls `{node.target}`, which is not an operator")
    operation = operation_of(node)
    arguments = _arguments(node)
    special = _SPECIAL.get(operation) or _SPECIAL.get(f"{operation}.{node.target._overloadname}")  # noqa: SLF001
    if special is not None:
        return special(arguments, text)
    if operation in _INFIX and arguments.get("rounding_mode") is None:
        return _infix(operation, arguments, text)
    return _call(operation, node, arguments, text, device)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments by the names of the operator's schema, without those that plain PyTorch does not need."""
    schema = node.target._schema  # type: ignore[union-attr]  # noqa: SLF001
    names = [argument.name for argument in schema.arguments]
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {name: value for name, value in arguments.items() if name not in _DROPPED}


def _infix(operation: str, arguments: dict[str, Any], text: Text) -> str:
    left, right = (operand(value, text) for value in list(arguments.values())[:2])
    factor = arguments.get("alpha", 1)
    return f"{left} {_INFIX[operation]} {right if factor == 1 else f'{text(factor)} * {right}'}"


def operand(value: object, text: Text) -> str:
    """Return the text of an operand; a compound expression or a negative number is in parentheses.

    Args:
        value: a node or a number.
        text: returns the text of a value.
    """
    operand_text = text(value)
    if isinstance(value, int | float):
        return operand_text if value >= 0 else f"({operand_text})"
    simple = operand_text.replace("_", "").replace(".", "").isalnum()
    simple = simple or (operand_text.endswith((")", "]")) and " " not in operand_text)
    return operand_text if simple else f"({operand_text})"


def _call(operation: str, node: fx.Node, arguments: dict[str, Any], text: Text, device: str) -> str:
    schema = {argument.name: argument for argument in node.target._schema.arguments}  # type: ignore[union-attr]  # noqa: SLF001
    texts: list[str] = []
    is_keyword = False
    for name, value in arguments.items():
        argument = schema[name]
        is_keyword = is_keyword or argument.kwarg_only or (bool(texts) and _is_named(operation, name, value))
        if is_keyword and argument.has_default_value() and argument.default_value == value and name != "device":
            continue
        if name == "end" and isinstance(value, int) and value > _WHOLE:
            continue
        value_text = device if name == "device" else text(_scalar_of(value) if name == "dim" else value)
        if operation in _SIZES_AS_ARGUMENTS and not is_keyword and texts:
            value_text = value_text[1:-1].rstrip(",")
        texts.append(f"{name}={value_text}" if is_keyword else value_text)
    name = _RENAMED.get(operation, operation)
    if name == "reshape" or (operation in _METHODS and _is_tensor(next(iter(arguments.values()), None))):
        receiver = operand(next(iter(arguments.values())), text)
        return f"{receiver}.{name}({', '.join(texts[1:])})"
    if operation in _FUNCTIONAL or name == "grouped_mm":
        return f"F.{name}({', '.join(texts)})"
    name = name.removeprefix("linalg_")
    for prefix, module in _MODULES.items():
        if hasattr(module, name) and not name.startswith("_"):
            return f"{prefix}.{name}({', '.join(texts)})"
    raise SkippedError(f"the operator `{node.target}` has no plain form")


_MODULES = {"torch": torch, "F": F, "torch.special": torch.special, "torch.linalg": torch.linalg}


def _is_named(operation: str, name: str, value: object) -> bool:
    """Return true for an argument that is written with its name: an option or a mask, but no other tensor."""
    if _is_tensor(value) and name not in {"attn_mask", "offs"}:
        return False
    return name in _KEYWORDS and operation not in {"unsqueeze", "squeeze", "permute"}


def _scalar_of(value: object) -> object:
    """Return the number of a list with one dimension; any other value unchanged."""
    return value[0] if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1 else value


def _is_tensor(value: object) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _to(arguments: dict[str, Any], text: Text) -> str:
    values = list(arguments.values())
    dtype = arguments.get("dtype") or next((v for v in values[1:] if isinstance(v, torch.dtype)), None)
    if dtype is None:
        target = arguments.get("other")
        return f"{text(values[0])}.to({text(target)}.dtype)" if target is not None else text(values[0])
    return f"{operand(values[0], text)}.to({text(dtype)})"


def _slice(arguments: dict[str, Any], text: Text) -> str:
    value, dim, start, end = (arguments.get(name) for name in ("self", "dim", "start", "end"))
    step = arguments.get("step", 1)
    first = "" if start in {None, 0} else text(start)
    last = "" if end is None or (isinstance(end, int) and end > _WHOLE) else text(end)
    index_text = f"{first}:{last}" + (f":{text(step)}" if step != 1 else "")
    return _indexed(value, dim or 0, index_text, text)


def _indexed(value: Any, dim: int, index_text: str, text: Text) -> str:  # noqa: ANN401 - a node
    """Return `value[:, index]`, with an ellipsis if the dimension is the last."""
    rank = value.meta["val"].dim()
    place = dim % rank
    leading = "..., " if place == rank - 1 and rank > 1 else ":, " * place
    return f"{operand(value, text)}[{leading}{index_text}]"


def _index(arguments: dict[str, Any], text: Text) -> str:
    indices = [":" if index is None else text(index) for index in arguments["indices"]]
    return f"{operand(arguments['self'], text)}[{', '.join(indices)}]"


_INTERPOLATIONS = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d")
"""Modes of `F.interpolate`, each with a number of dimensions, in the names of their operators."""


def _interpolate(mode: str, arguments: dict[str, Any], text: Text) -> str:
    size, factors = arguments.get("output_size"), arguments.get("scale_factors")
    corners = arguments.get("align_corners")
    chosen = f"size={text(size)}" if size is not None else f"scale_factor={text(factors)}"
    aligned = f", align_corners={corners}" if corners is not None else ""
    return f'F.interpolate({text(arguments["input"])}, {chosen}, mode="{mode}"{aligned})'


def _batch_norm(arguments: dict[str, Any], text: Text) -> str:
    """Return a batch norm, whose running statistics come before the weights; the operator has the opposite order."""
    order = ("input", "running_mean", "running_var", "weight", "bias")
    args = ", ".join(text(arguments.get(name)) for name in order)
    return f"F.batch_norm({args}, training={text(arguments['training'])}, eps={text(arguments['eps'])})"


_SPECIAL: dict[str, Callable[[dict[str, Any], Text], str]] = {
    "neg": lambda args, text: f"-{operand(args['self'], text)}",
    "bitwise_not": lambda args, text: f"~{operand(args['self'], text)}",
    "logical_not": lambda args, text: f"~{operand(args['self'], text)}",
    "rsub": lambda args, text: f"{operand(args['other'], text)} - {operand(args['self'], text)}",
    "pow.Scalar": lambda args, text: f"{operand(args['self'], text)} ** {operand(args['exponent'], text)}",
    "pow.Tensor_Tensor": lambda args, text: f"{operand(args['self'], text)} ** {operand(args['exponent'], text)}",
    "to": _to,
    "_to_copy": _to,
    "type_as": lambda args, text: f"{text(args['self'])}.to({text(args['other'])}.dtype)",
    "view.dtype": lambda args, text: f"{text(args['self'])}.view({text(args['dtype'])})",
    "histc": lambda args, text: (  # for integers, histc exists only on GPUs
        f"torch.histc({text(args['self'])}.to(torch.float32), bins={text(args['bins'])}, "
        f"min={text(args['min'])}, max={text(args['max'])})"
    ),
    "copy": lambda args, text: (
        f"{operand(args['src'], text)}.expand_as({text(args['self'])}).to({text(args['self'])}.dtype)"
    ),
    "_softmax": lambda args, text: f"torch.softmax({text(args['self'])}, dim={text(args['dim'])})",
    "_log_softmax": lambda args, text: f"torch.log_softmax({text(args['self'])}, dim={text(args['dim'])})",
    "split_with_sizes": lambda args, text: (
        f"{operand(args['self'], text)}.split({text(args['split_sizes'])}, dim={text(args.get('dim', 0))})"
    ),
    "slice": _slice,
    "select": lambda args, text: _indexed(args["self"], args["dim"], text(args["index"]), text),
    "index": _index,
    "embedding": lambda args, text: f"F.embedding({text(args['indices'])}, {text(args['weight'])})",
    "batch_norm": _batch_norm,
    **{f"upsample_{form}": functools.partial(_interpolate, form[:-2]) for form in _INTERPOLATIONS},
}
