"""Export of a solution directory as SOL-ExecBench's solution.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from harness.errors import FormatError
from harness.model.languages import LANGUAGES, PYTHON_LANGUAGES
from harness.model.solution import ParamValue, Solution, macros


def solution_document(
    solution: Solution,
    *,
    name: str,
    definition: str,
    author: str,
    description: str,
    target: str,
    constants: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the document of solution.json.

    The format has no params and no macros of axes. So the values of `params` become a part of the sources or of the
    compiler's flags, and the constant axes become macros in the flags of compiled code.

    Args:
        solution: the solution.
        name: the solution's name in the document.
        definition: name of the problem's definition.
        author: the solution's author in the document.
        description: the solution's description in the document.
        target: device class, such as `h200`; written in upper case, except `cpu`.
        constants: sizes of the problem's constant axes.

    Raises:
        FormatError: the format does not support the solution's language.
    """
    spec = solution.spec
    language = LANGUAGES[spec.language].exported_as
    if language is None:
        raise FormatError(f"language {spec.language} cannot be exported: {LANGUAGES[spec.language].no_export}")
    sources = {name: (solution.directory / name).read_text() for name in solution.sources}
    options: dict[str, Any] = {}
    if spec.language in PYTHON_LANGUAGES:
        sources[spec.file] += _wrapper_with_params(spec.function, spec.params)
    else:
        macro_flags = macros(constants, spec.params)
        options["compile_options"] = {
            "cflags": [*spec.compile.flags, *macro_flags],
            "cuda_cflags": [*spec.compile.cuda_flags, *macro_flags],
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


def _wrapper_with_params(function: str, params: Mapping[str, ParamValue]) -> str:
    """Return Python source that replaces the entry point by one with the values of the params."""
    if not params:
        return ""
    keywords = ", ".join(f"{name}={value!r}" for name, value in params.items())
    return (
        "\n\n# The values of the solution's params, which are keyword arguments of the original entry point.\n"
        f"_searched_{function} = {function}\n\n\n"
        f"def {function}(*arguments):\n"
        f"    return _searched_{function}(*arguments, {keywords})\n"
    )
