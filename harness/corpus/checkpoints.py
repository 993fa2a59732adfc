"""The table of checkpoints and shapes, `checkpoints.yaml`: written by hand from public configuration classes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.errors import ConfigurationError
from harness.formats.bounded import load_yaml
from harness.model.base_models import StrictModel

_MAX_BYTES = 4 * 2**20
FloatDtype = Literal["bfloat16", "float16", "float32"]


class ShapeSet(StrictModel):
    """Typical sizes of inputs to a family of models."""

    pairs: tuple[tuple[int, int], ...]
    """(batch, sequence) of problems with both axes."""
    batches: tuple[int, ...]
    """Batch sizes of problems without a sequence axis."""
    text: int = 256
    """Length of the text prompt of images and videos, where it is an axis."""
    text_pairs: tuple[tuple[int, int], ...] = ()
    """(batch, length of the text) of problems without another length."""
    tokens: tuple[int, ...] = ()
    """Sizes of problems whose only axis is the number of tokens; empty: the products of `pairs`."""


class Checkpoint(StrictModel):
    """One architecture and the published checkpoint whose sizes it has."""

    family: str
    library: Literal["transformers", "diffusers"] = "transformers"
    checkpoint: str | None = None
    """Identifier of the checkpoint, for people; it is not downloaded."""
    like: str | None = None
    """Checkpoint that the documentation of the default configuration names."""
    share: str | None = None
    """Split of the checkpoint over several GPUs that makes the sizes those of one GPU."""
    class_name: str | None = None
    """Class of the model; None for the base model of transformers."""
    config: Mapping[str, Any] = Field(default_factory=dict)
    """Values that differ from the default configuration."""
    dtype: FloatDtype | None = None
    """None for the dtype of the family."""
    inputs: Mapping[str, int | str | tuple[int | str, ...]] = Field(default_factory=dict)
    """Argument of the model -> its shape: numbers, `batch`, `sequence` and products such as `4*sequence`. The last
    entry may be a dtype. An argument without brackets is an integer and not a tensor."""


class Family(StrictModel):
    """One family of architectures, which is a suite of problems."""

    shapes: ShapeSet
    dtype: FloatDtype = "bfloat16"


class CheckpointTable(StrictModel):
    """The table of families and architectures."""

    format: Literal[1]
    families: Mapping[str, Family]
    architectures: Mapping[str, Checkpoint]


@cache
def checkpoint_table() -> CheckpointTable:
    """Return the table in the package's `checkpoints.yaml`.

    Raises:
        ConfigurationError: the file does not follow its format.
    """
    where = "harness/corpus/checkpoints.yaml"
    text = (files("harness.corpus") / "checkpoints.yaml").read_text()
    try:
        table = CheckpointTable.model_validate(load_yaml(text, where=where, max_bytes=_MAX_BYTES))
    except ValidationError as error:
        raise ConfigurationError(str(error), where=where) from error
    for name, checkpoint in table.architectures.items():
        if checkpoint.family not in table.families:
            raise ConfigurationError(f"`architectures.{name}.family` is not a family of the table", where=where)
    return table
