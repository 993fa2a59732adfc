"""Chains of two matrix products: `(A B) C` equals `A (B C)`, and a kernel can compute the cheaper one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.sol.arguments import OperatorCall
from harness.sol.element_regions import storage_of
from harness.sol.steps import Step

_SCALING = {"mul", "div", "mul_", "div_", "_to_copy", "clone", "neg"}
"""Operators whose result is still a product if all other operands are single numbers."""


@dataclass(frozen=True)
class _Product:
    """`rows x inner` times `inner x columns`, in a batch."""

    step: Step
    batch: int
    rows: int
    inner: int
    columns: int


class ProductChains:
    """The products of one run by the storage of their results, including cast and scaled results."""

    def __init__(self) -> None:
        self._of: dict[int, _Product] = {}

    def add_scaled(self, call: OperatorCall) -> None:
        """Add the result of an operator that only casts or scales a product."""
        if call.name in _SCALING and all(tensor.numel() == 1 for tensor in call.operands[1:]):
            product = self._of.get(storage_of(call.operands[0]))
            if product is not None and call.results[0].numel() == call.operands[0].numel():
                self._of[storage_of(call.results[0])] = product

    def add(self, step: Step, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        """Add a product. If an operand is an earlier product, both get the operations of the cheaper order.

        Args:
            first: first operand, of shape [..., rows, inner].
            second: second operand, of shape [..., inner, columns].
            out: result, of shape [..., rows, columns].
        """
        rows, inner, columns = first.shape[-2], first.shape[-1], second.shape[-1]
        batch = out.numel() // max(1, rows * columns)
        self._of[storage_of(out)] = _Product(step, batch, rows, inner, columns)
        for operand, is_first in ((first, True), (second, False)):
            earlier = self._of.get(storage_of(operand))
            if earlier is None or operand.numel() != earlier.batch * earlier.rows * earlier.columns:
                continue
            outer, last = operand.shape[-2:]
            if (outer, last) not in {(earlier.rows, earlier.columns), (earlier.columns, earlier.rows)}:
                continue
            # operand = outer x middle times middle x last
            middle = earlier.inner
            if is_first:
                regrouped = (middle * last * columns, outer * middle * columns)
            else:
                regrouped = (rows * outer * middle, rows * middle * last)
            if 2.0 * batch * sum(regrouped) < earlier.step.product_operations + step.product_operations:
                earlier.step.product_operations = 2.0 * batch * regrouped[0]
                step.product_operations = 2.0 * batch * regrouped[1]
