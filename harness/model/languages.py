"""The languages of solutions: one row for each. A new language needs a row, a prompt and a loader in the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Language = Literal["cuda", "triton", "cute_dsl", "pytorch", "cuda_cpp", "cpp"]
DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class LanguageFacts:
    """Properties of one language.

    Args:
        suffixes: file name suffixes of the entry point's source.
        runs_on: kinds of devices whose judge accepts the language.
        prompted_on: kinds of devices on which a worker's prompt describes it (`harness/agents/prompts/language_*.md`).
        is_python: the entry point is a Python function, otherwise a function of compiled code.
        exported_as: the language in SOL-ExecBench's solution.json; None if the format has no place for it.
        no_export: the reason for that.
    """

    suffixes: tuple[str, ...]
    runs_on: tuple[DeviceKind, ...]
    prompted_on: tuple[DeviceKind, ...] = ()
    is_python: bool = False
    exported_as: str | None = None
    no_export: str = ""


# The order is that of prompts and of lists in messages.
LANGUAGES: Mapping[Language, LanguageFacts] = MappingProxyType(
    {
        "cpp": LanguageFacts(
            (".cpp", ".cc", ".cxx", ".c"), ("cpu",), ("cpu",),
            no_export="a C++ function for the CPU has no place there: SOL-ExecBench runs on GPUs",
        ),
        "cuda": LanguageFacts(
            (".cu",), ("cuda",), ("cuda",),
            no_export="a sealed CUDA kernel with a launch plan has no host function to call: write it as a `cuda_cpp` "
            "extension",
        ),
        "triton": LanguageFacts((".py",), ("cuda",), ("cuda",), is_python=True, exported_as="triton"),
        "pytorch": LanguageFacts((".py",), ("cpu", "cuda"), ("cpu",), is_python=True, exported_as="pytorch"),
        "cute_dsl": LanguageFacts((".py",), ("cuda",), ("cuda",), is_python=True, exported_as="cute_dsl"),
        "cuda_cpp": LanguageFacts((".cu", ".cpp", ".cc", ".cxx"), ("cuda",), exported_as="cuda_cpp"),
    }
)  # fmt: skip
PYTHON_LANGUAGES: frozenset[Language] = frozenset(name for name, facts in LANGUAGES.items() if facts.is_python)


def languages_on(kind: DeviceKind) -> tuple[Language, ...]:
    """Return the languages that the judge of a kind of device accepts."""
    return tuple(name for name, facts in LANGUAGES.items() if kind in facts.runs_on)


def prompted_languages(kind: DeviceKind) -> tuple[Language, ...]:
    """Return the languages that a worker's prompt describes for a kind of device."""
    return tuple(name for name, facts in LANGUAGES.items() if kind in facts.prompted_on)
