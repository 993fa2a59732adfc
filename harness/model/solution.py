"""Solutions: `solution.yaml` (docs/formats.md). The reader is `harness.formats.solutions`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness.model.base_models import StrictModel
from harness.model.languages import Language

ParamValue = int | float | str | bool
Binding = Literal["tvm_ffi", "torch"]
"""Interface between Python and a compiled function: the ABI of TVM-FFI, or a torch extension."""


class CompileOptions(StrictModel):
    """Compiler flags. `cuda_flags` and `link_flags` are for `cuda_cpp`, which also runs nvcc and a linker."""

    flags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


class SolutionSpec(StrictModel):
    """solution.yaml."""

    language: Language
    entry: str
    """`file::function`; for cuda the function is a kernel, for cpp a C function."""
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


class Solution(StrictModel):
    """A solution directory, read and checked."""

    directory: Path
    spec: SolutionSpec
    sources: tuple[str, ...]
    """Paths of all files except solution.yaml, relative to the directory and sorted."""


def macros(constants: Mapping[str, int], params: Mapping[str, ParamValue]) -> list[str]:
    """Return the `-D` flags of compiled code: `AXIS_name` for every constant axis, and the solution's params.

    Args:
        params: the solution's params; booleans become 0 and 1.
    """
    axes = [f"-DAXIS_{name}={value}" for name, value in constants.items()]
    return axes + [f"-D{name}={int(value) if isinstance(value, bool) else value}" for name, value in params.items()]
