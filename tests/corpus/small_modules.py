"""Modules as a user writes them, and factories that `harness problems extract` calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import nn

Arguments = dict[str, torch.Tensor]


class ScaledNorm(nn.Module):
    """Root mean square normalization."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden


class GatedBlock(nn.Module):
    """A normalized, gated feed-forward block with a residual."""

    def __init__(self, width: int = 24, inner: int = 40, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = ScaledNorm(width, eps)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width)

    def forward(self, hidden: torch.Tensor, ignored: torch.Tensor | None = None) -> torch.Tensor:
        del ignored
        residual = hidden
        normed = self.norm(hidden)
        activated = F.silu(self.gate(normed)) * self.up(normed)
        output: torch.Tensor = residual + self.down(activated)
        return output


class Rotated(nn.Module):
    """A rotation with two outputs, slices, and sizes in the code."""

    def forward(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, sequence, width = states.shape
        heads = states.view(batch, sequence, 2, width // 2).transpose(1, 2)
        first, second = heads.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1) * sin
        turned = heads * cos + rotated
        return turned, turned.float().softmax(dim=-1)


class SelfAttention(nn.Module):
    """Attention that returns its probabilities beside its result, as eager implementations do."""

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = states.view(*states.shape[:2], 2, -1).transpose(1, 2)
        scores = heads @ heads.transpose(2, 3) * 0.25
        probabilities = scores.softmax(dim=-1, dtype=torch.float32).to(states.dtype)
        result = F.dropout(probabilities, training=False) @ heads
        return result.transpose(1, 2).flatten(2), probabilities, scores.amax(dim=-1)


class MaskedAttention(nn.Module):
    """Attention with a mask of ones and zeros, from which the module computes what it adds to the scores."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = (1.0 - attention_mask.unsqueeze(1)) * -1e30
        return (query @ key.transpose(1, 2) * 0.25 + hidden).softmax(dim=-1) @ key


class ConvolutionNorm(nn.Module):
    """A convolution, a batch norm in evaluation, and an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, bias=False)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return F.relu_(self.norm(self.convolution(image)))


class OnlyOneLength(nn.Module):
    """A module that compares the sequence length, so that its graph is correct for one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        factor = 2.0 if hidden.shape[1] < 40 else 3.0
        return (hidden * self.weight * factor).tanh().exp()


class WholeModel(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def gated_block(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    return GatedBlock(), {"hidden": torch.empty(batch, sequence, 24), "ignored": torch.empty(batch, 3)}


def rotated(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    cos, sin = torch.empty(sequence, 8), torch.empty(sequence, 8)
    return Rotated(), {"states": torch.empty(batch, sequence, 16), "cos": cos, "sin": sin}


def self_attention(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    return SelfAttention(), {"states": torch.empty(batch, sequence, 16)}


def masked_attention(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    query, key = torch.empty(batch, sequence, 16), torch.empty(batch, sequence, 16)
    return MaskedAttention(), {"query": query, "key": key, "attention_mask": torch.empty(batch, sequence)}


def convolution_norm(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    del sequence
    return ConvolutionNorm(), {"image": torch.empty(batch, 3, 8, 8)}


def only_one_length(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    return OnlyOneLength(), {"hidden": torch.empty(batch, sequence, 8)}


def whole_model(batch: int, sequence: int) -> tuple[nn.Module, Arguments]:
    """Return a model of two blocks that differ in sizes and a constant only, and a block of another kind."""
    model = WholeModel(GatedBlock(), GatedBlock(24, 56, 1e-5), nn.Linear(24, 24))
    return model, {"hidden": torch.empty(batch, sequence, 24)}


def no_pair(batch: int, sequence: int) -> nn.Module:
    del batch, sequence
    return GatedBlock()
