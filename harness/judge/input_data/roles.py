"""Role of an input, told from its name, so that its random values are of the kind that a model would give it.

The table `_BY_NAME` is read top down and the first pattern found in the lower-case name decides; then the dtype has
its say, because some roles only make sense for floats and others only for integers. A problem can say it itself: the
extra key `x_distribution` of an input in definition.json names a role (`"x_distribution": "decay"`), or, as a mapping,
a role with its bounds (`{"role": "index", "below": "vocab_size"}`, `{"role": "uniform", "low": -1, "high": 1}`).
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
    """Kinds of values, and what is drawn for each."""

    NORMAL = "normal"
    """Standard normal."""
    AROUND_ONE = "around_one"
    """1 plus or minus 0.1 to 0.5: a kernel that leaves the factor out is wrong everywhere."""
    BIAS = "bias"
    """Normal, standard deviation 0.5."""
    WEIGHT = "weight"
    """Normal, standard deviation 1/sqrt(fan-in), so that sums of products keep the scale of what goes in."""
    MASK = "mask"
    """0 or 1 with 3/4 ones; the first of each row is one, so that no softmax is over nothing."""
    ADDITIVE_MASK = "additive_mask"
    """0 or -10000; the first of each row is 0."""
    COSINE = "cosine"
    """Cosines of random angles; the sine table of the same name has the sines of the same angles."""
    SINE = "sine"
    PROBABILITY = "probability"
    """Rows over the last axis that are softmax outputs."""
    DECAY = "decay"
    """Between 0.05 and 0.95."""
    POSITIVE = "positive"
    """Between 0.5 and 1.5: variances, reciprocal norms, scales of quantised blocks, time steps."""
    NEGATIVE = "negative"
    """Between -1.5 and -0.5: logarithms of decays."""
    UNIFORM = "uniform"
    """Between `low` and `high`."""
    INDEX = "index"
    """Integers from 0 to below the axis they index."""
    DISTINCT = "distinct"
    """Indices of which no two are equal: permutations, and slots that are written to."""
    OFFSETS = "offsets"
    """Non-decreasing from 0 to the total: cumulative lengths, CSR row pointers."""
    LENGTHS = "lengths"
    """Integers from 1 to the axis they measure."""
    INTEGER = "integer"
    """Any integers that are small in the dtype."""
    BOOLEAN = "boolean"
    BITS = "bits"
    """Packed four-bit floats: every pattern is a number."""


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
"""Whole words of a name, between its ends and underscores; the first line that has one decides."""
_BY_NAME = tuple((re.compile(f"(^|_)({'|'.join(words)})(_|$)"), role) for role, words in _WORDS)
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
_INTEGERS = frozenset({"int64", "int32", "int16", "int8"})
_RANGES = {
    Role.DECAY: (0.05, 0.95),
    Role.POSITIVE: (0.5, 1.5),
    Role.NEGATIVE: (-1.5, -0.5),
    Role.UNIFORM: (-1.0, 1.0),
}
_BOUNDED = frozenset({Role.INDEX, Role.DISTINCT, Role.OFFSETS, Role.LENGTHS})
_INTEGER_ROLES = _BOUNDED | {Role.INTEGER, Role.MASK, Role.BOOLEAN}


@dataclass(frozen=True)
class Purpose:
    """An input's role and what belongs to it. Integers stay below `high`."""

    role: Role
    low: float = 0.0
    high: float = 1.0
    std: float = 1.0
    """Standard deviation of the normal roles."""


def purpose_of(name: str, definition: Definition, sizes: Mapping[str, int]) -> Purpose:
    """The role of an input with its parameters for one workload's sizes.

    Raises:
        FormatError: `x_distribution` names no role, or a bound is no axis and no number.
    """
    spec = definition.inputs[name]
    given = (spec.model_extra or {}).get(KEY)
    if given is None:
        return _with_bounds(_role(name, spec, definition), name, definition, sizes)
    settings = given if isinstance(given, dict) else {"role": given}
    try:
        role = Role(str(settings.get("role")))
    except ValueError:
        expected = ", ".join(role.value for role in Role)
        raise FormatError(f"input `{name}`: `{KEY}` is {given!r}; expected one of {expected}") from None
    found = _with_bounds(role, name, definition, sizes)
    low = _number(settings.get("low", found.low), name, sizes)
    high = _number(settings.get("high", settings.get("below", found.high)), name, sizes)
    return Purpose(role, low, high, _number(settings.get("std", found.std), name, sizes))


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
    return _float_role(name, spec, by_name, definition) if spec.dtype in _FLOATS else Role.BITS


def _float_role(name: str, spec: TensorSpec, by_name: Role | None, definition: Definition) -> Role:
    if by_name in _BOUNDED:  # float "tokens", "targets": activations
        return Role.NORMAL
    if by_name is Role.WEIGHT and len(spec.shape or ()) <= 1:  # a vector called weight is a normalisation's
        return Role.AROUND_ONE
    if by_name is None and re.search(r"(^|_)scales?(_|$)", name.lower()):
        return Role.NORMAL if _modulates(definition) else Role.POSITIVE
    return by_name or Role.NORMAL


def _modulates(definition: Definition) -> bool:
    """Adaptive normalisation computes `x * (1 + scale) + shift`: there a scale lies around zero."""
    return any(re.search(r"(^|_)shift\d*(_|$)", name.lower()) for name in definition.inputs)


def _with_bounds(role: Role, name: str, definition: Definition, sizes: Mapping[str, int]) -> Purpose:
    spec = definition.inputs[name]
    if role is Role.WEIGHT:
        return Purpose(role, std=1.0 / math.sqrt(max(1, _fan_in(name, spec, definition, sizes))))
    if role in _BOUNDED:
        return Purpose(role, high=float(_bound(role, name, definition, sizes)))
    if role is Role.INTEGER:
        reach = 128 if spec.dtype == "int8" else 1024
        return Purpose(role, -reach, reach)
    low, high = _RANGES.get(role, (0.0, 1.0))
    return Purpose(role, low, high, 0.5 if role is Role.BIAS else 1.0)


def _fan_in(name: str, spec: TensorSpec, definition: Definition, sizes: Mapping[str, int]) -> int:
    """Products summed into one output: the axes after the first of a convolution's or linear layer's weight."""
    shape = spec.shape or ()
    lengths = [int(axis) if axis.isdigit() else sizes[axis] for axis in shape]
    if "conv" in name.lower():
        return math.prod(lengths[1:])
    activations = {other.shape[-1] for key, other in definition.inputs.items() if key != name and other.shape}
    shared = [length for axis, length in zip(shape, lengths, strict=True) if axis in activations]
    return shared[-1] if shared else lengths[-1]


_INDEXED: tuple[tuple[str, str], ...] = (
    (r"expert|routing|topk", r"num_experts|n_experts|experts|^e$"),
    (r"page|block|kv_ind|slot", r"num_pages|num_blocks|total_pages|pages|blocks|num_slots|slots"),
    (r"position|pos", r"max_pos\w*|max_seq\w*|max_len\w*|seq_len|^s$|^l$"),
    (r"token|input_id|label|target|word|vocab", r"vocab\w*|num_classes|classes|num_embeddings|^v$"),
)
"""Index inputs by name, and the axes they run along."""
_TOTALS = r"^total|^nnz|num_tokens|num_kv_indices|total_\w+|_total$"
_LONGEST = r"max_\w*len|seq_len|kv_len|max_seq|^s$|^l$|page_size|block_size"


def _bound(role: Role, name: str, definition: Definition, sizes: Mapping[str, int]) -> int:
    """Upper bound of an integer input (of lengths and offsets: their last value)."""
    own = set(definition.inputs[name].shape or ())
    patterns = {
        Role.OFFSETS: [_TOTALS],
        Role.LENGTHS: [_LONGEST],
    }.get(role) or [axes for names, axes in _INDEXED if re.search(names, name.lower())]
    for pattern in patterns:
        for axis, size in sizes.items():
            if axis not in own and re.search(pattern, axis.lower()):
                return max(1, size)
    leading = [
        sizes.get(spec.shape[0], 1) if not spec.shape[0].isdigit() else int(spec.shape[0])
        for key, spec in definition.inputs.items()
        if key != name and spec.shape and spec.shape[0] not in own and spec.dtype not in _INTEGERS
    ]
    # Rows of another input are what an index most often picks; the smallest is in bounds of them all.
    return max(1, min(leading)) if leading else max(1, min((size for size in sizes.values() if size > 1), default=1))
