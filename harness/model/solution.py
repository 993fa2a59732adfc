"""Solutions: `solution.yaml` (docs/formats.md). The reader is `harness.store.solutions`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Language = Literal["cuda", "triton", "cute_dsl", "pytorch", "cuda_cpp", "cpp"]
PYTHON_LANGUAGES: frozenset[Language] = frozenset({"triton", "cute_dsl", "pytorch"})
"""Languages whose entry is a Python function; the others' entry is a function of compiled code."""
ParamValue = int | float | str | bool
Expression = Annotated[int, Field(ge=0)] | str
"""A non-negative integer, or an expression over axes, params and scalars."""


class _Ours(BaseModel):
    """A file format of ours: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CompileOptions(_Ours):
    """How to compile. `cuda_flags` and `link_flags` are for `cuda_cpp`, which has a compiler each."""

    flags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


class LaunchStep(_Ours):
    """One kernel launch of a `cuda` plan.

    `args` are names of inputs and outputs, or one of `{i32: expr}`, `{i64: expr}`, `{f32: expr}`, `{f64: expr}`,
    `{workspace: name}`.
    """

    kernel: str
    grid: tuple[Expression, ...] = Field(min_length=1, max_length=3)
    block: tuple[Expression, ...] = Field(min_length=1, max_length=3)
    shared_bytes: Expression = 0
    args: tuple[str | dict[str, Expression], ...] = ()


class WorkspaceBuffer(_Ours):
    """Scratch memory of a `cuda` plan; `init` is the byte it is filled with before each call, null: left as it is."""

    bytes: Expression
    init: int | None = Field(default=None, ge=0, le=255)


class SolutionSpec(_Ours):
    """solution.yaml."""

    language: Language
    entry: str
    """`file::function`, for cuda and cpp the kernel or C function."""
    destination_passing: bool = True
    compile: CompileOptions = CompileOptions()
    launch: tuple[LaunchStep, ...] = ()
    workspaces: dict[str, WorkspaceBuffer] = Field(default_factory=dict)
    params: dict[str, ParamValue] = Field(default_factory=dict)
    tune: dict[str, tuple[ParamValue, ...]] = Field(default_factory=dict)
    notes: str | None = None

    @property
    def file(self) -> str:
        """The entry point's source file."""
        return self.entry.partition("::")[0]

    @property
    def function(self) -> str:
        """The entry point's function."""
        return self.entry.partition("::")[2]


class Solution(BaseModel):
    """A solution directory, read and checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Path
    spec: SolutionSpec
    sources: tuple[str, ...]
    """Every file of the solution but solution.yaml, relative, sorted."""
