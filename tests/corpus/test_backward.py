"""Backward problems: gradients of exported modules, verified against autograd."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from harness.corpus.architectures import quiet_libraries
from harness.corpus.backward import backward_drafts
from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.errors import SkippedError
from tests.corpus.drafts import draft

pytestmark = pytest.mark.xdist_group("corpus")
NAMES = {24: "width", 40: "inner"}


@cache
def backward(factory: str) -> dict[str, ProblemDraft]:
    with quiet_libraries():
        return {form: draft_of_form for form, draft_of_form, _ in backward_drafts(draft(factory), NAMES)}


def test_gradients_of_all_floating_point_inputs_are_outputs() -> None:
    recompute = backward("gated_block")["recompute"]
    assert list(recompute.outputs) == [f"grad_{name}" for name in draft("gated_block").inputs]
    assert "down_bias" not in recompute.inputs  # an input of the forward pass only
    assert recompute.outputs["grad_gate_weight"]["shape"] == ["inner", "width"]


def test_the_saved_form_reads_forward_results_instead_of_computing_them() -> None:
    forms = backward("gated_block")
    assert "F.silu(" in forms["recompute"].reference
    assert "F.silu(" not in forms["saved"].reference
    saved = {name: spec["x_distribution"] for name, spec in forms["saved"].inputs.items() if name.startswith("saved_")}
    assert saved["saved_activated"] == "normal"
    assert saved["saved_reciprocal_root"] == "positive"
    assert len(saved) == 7


def test_several_outputs_have_a_gradient_each() -> None:
    saved = backward("rotated")["saved"]
    assert list(saved.inputs) == ["grad_output_0", "grad_output_1", "saved_softmax", "cos", "sin"]
    assert saved.inputs["saved_softmax"]["x_distribution"] == "probability"
    assert list(saved.outputs) == ["grad_states"]  # no training step needs the gradients of cos and sin


def test_forms_are_different_graphs() -> None:
    graphs = {draft_of_form.graph for draft_of_form in (*backward("gated_block").values(), draft("gated_block"))}
    assert len(graphs) == 3


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("grad_summed_3 * (-0.5)", "grad_summed_3 * 0.5", "`grad_hidden` differs from autograd's"),
        pytest.param(
            "total = gate_times_difference + 1",
            "total = gate_times_difference",
            "`grad_hidden` differs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sum(dim=[0, 1], keepdim=True)",
            "sum(dim=[0], keepdim=True)[:, :1]",
            "shape|differs",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_wrong_gradients_are_refused(right: str, wrong: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def mutated(*arguments: object) -> ProblemDraft:
        drafted = draft_problem(*arguments)  # type: ignore[arg-type]
        assert drafted.reference.count(right) == 1
        return dataclasses.replace(drafted, reference=drafted.reference.replace(right, wrong))

    monkeypatch.setattr("harness.corpus.backward.draft_problem", mutated)
    with quiet_libraries(), pytest.raises(SkippedError, match=reason):
        next(backward_drafts(draft("gated_block"), NAMES))
