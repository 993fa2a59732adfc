"""A solution directory of ours as SOL-ExecBench's solution.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from harness.errors import FormatError
from harness.model.solution import PYTHON_LANGUAGES, ParamValue, Solution, macros

_FAMILY = {"pytorch": "pytorch", "triton": "triton", "cute_dsl": "cute_dsl", "cuda_cpp": "cuda_cpp"}
_WHY_NOT = {
    "cuda": "a sealed CUDA kernel with a launch plan has no host function to call: write it as a `cuda_cpp` extension",
    "cpp": "a C++ function for the CPU has no place there: SOL-ExecBench runs on GPUs",
}


def their_solution(
    solution: Solution,
    *,
    name: str,
    definition: str,
    author: str,
    description: str,
    target: str,
    constants: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The document that solution.json holds.

    Constants of `params` are settled in the sources or the compiler's flags, since the format has none; so are the
    problem's constant axes (`constants`), which compiled code is given as macros here.

    Raises:
        FormatError: a language that the format has no word for.
    """
    spec = solution.spec
    language = _FAMILY.get(spec.language)
    if language is None:
        raise FormatError(f"language {spec.language} cannot be exported: {_WHY_NOT[spec.language]}")
    sources = {name: (solution.directory / name).read_text() for name in solution.sources}
    options: dict[str, Any] = {}
    if spec.language in PYTHON_LANGUAGES:
        sources[spec.file] += _settled(spec.function, spec.params)
    else:
        defined = macros(constants, spec.params)
        options["compile_options"] = {
            "cflags": [*spec.compile.flags, *defined],
            "cuda_cflags": [*spec.compile.cuda_flags, *defined],
            "ld_flags": list(spec.compile.link_flags),
        }
        options["binding"] = spec.binding or "tvm_ffi"
    return {
        "name": name,
        "definition": definition,
        "author": author,
        "description": description,
        "spec": {
            "languages": [language],
            "target_hardware": [target if target == "cpu" else target.upper()],
            "entry_point": spec.entry,
            "dependencies": [],
            "destination_passing_style": spec.destination_passing,
            **options,
        },
        "sources": [{"path": path, "content": text} for path, text in sorted(sources.items())],
    }


def _settled(function: str, params: Mapping[str, ParamValue]) -> str:
    """Python that binds the constants to the entry point, under its own name."""
    if not params:
        return ""
    given = ", ".join(f"{name}={value!r}" for name, value in params.items())
    return (
        "\n\n# What the search settled; without it the entry point takes these as keyword arguments.\n"
        f"_searched_{function} = {function}\n\n\n"
        f"def {function}(*arguments):\n"
        f"    return _searched_{function}(*arguments, {given})\n"
    )
