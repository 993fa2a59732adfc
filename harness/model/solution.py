"""Solutions: `solution.yaml` (docs/formats.md). The reader is `harness.formats.solutions`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Language = Literal["cuda", "triton", "cute_dsl", "pytorch", "cuda_cpp", "cpp"]
PYTHON_LANGUAGES: frozenset[Language] = frozenset({"triton", "cute_dsl", "pytorch"})
"""Languages whose entry is a Python function; the others' entry is a function of compiled code."""
ParamValue = int | float | str | bool
Binding = Literal["tvm_ffi", "torch"]
"""How an extension's function is reached from Python: through TVM-FFI's ABI, or as a torch extension's."""


class _Ours(BaseModel):
    """A file format of ours: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CompileOptions(_Ours):
    """How to compile. `cuda_flags` and `link_flags` are for `cuda_cpp`, which has a compiler each."""

    flags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


class SolutionSpec(_Ours):
    """solution.yaml."""

    language: Language
    entry: str
    """`file::function`, for cuda and cpp the kernel or C function."""
    binding: Binding | None = None
    """Language cuda_cpp only; None is `tvm_ffi`."""
    destination_passing: bool = True
    compile: CompileOptions = CompileOptions()
    launch: tuple[dict[str, Any], ...] = ()
    """Language cuda only: the plan, in order."""
    workspaces: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Language cuda only: the plan's scratch memory."""
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


def macros(constants: Mapping[str, int], params: Mapping[str, ParamValue]) -> list[str]:
    """What compiled code is given as `-D` flags: `AXIS_name` for every constant axis, and the solution's params."""
    axes = [f"-DAXIS_{name}={value}" for name, value in constants.items()]
    return axes + [f"-D{name}={int(value) if isinstance(value, bool) else value}" for name, value in params.items()]
