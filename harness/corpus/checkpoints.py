"""The table of checkpoints and shapes, `checkpoints.yaml`: written by hand from public configuration classes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ConfigurationError
from harness.formats.bounded import load_yaml

_FORMAT = 1
_MAX_BYTES = 4 * 2**20
FloatDtype = Literal["bfloat16", "float16", "float32"]


class _TablePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShapeSet(_TablePart):
    """Sizes that a family of models is used with."""

    pairs: tuple[tuple[int, int], ...]
    """(batch, sequence) of problems with both axes."""
    batches: tuple[int, ...]
    """Batch sizes of problems without a sequence axis."""
    text: int = 256
    """Length of the text that images and videos are made from, where it is an axis."""
    text_pairs: tuple[tuple[int, int], ...] = ()
    """(batch, length of the text) of problems without another length."""
    tokens: tuple[int, ...] = ()
    """Sizes of problems whose only axis is the number of tokens; by default the products of `pairs`."""


class Checkpoint(_TablePart):
    """One architecture and the published checkpoint that its sizes are of."""

    family: str
    library: Literal["transformers", "diffusers"] = "transformers"
    checkpoint: str | None = None
    """Identifier of the checkpoint, for people; nothing is downloaded."""
    like: str | None = None
    """Checkpoint that the documentation of the default configuration names."""
    share: str | None = None
    """Split of the checkpoint over several GPUs that makes the sizes those of one GPU."""
    class_name: str | None = None
    """Class of the model; of transformers the base model by default."""
    config: Mapping[str, Any] = Field(default_factory=dict)
    """Values that differ from the default configuration."""
    dtype: FloatDtype | None = None
    """By default the family's."""
    inputs: Mapping[str, int | str | tuple[int | str, ...]] = Field(default_factory=dict)
    """Argument of the model -> its shape, of numbers, `batch`, `sequence` and products such as `4*sequence`.
    The last entry may be a dtype. Without brackets it is a plain size."""


class Family(_TablePart):
    """One family of architectures, which is a suite of problems."""

    shapes: ShapeSet
    dtype: FloatDtype = "bfloat16"


class CheckpointTable(_TablePart):
    """The whole table."""

    format: Literal[1]
    families: Mapping[str, Family]
    architectures: Mapping[str, Checkpoint]


@cache
def checkpoint_table() -> CheckpointTable:
    """Read the table that ships with the package.

    Raises:
        ConfigurationError: it does not follow its format.
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
