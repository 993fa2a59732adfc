"""Descriptive names for the values of a graph.

A value that a statement of the model assigns gets the name of that variable, the output of a submodule the name of the
submodule, and every other value a name from its operation.
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import fx
from torch.utils import _pytree as pytree

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n(?:\s+(?P<code>[^\n]*))?')
_FOREIGN = re.compile(
    r"/torch/|/harness/corpus/|/utils/generic\.py|/utils/output_capturing\.py|transformers/activations\.py|"
    r"/integrations/(?!sdpa)|diffusers/models/activations\.py|/models/attention_dispatch\.py|/modeling_layers\.py"
)
"""Frames of libraries between a model's statement and the operator."""
_TARGETS = re.compile(r"^(?P<targets>[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)(?::[^=]+)?\s*(?:[-+*/]|)=(?!=)")


_BY_OPERATION = {
    "add": "total", "sub": "difference", "rsub": "difference", "mul": "product", "div": "quotient",
    "matmul": "matrix_product", "bmm": "matrix_product", "mm": "matrix_product", "mean": "mean", "sum": "summed",
    "rsqrt": "reciprocal_root", "sqrt": "root", "cat": "joined", "stack": "stacked",
    "silu": "activated", "gelu": "activated", "relu": "activated", "sigmoid": "gate", "tanh": "tanh",
    "softmax": "probabilities", "exp": "exponential", "log": "logarithm", "softplus": "softplus",
    "scaled_dot_product_attention": "attended", "layer_norm": "normalized", "rms_norm": "normalized",
    "group_norm": "normalized", "embedding": "embedded", "topk": "largest", "cumsum": "running_sum",
    "arange": "positions", "zeros": "zeros", "ones": "ones", "full": "filled", "where": "selected",
    "histc": "counts", "floor_divide": "rows", "index_put": "scattered", "empty_like": "unset", "new_zeros": "zeros",
    "slice_scatter": "placed", "logsumexp": "log_sum", "var_mean": "variance_mean", "grouped_mm": "grouped_product",
    "_grouped_mm": "grouped_product", "baddbmm": "matrix_product", "addmm": "matrix_product",
}  # fmt: skip
"""Operation -> name of its result."""
_OF_OPERAND = {
    "reshape": "reshaped", "view": "reshaped", "flatten": "reshaped", "unflatten": "reshaped",
    "_unsafe_view": "reshaped", "transpose": "transposed", "permute": "permuted", "t": "transposed",
    "unsqueeze": "unsqueezed", "squeeze": "squeezed", "expand": "expanded", "repeat": "repeated",
    "slice": "part", "select": "element", "contiguous": "contiguous", "clone": "copy", "pow": "power",
    "index": "indexed", "pad": "padded", "masked_fill": "masked", "roll": "rolled", "neg": "negated",
}  # fmt: skip
"""Operation -> suffix that follows the name of its operand."""
_DTYPE_WORDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64",
                torch.int64: "long", torch.int32: "int", torch.bool: "flags"}  # fmt: skip
_SUFFIXES = sorted({*_OF_OPERAND.values(), *_DTYPE_WORDS.values(), "first_half", "second_half"})
_SUFFIX = re.compile("_(" + "|".join(_SUFFIXES) + r")(_\d+)?$")
_RESERVED = {*keyword.kwlist, *keyword.softkwlist, "torch", "F", "math", "run", "input", "max", "min", "sum", "range",
             "list", "tuple", "dict", "int", "float", "bool", "slice", "len"}  # fmt: skip
_LONGEST = 60
_NUMBERED = re.compile(r"(?P<stem>.*[a-z])_(?P<number>\d+)$")


@dataclass(frozen=True)
class _SourceFrame:
    """One level of the call stack at which an operation ran."""

    file: str
    line: int
    function: str
    code: str

    @property
    def targets(self) -> tuple[str, ...]:
        """Variables that the statement assigns; empty if it is not a plain assignment."""
        match = _TARGETS.match(self.code)
        return tuple(name.strip() for name in match["targets"].split(",")) if match else ()

    @property
    def returns(self) -> bool:
        """True for a return statement."""
        return self.code.startswith("return ")


@lru_cache(maxsize=4096)
def _parse_frames(stack_trace: str) -> tuple[_SourceFrame, ...]:
    """Return the frames of the model's code in a stack trace, outermost first."""
    return tuple(
        _SourceFrame(match["file"], int(match["line"]), match["function"], match["code"] or "")
        for match in _FRAME.finditer(stack_trace)
        if not _FOREIGN.search(match["file"])
    )


def _frames_of(node: fx.Node) -> tuple[_SourceFrame, ...]:
    """Return the frames of the model's code that created a node; empty if they are unknown."""
    return _parse_frames(node.meta.get("stack_trace") or "")


def _module_path(node: fx.Node) -> tuple[str, ...]:
    """Return the path of a node's innermost module, relative to the exported module."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ()
    path = str(list(stack.values())[-1][0])
    return tuple(word for word in path.removeprefix("module").split(".") if word)


class UniqueNames:
    """Unique identifiers of a function."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._used = {*reserved, *_RESERVED}

    def take(self, wished: str) -> str:
        """Return the wished name, with a number if it is in use."""
        name = identifier(wished)
        number = 1
        candidate = name
        if name in self._used and (numbered := _NUMBERED.match(name)):
            name, number = numbered["stem"], int(numbered["number"])
        while candidate in self._used:
            number += 1
            candidate = f"{name}_{number}"
        self._used.add(candidate)
        return candidate


def identifier(words: str, longest: int = _LONGEST) -> str:
    """Return a lower-case Python identifier.

    Args:
        words: words in any case, separated by any characters that are not letters or digits.
        longest: maximum number of characters.
    """
    words = re.sub(r"(?<=\d)D(?![a-z])", "d", words)  # Transformer2DModel
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words)
    name = re.sub(r"\W+", "_", name).strip("_").lower()
    if not name or name[0].isdigit():
        name = f"value_{name}".rstrip("_")
    return name[:longest].rstrip("_")


def wished_names(nodes: Sequence[fx.Node], inputs: dict[fx.Node, str]) -> dict[fx.Node, str]:
    """Return a suitable name for each node; the names are not unique.

    Args:
        nodes: the operations that are printed, in order.
        inputs: name of each placeholder.
    """
    names = dict(inputs)
    assigned = set(inputs.values())
    modules = _module_names({path for node in nodes if (path := _module_path(node))})
    for index, node in enumerate(nodes):
        following = nodes[index + 1] if index + 1 < len(nodes) else None
        variable = _assigned(node, following, modules)
        if variable is None or variable in assigned:  # the model's code assigns this variable again
            variable = _operation_name(node, names, modules) or variable or operation_of(node).strip("_")
        if not _frames_of(node) and any(names.get(arg, "").startswith("grad_") for arg in _flat(node.args)):
            variable = variable if variable.startswith("grad_") else f"grad_{variable}"
        assigned.add(variable)
        names[node] = variable
    return {node: names[node] for node in nodes}


def _assigned(node: fx.Node, following: fx.Node | None, modules: ModuleNames) -> str | None:
    """Return the variable that a node's statement assigns, if the node is the last of the statement."""
    frames = _frames_of(node)
    if not frames:
        return None
    innermost = frames[-1]
    if following is not None and frames == _frames_of(following)[: len(frames)]:
        return _of_part(node, innermost)  # `following` ran in the same statement, or in a function that it calls
    if len(innermost.targets) == 1 and not innermost.targets[0].startswith("_"):
        return identifier(innermost.targets[0])
    if innermost.returns and "," not in innermost.code:
        is_forward = innermost.function == "forward"
        return modules.get(_module_path(node), "output") if is_forward else identifier(innermost.function)
    return _of_part(node, innermost)


def _of_part(node: fx.Node, frame: _SourceFrame) -> str | None:
    """Return the name of one of several values that a statement assigns at once."""
    if operation_of(node) == "getitem":
        index = node.args[1]
        if isinstance(index, int) and index < len(frame.targets) > 1 and frame.targets[index].strip("_"):
            return identifier(frame.targets[index])
    return None


ModuleNames = Mapping[tuple[str, ...], str]
"""Path of a submodule -> its name."""


def _module_names(paths: AbstractSet[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return the shortest unique suffix of each path; it does not begin with a number if that is possible."""
    names: dict[tuple[str, ...], str] = {}
    for path in paths:
        ends = [path[-length:] for length in range(1, len(path) + 1) if not path[-length].isdigit()]
        unique = [end for end in ends if sum(compared[-len(end) :] == end for compared in paths) == 1]
        names[path] = "_".join(next(iter(unique), path))
    return names


_OF_MODULE = {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "layer_norm",
              "group_norm", "batch_norm", "embedding", "rms_norm", "mm", "addmm"}  # fmt: skip
"""Operators of torch's own modules, so that the module's name describes their purpose."""


def _operation_name(node: fx.Node, names: dict[fx.Node, str], modules: ModuleNames) -> str | None:  # noqa: PLR0911 - one rule each
    """Return the name of a value from its operation and operands."""
    operation = operation_of(node)
    path = _module_path(node)
    if operation in _OF_MODULE and path:
        return modules[path]
    if operation == "getitem":
        return _part_name(node, names)
    operands = [names[arg] for arg in _flat(node.args) if arg in names]
    if not operands:
        return _BY_OPERATION.get(operation)
    stem = stem_of(operands[0])
    if operation in {"to", "_to_copy", "type_as"}:
        return f"{stem}_{_DTYPE_WORDS.get(node.meta['val'].dtype, 'cast')}"
    if operation == "pow" and len(node.args) > 1 and node.args[1] == 2:
        return f"{stem}_squared"
    if operation == "slice":
        return f"{stem}_{_half(node)}"
    if operation in _OF_OPERAND:
        return f"{stem}_{_OF_OPERAND[operation]}"
    if operation in {"add", "mul", "cat"}:
        return _combined(operation, node, operands) or _BY_OPERATION[operation]
    return _BY_OPERATION.get(operation)


_PARTS = {
    "sort": ("sorted", "order"), "topk": ("top_values", "top_indices"), "max": ("largest", "largest_index"),
    "min": ("smallest", "smallest_index"), "var_mean": ("variance", "mean"),
}  # fmt: skip
"""Operation with two results -> their names."""


def _part_name(node: fx.Node, names: dict[fx.Node, str]) -> str:
    """Return the name of one of several results of an operation."""
    source, index = node.args[0], int(node.args[1])  # type: ignore[arg-type]
    operation = operation_of(source)  # type: ignore[arg-type]
    if operation in _PARTS:
        return _PARTS[operation][index]
    operands = [names[arg] for arg in _flat(source.args) if arg in names]  # type: ignore[union-attr]
    if operation not in {"split", "chunk", "split_with_sizes", "unbind"} or not operands:
        return f"{names.get(source, 'part')}_{index}"  # type: ignore[arg-type]
    if len(source.meta["val"]) == 2:  # type: ignore[union-attr]
        return f"{stem_of(operands[0])}_{'second' if index else 'first'}_half"
    return f"{stem_of(operands[0])}_part_{index + 1}"


def _flat(arguments: Iterable[object]) -> list[fx.Node]:
    """Return the nodes among arguments, including those in lists."""
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, fx.Node)]


def _half(node: fx.Node) -> str:
    """Return the words for a part of an axis."""
    source, length = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    dim = node.args[1] if len(node.args) > 1 else 0
    start = node.args[2] if len(node.args) > 2 else 0
    if isinstance(dim, int) and isinstance(source.shape[dim], int) and source.shape[dim] == 2 * length.shape[dim]:
        return "first_half" if start in {0, None} else "second_half"
    return "part"


_SHORT = 40


def _combined(operation: str, node: fx.Node, operands: list[str]) -> str | None:  # noqa: PLR0911 - one rule each
    """Return the name of a sum, product or concatenation from the names of its operands."""
    stems = [stem_of(name) for name in operands]
    if operation == "cat":
        return f"{stems[0]}_rotated_half" if operands[0].endswith("_negated") and len(set(stems)) == 1 else None
    constants = [arg for arg in node.args if isinstance(arg, float)]
    if operation == "add":
        if any("residual" in frame.code for frame in _frames_of(node)[-1:]):
            return "residual_sum"
        if constants and 0 < constants[0] < 0.01:
            return f"{operands[0]}_plus_eps"
        columns = zip(*(stem.split("_") for stem in stems), strict=False)
        common = "_".join(words[0] for words in itertools.takewhile(lambda words: len(set(words)) == 1, columns))
        if common and re.search(r"_times_cos\b.*_times_sin\b", " ".join(stems)):
            return f"{common}_with_rope"
        return f"{common}_sum" if common and len(stems) == 2 else None
    if any(name.startswith("reciprocal_root") or name == "rsqrt" for name in operands):
        return "normalized"
    if len(operands) == 2 and len(operands[0]) + len(operands[1]) < _SHORT and "_times_" not in "".join(operands):
        return f"{stems[0]}_times_{stems[1]}"
    return f"{stems[0]}_scaled" if len(operands) == 1 else None


def stem_of(name: str) -> str:
    """Return a name without the suffixes for moves and casts of its value."""
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return name


def operation_of(node: fx.Node) -> str:
    """Return the name of a node's operator without namespace and overload."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet.__name__ if packet is not None else getattr(node.target, "__name__", node.target))
