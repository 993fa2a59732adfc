"""Name, kind, tags and description of a problem."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.corpus.architectures import Architecture
from harness.corpus.variable_names import identifier

_KINDS = (
    # The last word of a class names its kind; the first words often name the model.
    ("norm", re.compile(r"norm$"), "Normalization"),
    ("attention", re.compile(r"(attention|attn)$"), "Attention"),
    ("mlp", re.compile(r"(?<!sparse)(mlp|feedforward|ffn)$"), "Feed-forward block"),
    ("rope", re.compile(r"rotary|rope"), "Rotary position embedding"),
    ("moe", re.compile(r"moe|expert|router|sparsemlp|topk|gate$"), "Mixture of experts"),
    ("layer", re.compile(r"decoderlayer|encoderlayer|transformerblock|(?<!attention)block$|layer$"), "Layer"),
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
    """Return a module's kind and its words for descriptions.

    Args:
        class_name: the module's class, whose name determines the kind.
        operations: the module's operators; they identify an attention if the name determines no kind.
    """
    for kind, pattern, words in _KINDS:
        if pattern.search(class_name.lower()):
            return kind, words
    if "scaled_dot_product_attention" in operations:
        return "attention", "Attention"
    return "block", "Block"


_MODEL = re.compile(r"(Transformer)?([123]D)?(Condition)?(Model)?$")
"""Suffixes of the names of diffusers' classes, after the name of the model."""


def facts_of(architecture: Architecture, class_name: str, operations: Sequence[str], dtype: str) -> ProblemText:
    """Return the texts of a forward problem's definition.

    Args:
        architecture: the model, whose family is a tag.
        operations: operators of the module, in order.
        dtype: least precise dtype of the problem, which is a tag.
    """
    checkpoint = architecture.checkpoint
    kind, words = kind_of(class_name, operations)
    model = _words(_MODEL.sub("", architecture.name) or architecture.name)
    frequent = [operation for operation, _ in Counter(operations).most_common(4)]
    where = f"at the sizes of {checkpoint.checkpoint or 'the default configuration'}"
    where += f" ({checkpoint.like})" if checkpoint.like and not checkpoint.checkpoint else ""
    where += f" with {checkpoint.share}" if checkpoint.share else ""
    description = (
        f"{words} of {architecture.name} ({class_name}) {where}, forward, {dtype}: "
        f"{len(operations)} operations, mostly {', '.join(frequent)}."
    )
    tags = tuple(dict.fromkeys((checkpoint.family, kind, "forward", dtype)))
    return ProblemText(problem_name(model, _words(class_name)), kind, description, tags)


_LONGEST = 64
_ONE_WORD = {"DiT": "Dit", "SwiGLU": "Swiglu", "GeGLU": "Geglu", "GELU": "Gelu", "UNet": "Unet", "ViT": "Vit",
             "PixArt": "Pixart", "CogVideoX": "Cogvideox", "CogView": "Cogview", "SkyReels": "Skyreels",
             "AuraFlow": "Auraflow", "LongCat": "Longcat", "HunyuanVideo": "Hunyuanvideo"}  # fmt: skip
"""Names in mixed case -> spelling that keeps them one word."""


def _words(name: str) -> str:
    for mixed, word in _ONE_WORD.items():
        name = name.replace(mixed, word)
    return identifier(name, _LONGEST)


def problem_name(model: str, module: str) -> str:
    """Return the name of the model followed by the words of the module that it does not contain.

    Args:
        model: words of the architecture, joined by underscores.
    """
    bare = model.replace("_", "")
    if module.replace("_", "") == bare:
        return model
    if same_letters := re.match("_*".join(bare), module):
        return f"{model}_{module[same_letters.end() :].strip('_')}"
    model_words, module_words = model.split("_"), module.split("_")
    pairs = zip(model_words, module_words[:-1], strict=False)
    shared = len(list(itertools.takewhile(lambda words: words[0] == words[1], pairs)))
    return "_".join([*model_words, *module_words[shared:]])[:_LONGEST].rstrip("_")


def backward_text(forward: ProblemText, form: str, operations: int) -> ProblemText:
    """Return the texts of a backward problem's definition.

    Args:
        form: `recompute` or `saved`.
        operations: number of operators with arithmetic.
    """
    forward_pass = "with the forward pass computed again" if form == "recompute" else "from what the forward pass saved"
    before, _, after = forward.description.partition(", forward, ")
    dtype = after.partition(":")[0]
    description = f"Gradients of: {before}, {forward_pass}, {dtype}: {operations} operations."
    tags = tuple("backward" if tag == "forward" else tag for tag in forward.tags)
    return ProblemText(forward.name, forward.op_type, description, (*tags, form))
