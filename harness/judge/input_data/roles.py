"""Derive the role of an input from its name, so that its random values resemble those in a model.

The first pattern of the table `_BY_NAME` that occurs in the lower-case name determines the role. The dtype can change
it, because some roles are only valid for floats and others only for integers. A problem can state the role: the extra
key `x_distribution` of an input in definition.json is a role (`"x_distribution": "decay"`), or a mapping of a role and
its bounds (`{"role": "index", "below": "vocab_size"}`, `{"role": "uniform", "low": -1, "high": 1}`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import FormatError
from harness.model.problem import Definition, TensorSpec

KEY = "x_distribution"


class Role(StrEnum):
    """Kinds of random values."""

    NORMAL = "normal"
    """Standard normal."""
    AROUND_ONE = "around_one"
    """1 plus or minus 0.1 to 0.5, so that a kernel that omits the factor is wrong in every element."""
    BIAS = "bias"
    """Normal, standard deviation 0.5."""
    WEIGHT = "weight"
    """Normal, standard deviation 1/sqrt(fan-in), so that sums of products have the scale of the activations."""
    MASK = "mask"
    """0 or 1, three quarters of them 1; the first of each row is 1, so that no softmax has an empty row."""
    ADDITIVE_MASK = "additive_mask"
    """0 or -10000; the first of each row is 0."""
    COSINE = "cosine"
    """Cosines of random angles; the sine table of the same name has the sines of the same angles."""
    SINE = "sine"
    """See `COSINE`."""
    PROBABILITY = "probability"
    """Rows over the last axis that are softmax outputs."""
    DECAY = "decay"
    """Between 0.05 and 0.95."""
    POSITIVE = "positive"
    """Between 0.5 and 1.5: variances, reciprocal norms, scales of quantised blocks, time steps."""
    NEGATIVE = "negative"
    """Between -1.5 and -0.5: logarithms of decays."""
    UNIFORM = "uniform"
    """Between the two bounds."""
    INDEX = "index"
    """Integers from 0 to the size of the indexed axis, exclusive."""
    DISTINCT = "distinct"
    """Distinct indices: permutations, and slots that are written."""
    OFFSETS = "offsets"
    """Non-decreasing integers from 0 to the total: cumulative lengths, CSR row pointers."""
    LENGTHS = "lengths"
    """Integers from 1 to the size of the measured axis, inclusive."""
    INTEGER = "integer"
    """Integers from -1024 to 1023, or from -128 to 127 for int8."""
    BOOLEAN = "boolean"
    """False or true with equal probability."""
    BITS = "bits"
    """Packed four-bit floats with random bits; every pattern is a number."""


_WORDS: tuple[tuple[Role, tuple[str, ...]], ...] = (
    (Role.OFFSETS, (r"cu_?seq_?lens?\w*", r"\w*indptr", r"\w*row_?ptr", "offsets?", "offs", r"cumulative_\w+")),
    (Role.LENGTHS, (r"\w*seq_?lens?", "kv_lens?", "last_page_len", r"\w*lengths?", "context_lens?")),
    (Role.ADDITIVE_MASK, ("(attn|attention|causal|additive)_(mask|bias)",)),
    (Role.MASK, (r"\w*mask\w*",)),
    (Role.BIAS, (r"\w*bias\w*", "beta", r"shift\d*", "ln_b")),
    (Role.COSINE, (r"\w*cos(ines?)?",)),
    (Role.SINE, (r"\w*sin(es?)?",)),
    (Role.DISTINCT, ("slots?", "slot_mapping", "(inv_)?perm(utation)?")),
    (Role.INDEX, ("idx", "index", "indices", "ids?", "positions?", "(block|page)_tables?")),
    (Role.INDEX, ("labels?", "targets?", "pages?", "experts?", "tokens?", "routing")),
    (Role.NEGATIVE, ("a_log", "log_decay", "log_(a|alpha|gate)", "g_log", "logprobs?")),
    (Role.PROBABILITY, ("probs?", r"probabilit\w+", r"softmax\w*")),
    (Role.PROBABILITY, ("(attn|attention|routing|router|topk|expert)_(weights?|scores?)",)),
    (Role.DECAY, (r"decay\w*", "forget_gates?", "retention")),
    (
        Role.POSITIVE,
        ("var", "variance", "r?std", "inv_(std|rms)", "rms", "sum_exp", "lse", "dt", "delta_t", "step_size"),
    ),
    (Role.POSITIVE, ("scales?_inv", "(block|weight|input|quant|dequant|kv|k|v|q|a|b|x|w)_scales?")),
    (
        Role.AROUND_ONE,
        ("gamma", "(ln|rms)_w", r"\w*norm\d*_(weights?|gamma|scales?|w)", "layer_?scale", "scale_weight"),
    ),
    (Role.WEIGHT, (r"\w*weights?\d*", r"w\d*", "kernels?", "filters?", r"proj\w*", "embedding_table", "lm_head")),
)
"""Role -> words of a name between underscores. The first line with a matching word determines the role."""
_BY_NAME = tuple((re.compile(f"(^|_)({'|'.join(words)})(_|$)"), role) for role, words in _WORDS)
_INTEGERS = frozenset({"int64", "int32", "int16", "int8"})
_RANGES = {Role.DECAY: (0.05, 0.95), Role.POSITIVE: (0.5, 1.5), Role.NEGATIVE: (-1.5, -0.5), Role.UNIFORM: (-1.0, 1.0)}
_BOUNDED = frozenset({Role.INDEX, Role.DISTINCT, Role.OFFSETS, Role.LENGTHS})
_INTEGER_ROLES = _BOUNDED | {Role.INTEGER, Role.MASK, Role.BOOLEAN}


@dataclass(frozen=True)
class Purpose:
    """An input's role with its parameters."""

    role: Role
    lower_bound: float = 0.0
    upper_bound: float = 1.0
    """Exclusive for integers, except for lengths and the last offset."""
    std: float = 1.0
    """Standard deviation of the normal roles."""


def purpose_of(name: str, definition: Definition, sizes: Mapping[str, int]) -> Purpose:
    """Return the role of an input with its parameters.

    Args:
        name: name of the input.
        definition: the problem's definition.
        sizes: sizes of the axes in a workload.

    Raises:
        FormatError: `x_distribution` is not a role, or a bound is neither an axis nor a number.
    """
    spec = definition.inputs[name]
    distribution = (spec.model_extra or {}).get(KEY)
    if distribution is None:
        return _with_bounds(_role(name, spec, definition), name, definition, sizes)
    settings = distribution if isinstance(distribution, dict) else {"role": distribution}
    try:
        role = Role(str(settings.get("role")))
    except ValueError:
        expected = ", ".join(role.value for role in Role)
        raise FormatError(f"input `{name}`: `{KEY}` is {distribution!r}; expected one of {expected}") from None
    default = _with_bounds(role, name, definition, sizes)
    lower_bound = _number(settings.get("low", default.lower_bound), name, sizes)
    upper_bound = _number(settings.get("high", settings.get("below", default.upper_bound)), name, sizes)
    return Purpose(role, lower_bound, upper_bound, _number(settings.get("std", default.std), name, sizes))


def _number(value: object, name: str, sizes: Mapping[str, int]) -> float:
    if isinstance(value, str) and value in sizes:
        return float(sizes[value])
    if isinstance(value, int | float):
        return float(value)
    raise FormatError(f"input `{name}`: `{KEY}` has the bound {value!r}; expected a number or the name of an axis")


def _role(name: str, spec: TensorSpec, definition: Definition) -> Role:
    by_name = next((role for pattern, role in _BY_NAME if pattern.search(name.lower())), None)
    if spec.dtype == "bool":
        return Role.MASK if by_name in {Role.MASK, Role.ADDITIVE_MASK} else Role.BOOLEAN
    if spec.dtype in _INTEGERS:
        by_name = Role.MASK if by_name is Role.ADDITIVE_MASK else by_name
        return by_name if by_name in _INTEGER_ROLES else Role.INTEGER
    return Role.BITS if spec.dtype == "float4_e2m1fn_x2" else _float_role(name, spec, by_name, definition)


def _float_role(name: str, spec: TensorSpec, by_name: Role | None, definition: Definition) -> Role:
    if by_name in _BOUNDED:  # "tokens" or "targets" of a float dtype are activations
        return Role.NORMAL
    if by_name is Role.WEIGHT and len(spec.shape or ()) <= 1:  # a vector called weight belongs to a normalisation
        return Role.AROUND_ONE
    if by_name is None and re.search(r"(^|_)scales?(_|$)", name.lower()):
        return Role.NORMAL if _modulates(definition) else Role.POSITIVE
    return by_name or Role.NORMAL


def _modulates(definition: Definition) -> bool:
    """Return true for adaptive normalisation, `x * (1 + scale) + shift`, in which scales are around zero."""
    return any(re.search(r"(^|_)shift\d*(_|$)", name.lower()) for name in definition.inputs)


def _with_bounds(role: Role, name: str, definition: Definition, sizes: Mapping[str, int]) -> Purpose:
    spec = definition.inputs[name]
    if role is Role.WEIGHT:
        return Purpose(role, std=1.0 / math.sqrt(max(1, _fan_in(name, spec, definition, sizes))))
    if role in _BOUNDED:
        return Purpose(role, upper_bound=float(_bound(role, name, definition, sizes)))
    if role is Role.INTEGER:
        bound = 128 if spec.dtype == "int8" else 1024
        return Purpose(role, -bound, bound)
    lower_bound, upper_bound = _RANGES.get(role, (0.0, 1.0))
    return Purpose(role, lower_bound, upper_bound, 0.5 if role is Role.BIAS else 1.0)


def _fan_in(name: str, spec: TensorSpec, definition: Definition, sizes: Mapping[str, int]) -> int:
    """Return the number of products per output element of a convolution or linear layer, by its weight's shape."""
    shape = spec.shape or ()
    lengths = [int(axis) if axis.isdigit() else sizes[axis] for axis in shape]
    if "conv" in name.lower():
        return math.prod(lengths[1:])
    activations = {
        activation.shape[-1] for key, activation in definition.inputs.items() if key != name and activation.shape
    }
    shared = [length for axis, length in zip(shape, lengths, strict=True) if axis in activations]
    return shared[-1] if shared else lengths[-1]


_INDEXED: tuple[tuple[str, str], ...] = (
    (r"expert|routing|topk", r"num_experts|n_experts|experts|^e$"),
    (r"page|block|kv_ind|slot", r"num_pages|num_blocks|total_pages|pages|blocks|num_slots|slots"),
    (r"position|pos", r"max_pos\w*|max_seq\w*|max_len\w*|seq_len|^s$|^l$"),
    (r"token|input_id|label|target|word|vocab", r"vocab\w*|num_classes|classes|num_embeddings|^v$"),
)
"""Pattern of an index input's name, and pattern of the axes that it indexes."""
_TOTALS = r"^total|^nnz|num_tokens|num_kv_indices|total_\w+|_total$"
_LONGEST = r"max_\w*len|seq_len|kv_len|max_seq|^s$|^l$|page_size|block_size"


def _bound(role: Role, name: str, definition: Definition, sizes: Mapping[str, int]) -> int:
    """Return the upper bound of an integer input: the largest value of lengths and offsets, else exclusive."""
    own = set(definition.inputs[name].shape or ())
    patterns = {Role.OFFSETS: [_TOTALS], Role.LENGTHS: [_LONGEST]}.get(role) or [
        axes for names, axes in _INDEXED if re.search(names, name.lower())
    ]
    for pattern in patterns:
        for axis, size in sizes.items():
            if axis not in own and re.search(pattern, axis.lower()):
                return max(1, size)
    leading = [
        sizes.get(spec.shape[0], 1) if not spec.shape[0].isdigit() else int(spec.shape[0])
        for key, spec in definition.inputs.items()
        if key != name and spec.shape and spec.shape[0] not in own and spec.dtype not in _INTEGERS
    ]
    # An index mostly selects rows of another input. The smallest number of rows is in bounds for all of them.
    return max(1, min(leading)) if leading else max(1, min((size for size in sizes.values() if size > 1), default=1))
