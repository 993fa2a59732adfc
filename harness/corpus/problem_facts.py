"""Name, kind, tags and description of a problem."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.corpus.variable_names import identifier

_KINDS = (
    # The last word of a class names its kind; the words before are often the model's.
    ("norm", re.compile(r"norm$"), "Normalization"),
    ("attention", re.compile(r"(attention|attn)$"), "Attention"),
    ("mlp", re.compile(r"(?<!sparse)(mlp|feedforward|ffn)$"), "Feed-forward block"),
    ("rope", re.compile(r"rotary|rope"), "Rotary position embedding"),
    ("moe", re.compile(r"moe|expert|router|sparsemlp|topk|gate$"), "Mixture of experts"),
    (
        "layer",
        re.compile(r"decoderlayer|encoderlayer|transformerblock|(?<!attention)block$|layer$"),
        "Layer",
    ),
    ("attention", re.compile(r"attention|attn"), "Attention"),
    ("ssm", re.compile(r"mamba|(?<!le)ssm|mixer|rwkv|rglru|deltanet|retention"), "State-space mixer"),
    ("norm", re.compile(r"norm"), "Normalization"),
    ("mlp", re.compile(r"mlp|feedforward|ffn|intermediate|glu"), "Feed-forward block"),
    ("conv", re.compile(r"conv|resnet|stem|patch"), "Convolution block"),
    ("embedding", re.compile(r"embed|position|timestep"), "Embedding"),
    ("head", re.compile(r"head|pool|classif|project"), "Projection head"),
)


@dataclass(frozen=True)
class ProblemText:
    """Texts of a problem's definition."""

    name: str
    op_type: str
    description: str
    tags: tuple[str, ...]


def kind_of(class_name: str, operations: Sequence[str]) -> tuple[str, str]:
    """Kind of a module and its words, from the name of its class; an attention or norm alone from its operators."""
    for kind, pattern, words in _KINDS:
        if pattern.search(class_name.lower()):
            return kind, words
    if "scaled_dot_product_attention" in operations:
        return "attention", "Attention"
    return "block", "Block"


_MODEL = re.compile(r"(Transformer)?([123]D)?(Condition)?(Model)?$")
"""Ends of the names of diffusers' classes, after the name of the model."""


def facts_of(
    architecture: str,
    class_name: str,
    operations: Sequence[str],
    *,
    family: str,
    dtype: str,
    checkpoint: str | None,
    like: str | None,
    share: str | None = None,
) -> ProblemText:
    """Facts of a problem that one module became."""
    kind, words = kind_of(class_name, operations)
    model = _words(_MODEL.sub("", architecture) or architecture)
    name = problem_name(model, _words(class_name))
    most = [operation for operation, _ in Counter(operations).most_common(4)]
    where = f"at the sizes of {checkpoint}" if checkpoint else "at the sizes of the default configuration"
    where += f" ({like})" if like and not checkpoint else ""
    where += f" with {share}" if share else ""
    description = (
        f"{words} of {architecture} ({class_name}) {where}, forward, {dtype}: "
        f"{len(operations)} operations, mostly {', '.join(most)}."
    )
    return ProblemText(name, kind, description, tuple(dict.fromkeys((family, kind, "forward", dtype))))


_LONGEST = 64
_ONE_WORD = {"DiT": "Dit", "SwiGLU": "Swiglu", "GeGLU": "Geglu", "GELU": "Gelu", "UNet": "Unet", "ViT": "Vit",
             "PixArt": "Pixart", "CogVideoX": "Cogvideox", "CogView": "Cogview", "SkyReels": "Skyreels",
             "AuraFlow": "Auraflow", "LongCat": "Longcat", "HunyuanVideo": "Hunyuanvideo"}  # fmt: skip
"""Names in mixed case that are one word."""


def _words(name: str) -> str:
    for mixed, word in _ONE_WORD.items():
        name = name.replace(mixed, word)
    return identifier(name, _LONGEST)


def problem_name(model: str, module: str) -> str:
    """Name of the model and what the module's name adds to it.

    Args:
        model: words of the architecture, joined by underscores.
        module: words of the module's class.
    """
    bare, squeezed = model.replace("_", ""), module.replace("_", "")
    if squeezed == bare:
        return model
    if squeezed.startswith(bare):
        return f"{model}_{_rest(module, len(bare))}"
    own, others = model.split("_"), module.split("_")
    shared = 0
    while shared < min(len(own), len(others) - 1) and own[shared] == others[shared]:
        shared += 1
    return "_".join([*own, *others[shared:]])[:_LONGEST].rstrip("_")


def backward_text(forward: ProblemText, form: str, operations: int) -> ProblemText:
    """Facts of a backward problem.

    Args:
        forward: of the module.
        form: `recompute` or `saved`.
        operations: number of operations that compute.
    """
    how = "with the forward pass computed again" if form == "recompute" else "from what the forward pass saved"
    before, _, after = forward.description.partition(", forward, ")
    dtype = after.partition(":")[0]
    description = f"Gradients of: {before}, {how}, {dtype}: {operations} operations."
    tags = tuple("backward" if tag == "forward" else tag for tag in forward.tags)
    return ProblemText(forward.name, forward.op_type, description, (*tags, form))


def _rest(name: str, letters: int) -> str:
    """The rest of a name after its first `letters` letters, not counting underscores."""
    seen = 0
    for index, letter in enumerate(name):
        if seen == letters:
            return name[index:].strip("_")
        seen += letter != "_"
    return ""
