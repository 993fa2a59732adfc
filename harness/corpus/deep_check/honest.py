"""Honest implementations of a problem, which its tolerance has to accept.

- `float32 inside`: everything between inputs and outputs in float32, rounded once, as a fused kernel computes.
- `another order`: in the stored dtypes, with sums in two halves, attention whose probabilities are rounded to the
  stored dtype and divided at the end, and normalisations in float32 from the mean and the mean of squares.
- `library NAME`: each file of `baselines/` that needs nothing but PyTorch, which can be run on the CPU.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from harness.corpus.deep_check.small_judge import Outputs, OutputsOf
from harness.corpus.deep_check.torch_calls import Function, InterceptedCalls
from harness.formats.library_baselines import LibraryBaseline, library_baselines
from harness.judge.precision import outputs_in
from harness.judge.reference import Reference, Value, by_name
from harness.model.problem import Problem
from harness.sol.problem_tensors import torch_dtype

_RUNS_ON_CPUS = frozenset({"torch", *sys.stdlib_module_names})


def honest_implementations(problem: Problem, reference: Reference) -> dict[str, OutputsOf]:
    """Return correct implementations of a problem by name, which its tolerance must accept.

    Args:
        problem: the problem, with the library baselines that run on a CPU.
    """
    libraries, _ = library_baselines(problem.directory, problem.definition)
    return {
        "float32 inside": lambda inputs: _in_float32(reference, inputs),
        "another order": lambda inputs: _in_another_order(reference, inputs),
    } | {
        f"library {library.name}": _library(library, reference)
        for library in libraries
        if _RUNS_ON_CPUS.issuperset(library.modules)
    }


def _library(library: LibraryBaseline, reference: Reference) -> OutputsOf:
    names: dict[str, Any] = {}
    exec(compile(library.source, str(library.file), "exec"), names)  # noqa: S102 - as trusted as the reference

    return lambda inputs: _outputs(names["run"], reference, inputs)


def _outputs(run: Function, reference: Reference, inputs: Sequence[Value]) -> Outputs:
    arguments = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    with torch.no_grad():
        returned = run(*arguments)
    return by_name(returned, reference.definition, arguments)


def _in_float32(reference: Reference, inputs: Sequence[Value]) -> Outputs:
    outputs = outputs_in(torch.float32, reference, inputs)
    return {name: value.to(torch_dtype(reference.definition.outputs[name].dtype)) for name, value in outputs.items()}


def _in_another_order(reference: Reference, inputs: Sequence[Value]) -> Outputs:
    with InterceptedCalls(_call_in_another_order):
        return _outputs(reference.run, reference, inputs)


def _call_in_another_order(func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as torch returns
    """Call an implementation that sums in another order than a function of torch, or the function if there is none."""
    replacement = _REPLACEMENTS.get(getattr(func, "__name__", ""))
    returned = replacement(*args, **kwargs) if replacement is not None else None
    return func(*args, **kwargs) if returned is None else returned


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return the product, computed as two halves of the inner dimension whose results are added in float32."""
    if not _are_floats(a, b) or a.dim() < 2 or b.dim() < 2 or a.shape[-1] < 2:
        return None
    return _halves(a, b).to(a.dtype)


def _halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    half = a.shape[-1] // 2
    a, b = a.float(), b.float()
    return torch.matmul(a[..., half:], b[..., half:, :]) + torch.matmul(a[..., :half], b[..., :half, :])


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    if not _are_floats(x, weight) or x.dim() < 2 or x.shape[-1] < 2:
        return None
    product = _halves(x, weight.t())
    return (product if bias is None else product + bias.float()).to(x.dtype)


def _addmm(added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **factors: Any) -> torch.Tensor | None:  # noqa: ANN401
    if factors or not _are_floats(a, b) or a.shape[-1] < 2:
        return None
    return (_halves(a, b) + added.float()).to(a.dtype)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    """Compute attention like flash kernels: scores in float32, probabilities in the stored dtype, division last."""
    if dropout_p:
        return None
    dtype = q.dtype
    if enable_gqa:
        k, v = (value.repeat_interleave(q.shape[-3] // value.shape[-3], dim=-3) for value in (k, v))
    scores = _halves(q, k.transpose(-1, -2)) * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        causal_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~causal_mask, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.float()
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    total = weights.sum(dim=-1, keepdim=True)
    return (torch.matmul(weights.to(dtype).float(), v.float()) / total).to(dtype)


def _layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalise with the mean and the mean of squares, in one pass."""
    dims = tuple(range(-len(normalized_shape), 0))
    wide = x.float()
    mean = wide.mean(dims, keepdim=True)
    variance = (wide.square().mean(dims, keepdim=True) - mean.square()).clamp_min(0.0)
    result = (wide - mean) * torch.rsqrt(variance + eps)
    result = result if weight is None else result * weight.float()
    return (result if bias is None else result + bias.float()).to(x.dtype)


def _reversed(func: Function, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:  # noqa: ANN401
    """Return the same reduction over the elements in reverse order; None to use torch's own."""
    dims = kwargs.get("dim", args[0] if args else None)
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not isinstance(dims, int | list | tuple):
        return None
    flipped = x.flip([dims] if isinstance(dims, int) else list(dims))
    return func(flipped, *args, **kwargs)  # type: ignore[no-any-return]


_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


def _are_floats(*values: object) -> bool:
    return all(isinstance(value, torch.Tensor) and value.dtype in _FLOATS for value in values)


_REPLACEMENTS: dict[str, Callable[..., torch.Tensor | None]] = {
    "linear": _linear,
    "matmul": _product,
    "__matmul__": _product,
    "mm": _product,
    "bmm": _product,
    "addmm": _addmm,
    F.scaled_dot_product_attention.__name__: _attention,
    "layer_norm": _layer_norm,
    "sum": functools.partial(_reversed, torch.sum),
    "mean": functools.partial(_reversed, torch.mean),
}
