"""The baselines that a problem and a device have: those of every measurement, and those of `judge.more_baselines`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence

from harness.formats.library_baselines import LibraryBaseline, library_baselines
from harness.judge.runners import BaselineFailed
from harness.model.judging import LIBRARY_PREFIX, MoreBaseline, Variant
from harness.model.problem import Problem
from harness.sol.hardware import CPU

_ON_GPUS_ONLY = frozenset({"sdpa_efficient", "sdpa_cudnn", "cublaslt"})
"""PyTorch has two backends of `scaled_dot_product_attention` on a CPU: math and flash."""
_ATTENTION = "scaled_dot_product_attention"
_PRODUCT = re.compile(r"\b(linear|matmul|mm|bmm|addmm|baddbmm|einsum)\b|\w @ \w")
_CONVOLUTION = re.compile(r"\b(conv[123]d|conv_transpose[123]d|convolution)\b")


def can_autotune(problem: Problem) -> bool:
    """Return true if the reference has products of matrices or convolutions, for which max-autotune has templates."""
    reference = problem.definition.reference
    return bool(_PRODUCT.search(reference) or _CONVOLUTION.search(reference))


def standard_variants(problem: Problem, target: str) -> tuple[Variant, ...]:
    """Return the forms of the reference that every measurement of a problem includes on a target.

    On a GPU, compiled and eager calls are also captured as CUDA graphs, unless an input is a Python scalar, whose value
    a graph cannot read again.

    Args:
        problem: the problem.
        target: such as `cpu` or `h200`.
    """
    if target == CPU:
        return ("eager", "compile")
    has_scalars = any(spec.shape is None for spec in problem.definition.inputs.values())
    graphs: tuple[Variant, ...] = () if has_scalars else ("compile_graph", "cuda_graph")
    tuned: tuple[Variant, ...] = ("max_autotune",) if can_autotune(problem) else ()
    return ("eager", "compile", *graphs, *tuned)


def requested_variants(problem: Problem, target: str, requested: Sequence[MoreBaseline]) -> tuple[Variant, ...]:
    """Return those of the requested variants that a problem has on a target.

    A backend of attention exists where the reference calls `scaled_dot_product_attention`, cuBLASLt where it has a
    product of matrices, and `library` stands for every file of `baselines/`.

    Args:
        problem: the problem.
        target: such as `cpu` or `h200`.
        requested: `judge.more_baselines` of the configuration.
    """
    reference = problem.definition.reference
    variants: list[Variant] = []
    for name in dict.fromkeys(requested):
        if name == "library":
            libraries, _ = library_baselines(problem.directory, problem.definition)
            variants += [baseline.variant for baseline in libraries]
        elif (
            not (target == CPU and name in _ON_GPUS_ONLY)
            and (not name.startswith("sdpa_") or _ATTENTION in reference)
            and (name != "cublaslt" or _PRODUCT.search(reference))
        ):
            variants.append(name)
    return tuple(variants)


def is_library(variant: Variant) -> bool:
    """Return true for a file of `baselines/`."""
    return variant.startswith(LIBRARY_PREFIX)


def find_library_baseline(problem: Problem, variant: Variant) -> LibraryBaseline:
    """Return a problem's library baseline by the name of its variant.

    Args:
        problem: the problem.
        variant: `library_NAME`.

    Raises:
        BaselineFailed: the problem has no such file, or a module that it imports is not installed.
    """
    libraries, _ = library_baselines(problem.directory, problem.definition)
    for baseline in libraries:
        if baseline.variant == variant:
            missing = [module for module in baseline.modules if importlib.util.find_spec(module) is None]
            if missing:
                raise BaselineFailed(f"baselines/{baseline.file.name} needs {', '.join(missing)}: not installed")
            return baseline
    raise BaselineFailed(f"baselines/{variant.removeprefix(LIBRARY_PREFIX)}.py does not exist or is malformed")
