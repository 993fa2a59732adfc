"""Source frames of graph nodes: the statement of the model's code that ran an operation, and its targets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n(?:\s+(?P<code>[^\n]*))?')
_FOREIGN = re.compile(
    r"/torch/|/harness/corpus/|/utils/generic\.py|/utils/output_capturing\.py|transformers/activations\.py|"
    r"/integrations/(?!sdpa)|diffusers/models/activations\.py|/models/attention_dispatch\.py|/modeling_layers\.py"
)
"""Frames of libraries between a model's statement and the operator."""
_TARGETS = re.compile(r"^(?P<targets>[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)(?::[^=]+)?\s*(?:[-+*/]|)=(?!=)")


@dataclass(frozen=True)
class SourceFrame:
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
def parse_frames(stack_trace: str) -> tuple[SourceFrame, ...]:
    """Return the frames of the model's code in a stack trace, outermost first."""
    return tuple(
        SourceFrame(match["file"], int(match["line"]), match["function"], match["code"] or "")
        for match in _FRAME.finditer(stack_trace)
        if not _FOREIGN.search(match["file"])
    )


def frames_of(node: fx.Node) -> tuple[SourceFrame, ...]:
    """Return the frames of the model's code that created a node; empty if they are unknown."""
    return parse_frames(node.meta.get("stack_trace") or "")


def module_path(node: fx.Node) -> tuple[str, ...]:
    """Return the path of a node's innermost module, relative to the exported module."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ()
    path = str(list(stack.values())[-1][0])
    return tuple(word for word in path.removeprefix("module").split(".") if word)
