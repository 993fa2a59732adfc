"""One workload's expected outputs and inputs, as the rounds use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.judge.inputs import InputSource
from harness.judge.reference import Reference, Value
from harness.judge.rounds import Outcome
from harness.model.problem import Workload
from harness.model.verdict import Verdict


@dataclass(frozen=True)
class WorkloadSets:
    """Inputs of one workload."""

    source: InputSource
    workload: Workload

    def refill(self, into: Mapping[str, torch.Tensor]) -> None:
        """Fresh random inputs."""
        self.source.refill(self.workload, into)

    def stress(self) -> Sequence[tuple[str, Mapping[str, Value]]]:
        """Awkward inputs."""
        return ()


@dataclass(frozen=True)
class WorkloadCheck:
    """The reference and the tolerance."""

    reference: Reference
    workload: Workload

    def expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """The reference's outputs."""
        return self.reference.outputs(inputs)

    def check(
        self, inputs: Sequence[Value], expected: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
    ) -> Outcome:
        """Compare in full."""
        del inputs
        tolerance = self.workload.tolerance
        worst_abs = worst_rel = 0.0
        matched = 1.0
        for name, want in expected.items():
            x, y = outputs[name].float(), want.float()
            error = (x - y).abs_()
            good = error <= tolerance.max_atol + tolerance.max_rtol * y.abs()
            ratio = good.sum().item() / max(1, good.numel())
            matched = min(matched, ratio)
            worst_abs = max(worst_abs, error.max().item())
            if ratio < tolerance.required_matched_ratio:
                return Outcome(Verdict.INCORRECT_NUMERICAL, f"output {name}: {ratio:.4f} matched", worst_abs, worst_rel, matched)
        return Outcome(Verdict.PASSED, None, worst_abs, worst_rel, matched)
