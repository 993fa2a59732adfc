"""`harness problems check --deep`: the wrong implementations that it finds, and its results for shipped problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from click.testing import CliRunner

from harness.cli.problem_commands.problems import problems
from harness.corpus.deep_check.check_problem import DeepFindings, deep_check, licence_objection
from harness.corpus.deep_check.duplicates import duplicates
from harness.corpus.deep_check.exceptions import FILE, read_exceptions
from harness.corpus.deep_check.honest import honest_implementations
from harness.corpus.deep_check.original_module import compare_with_module
from harness.corpus.deep_check.outputs_and_inputs import output_failures
from harness.corpus.deep_check.report import report_on
from harness.corpus.deep_check.small_judge import LEAST_SHAPES, allowed_axes
from harness.corpus.deep_check.source_changes import epsilons, with_epsilon
from harness.corpus.deep_check.torch_calls import rounded, square_operands, with_transposed
from harness.errors import FormatError
from harness.formats.problems import list_problems, load_problem
from harness.judge.reference import load_reference
from harness.model.problem import Problem
from tests.formats.problem_files import write_problem
from tests.judge.problem_in_memory import problem

PROBLEMS = Path(__file__).parents[2] / "problems"
KEYS = list_problems(PROBLEMS)
SAMPLE = (
    "audio/stable_audio_di_t_stable_audio_gaussian_fourier_projection",
    "encoder/deberta_layer_norm",
    "llm/llama_rotary_embedding",
    "llm/olmo2_rms_norm_backward",
    "moe/topk_routing",
    "quantised/dequantise_nvfp4",
    "quantised/quantise_fp8_token",
    "quantised/quantise_nvfp4",
    "starter/rmsnorm_h4096",
)

REFERENCE = """\
import torch
import torch.nn.functional as F


def run(x, norm_weight, weight, bias):
    wide = x.float()
    variance = wide.pow(2).mean(-1, keepdim=True)
    normed = (wide * torch.rsqrt(variance + 1e-5) * norm_weight.float()).to(torch.bfloat16)
    return F.linear(normed, weight, bias)
"""
KINDS = {"skipped input", "wrong epsilon", "transposed operand", "last row", "lower precision"}


def make_problem(
    root: Path, *, name: str = "norm_linear", reference: str = REFERENCE, dtype: str = "bfloat16", **tolerance: Any
) -> Problem:
    """Write a problem with a normalisation and a square product in bfloat16."""
    directory = root / "t" / name
    directory.mkdir(parents=True)
    definition = {
        "name": name,
        "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 64}},
        "inputs": {
            "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
            "norm_weight": {"shape": ["width"], "dtype": "bfloat16"},
            "weight": {"shape": ["width", "width"], "dtype": "bfloat16"},
            "bias": {"shape": ["width"], "dtype": "bfloat16"},
        },
        "outputs": {"y": {"shape": ["rows", "width"], "dtype": dtype}},
        "reference": reference,
    }
    workload = {
        "uuid": "w0",
        "axes": {"rows": 8},
        "inputs": {name: {"type": "random"} for name in definition["inputs"]},
        "tolerance": {"max_atol": 0.02, "max_rtol": 0.02, **tolerance},
    }
    (directory / "definition.json").write_text(json.dumps(definition))
    (directory / "workload.jsonl").write_text(json.dumps(workload) + "\n")
    return load_problem(directory)


def survivors(findings: DeepFindings) -> set[str]:
    return {item.title for item in findings.verdicts.mutants if item.fate == "survived"}


def test_every_kind_of_mutant_is_made_and_killed(tmp_path: Path) -> None:
    findings = deep_check(make_problem(tmp_path), modules=False)
    assert findings.failures == []
    assert findings.verdicts.refusals == ()
    assert findings.verdicts.note is None
    assert {item.kind for item in findings.verdicts.mutants} == KINDS
    assert [vars(item) for item in findings.verdicts.mutants if item.fate != "killed"] == []
    titles = {item.title for item in findings.verdicts.mutants}
    assert {
        "skipped input: norm_weight",
        "skipped input: bias",
        "wrong epsilon: 10 times at line 8 (1e-05)",
        "wrong epsilon: zero at line 8 (1e-05)",
        "transposed operand: operand 1 of product 0 (linear)",
        "last row: y zero",
        "last row: y stale",
        "lower precision: 4 bits of mantissa everywhere",
        "lower precision: 4 bits of mantissa in y",
    } <= titles


def test_a_wrong_epsilon_shows_in_small_inputs_only(tmp_path: Path) -> None:
    findings = deep_check(make_problem(tmp_path), modules=False)
    details = {item.name: item.detail for item in findings.verdicts.mutants if item.kind == "wrong epsilon"}
    assert details["10 times at line 8 (1e-05)"].startswith("small: ")
    assert details["zero at line 8 (1e-05)"].startswith("small: ")


def test_a_loose_tolerance_lets_mutants_survive_and_fails(tmp_path: Path) -> None:
    """The judge has no rule on precision for outputs of eight bits, so only the tolerance can refuse mutants."""
    reference = REFERENCE.replace(
        "F.linear(normed, weight, bias)", "F.linear(normed, weight, bias).to(torch.float8_e4m3fn)"
    )
    loose = deep_check(
        make_problem(tmp_path / "a", reference=reference, dtype="float8_e4m3fn", max_atol=50.0), modules=False
    )
    assert {
        "skipped input: bias",
        "last row: y zero",
        "transposed operand: operand 1 of product 0 (linear)",
    } <= survivors(loose)
    assert loose.verdicts.note is not None
    report = report_on(loose, read_exceptions(tmp_path), ())
    assert any(failure.startswith("a mutant survives: last row: y zero") for failure in report.failures)
    tight = deep_check(
        make_problem(tmp_path / "b", reference=reference, dtype="float8_e4m3fn", max_atol=0.07, max_rtol=0.14),
        modules=False,
    )
    assert not {"skipped input: bias", "last row: y zero"} & survivors(tight)


def test_a_tolerance_that_refuses_honest_implementations_fails(tmp_path: Path) -> None:
    tolerance: dict[str, Any] = {"max_atol": 1e-6, "max_rtol": 1e-6, "required_matched_ratio": 1.0}
    findings = deep_check(make_problem(tmp_path, **tolerance), modules=False)
    assert {item.implementation for item in findings.verdicts.refusals} >= {"float32 inside"}
    failures = report_on(findings, read_exceptions(tmp_path), ()).failures
    assert any(failure.startswith("an honest implementation is refused: honest float32") for failure in failures)


def test_an_input_without_effect_and_a_constant_output_are_found(tmp_path: Path) -> None:
    unused = REFERENCE.replace("F.linear(normed, weight, bias)", "F.linear(normed, weight)")
    findings = deep_check(make_problem(tmp_path / "a", reference=unused), modules=False)
    assert findings.failures == ["the input `bias` does not matter: no output changes with it"]
    constant = REFERENCE.replace("F.linear(normed, weight, bias)", "F.linear(normed, weight, bias) * 0 + 1")
    findings = deep_check(make_problem(tmp_path / "b", reference=constant), modules=False)
    assert "output `y` is constant, at rows=7" in findings.failures
    infinite = REFERENCE.replace("F.linear(normed, weight, bias)", "F.linear(normed, weight, bias) / 0")
    findings = deep_check(make_problem(tmp_path / "c", reference=infinite), modules=False)
    assert "an output is not finite at rows=1" in findings.failures


def test_inputs_are_drawn_again_for_each_shape(tmp_path: Path) -> None:
    """The length of a row of probabilities is an axis, so the row of another shape does not fit."""
    directory = write_problem(
        tmp_path / "t/weighted",
        {
            "name": "weighted",
            "axes": {"rows": {"type": "var"}},
            "inputs": {
                "attention_weights": {"shape": ["rows", "rows"], "dtype": "float32"},
                "x": {"shape": ["rows"], "dtype": "float32"},
            },
            "outputs": {"y": {"shape": ["rows"], "dtype": "float32"}},
            "reference": "def run(attention_weights, x):\n    return attention_weights @ x\n",
        },
        {"uuid": "w", "axes": {"rows": 4}, "inputs": {name: {"type": "random"} for name in ("attention_weights", "x")}},
    )
    weighted = load_problem(directory)
    assert output_failures(weighted, load_reference(weighted)) == []


def test_constraints_that_exclude_the_usual_sizes_leave_those_of_the_small_profile() -> None:
    ragged = load_problem(PROBLEMS / "attention/gqa_ragged_prefill")
    assert ragged.definition.constraints == ("8 * batch <= tokens",)
    sizes = allowed_axes(ragged)
    assert len({tuple(axes.values()) for axes in sizes}) == LEAST_SHAPES
    assert all(8 * axes["batch"] <= axes["tokens"] for axes in sizes)


def test_a_reference_that_raises_is_a_failure_and_no_crash(tmp_path: Path) -> None:
    findings = deep_check(make_problem(tmp_path, reference=REFERENCE.replace("F.linear", "F.linearly")), modules=False)
    assert any("linearly" in failure for failure in findings.failures)


def test_an_input_that_cancels_is_indistinguishable(tmp_path: Path) -> None:
    """A bias that is the same for a whole row does not affect its softmax."""
    reference = REFERENCE.replace(
        "return F.linear(normed, weight, bias)",
        "scores = F.linear(normed, weight)\n"
        "    offset = (scores.float() @ bias.float())[:, None].to(x.dtype)\n"
        "    return torch.softmax(scores + offset, dim=-1)",
    )
    findings = deep_check(make_problem(tmp_path, reference=reference, max_atol=1e-3), modules=False)
    fates = {item.name: item.fate for item in findings.verdicts.mutants if item.kind == "skipped input"}
    assert fates["bias"] == "indistinguishable"
    assert fates["norm_weight"] == "killed"


def test_explicit_and_default_epsilons_are_found() -> None:
    source = (
        "import torch.nn.functional as F\n"
        "def make_inputs(axes, device):\n    return 1e-4\n"
        "def run(x, w):\n"
        "    a = F.layer_norm(x, (4,), w, None)\n"
        "    b = F.rms_norm(a, (4,), w, eps=1e-6)\n"
        "    return b / (b.norm() + 1e-12) * 1e-3\n"
    )
    findings = epsilons(source, without="make_inputs")
    assert [(item.value, item.line) for item in findings] == [(1e-5, 5), (1e-6, 6), (1e-12, 7)]
    changed = [with_epsilon(source, item, 0.5, without="make_inputs") for item in findings]
    assert "F.layer_norm(x, (4,), w, None, eps=0.5)" in changed[0]
    assert "F.rms_norm(a, (4,), w, eps=0.5)" in changed[1]
    assert "b.norm() + 0.5) * 0.001" in changed[2]
    assert all(text.count("0.5") == 1 for text in changed)


def test_rounding_keeps_as_many_bits_as_the_narrower_format() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(1)) * 100
    assert torch.equal(rounded(values, 7), values.to(torch.bfloat16).float())
    low_precision = rounded(values.to(torch.bfloat16), 4)
    assert torch.equal(rounded(low_precision, 4), low_precision)
    assert not bool(low_precision.view(torch.int16).bitwise_and(7).any())
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0])
    assert torch.equal(rounded(special, 4), special) or bool(rounded(special, 4).isnan()[2])
    assert rounded(special, 4)[:2].tolist() == [float("inf"), float("-inf")]
    integers = torch.arange(9)
    assert rounded(integers, 1) is integers


def test_one_operand_of_one_product_is_transposed() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 4)

    def run() -> torch.Tensor:
        return F.linear(a, b) @ b

    operands = square_operands(run)
    assert [(item.call, item.place, item.function) for item in operands] == [(0, 1, "linear"), (1, 1, "matmul")]
    assert torch.equal(with_transposed(operands[0], run), (a @ b) @ b)
    assert torch.equal(with_transposed(operands[1], run), F.linear(a, b) @ b.T)


ANOTHER_ORDER = """\
import torch
import torch.nn.functional as F


def run(q, k, v, w, b, mask):
    grouped = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)
    masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask > 0, scale=0.3)
    shifted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    flat = (grouped + masked + shifted).flatten(0, 2)
    normed = F.layer_norm(F.linear(flat, w, b), (w.shape[0],), b, b)
    added = torch.addmm(b, normed, w.t()) + torch.mm(flat, w.t()) + flat @ w.t()
    return added, torch.bmm(q[0], k[0].transpose(1, 2)), added.sum(0), added.unflatten(0, (4, -1)).mean(dim=(0, 1))
"""


def test_library_baselines_that_need_torch_alone_are_judged_too(tmp_path: Path) -> None:
    problem = make_problem(tmp_path)
    baselines = problem.directory / "baselines"
    baselines.mkdir()
    (baselines / "absent.py").write_text(f"import no_such_library\n{REFERENCE}")
    (baselines / "right.py").write_text(REFERENCE)
    assert deep_check(problem, modules=False).verdicts.refusals == ()
    (baselines / "wrong.py").write_text(REFERENCE.replace("1e-5", "1.0"))
    refusals = deep_check(problem, modules=False).verdicts.refusals
    assert {refusal.implementation for refusal in refusals} == {"library wrong"}


def test_the_other_order_of_sums_is_right_and_another() -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 4, 8, 16)] * 3 + [(16, 16), (16,), (8, 8)]
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    values[-1].fill_diagonal_(1.0)
    outputs = {f"y{number}": {"shape": [], "dtype": "float32"} for number in range(4)}
    inputs = {name: {"shape": [], "dtype": "float32"} for name in ("q", "k", "v", "w", "b", "mask")}
    sample_problem = problem(inputs, outputs, ANOTHER_ORDER, {})
    reference = load_reference(sample_problem)
    expected = reference.outputs(values)
    honest = honest_implementations(sample_problem, reference)
    outputs_in_another_order = honest["another order"](values)
    for name, value in expected.items():
        torch.testing.assert_close(outputs_in_another_order[name], value, rtol=1e-4, atol=1e-4)
        assert not torch.equal(outputs_in_another_order[name], value)
    torch.testing.assert_close(honest["float32 inside"](values), expected)


def test_the_same_graph_with_other_names_and_sizes_is_found(tmp_path: Path) -> None:
    renamed = REFERENCE.replace("wide", "x32").replace("1e-5", "1e-6")
    problems = [
        make_problem(tmp_path, name="a"),
        make_problem(tmp_path, name="b", reference=renamed),
        make_problem(tmp_path, name="c", reference=REFERENCE.replace("rsqrt", "sqrt")),
    ]
    assert duplicates(problems) == {"t/a": ("t/b",), "t/b": ("t/a",)}


def test_only_permissive_licences_are_accepted(tmp_path: Path) -> None:
    unlicensed = make_problem(tmp_path)

    def with_licence(licence: str) -> str | None:
        definition = unlicensed.definition.model_copy(update={"x_provenance": {"licence": licence, "module": "M"}})
        definition.__pydantic_extra__ = {"x_provenance": {"licence": licence, "module": "M"}}
        return licence_objection(unlicensed.model_copy(update={"definition": definition}))

    assert licence_objection(unlicensed) is None
    assert with_licence("MIT") is None
    assert with_licence("Apache-2.0 (of the package transformers)") is None
    assert "is not one of" in str(with_licence("CC-BY-NC-4.0"))
    assert with_licence("") == "`x_provenance` names no licence"


def test_exceptions_cover_results_and_stale_ones_are_reported(tmp_path: Path) -> None:
    tolerance: dict[str, Any] = {"max_atol": 1e-6, "max_rtol": 1e-6, "required_matched_ratio": 1.0}
    findings = deep_check(make_problem(tmp_path, **tolerance), modules=False)
    (tmp_path / FILE).write_text(
        "exceptions:\n"
        "  - result: 'honest *'\n"
        "    problems: [t/norm_linear]\n"
        "    reason: a tolerance that only the reference itself can keep\n"
        "  - result: 'wrong epsilon: *'\n"
        "    problems: [t/norm_linear, t/other]\n"
        "    reason: nothing survives, so that this one is stale\n"
    )
    report = report_on(findings, read_exceptions(tmp_path), ())
    assert report.failures == ()
    assert set(report.excepted.values()) == {"a tolerance that only the reference itself can keep"}
    assert report.stale == ("wrong epsilon: *",)
    (tmp_path / FILE).write_text("exceptions:\n  - result: x\n    problems: [t/a]\n    reason: short\n")
    with pytest.raises(FormatError, match=f"{FILE}:4: `exceptions\\[0\\].reason`"):
        read_exceptions(tmp_path)


def test_the_command_prints_each_problem_a_summary_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_problem(tmp_path / "problems")
    make_problem(
        tmp_path / "problems", name="unused", reference=REFERENCE.replace("normed, weight, bias)", "normed, weight)")
    )
    (tmp_path / ".git").mkdir()
    (tmp_path / "harness.yaml").write_text("run: main\n")
    monkeypatch.chdir(tmp_path)
    completed = CliRunner().invoke(problems, ["check", "--deep", "t/*"], standalone_mode=False)
    assert completed.exception is None, completed.output
    assert completed.return_value == 1
    lines = completed.stdout.splitlines()
    assert lines[0].startswith("[1/2] ok   t/norm_linear  mutants: ")
    assert lines[1].startswith("[2/2] BAD  t/unused  mutants: ")
    assert lines[2] == "     the input `bias` does not matter: no output changes with it"
    assert ", 1 with failures" in completed.stdout
    assert "2 not compared: written by hand" in lines
    completed = CliRunner().invoke(problems, ["check", "--deep", "--json", "norm_linear"], standalone_mode=False)
    assert completed.return_value == 0
    (row,) = json.loads(completed.stdout)
    assert (row["problem"], row["ok"], row["mutants"]["survived"]) == ("t/norm_linear", True, 0)
    assert row["mutants"]["killed"] == len(row["results"])


def test_extracted_problems_are_not_compared_without_the_model_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    compared = compare_with_module(load_problem(PROBLEMS / "llm/llama_mlp", key="llm/llama_mlp"))
    assert compared.skipped == "the extra `extract` is not installed: python -m pip install 'kernel-harness[extract]'"
    assert compare_with_module(load_problem(PROBLEMS / "starter/rope_gqa")).skipped == "written by hand"


@pytest.mark.parametrize("key", SAMPLE)
def test_a_sample_of_the_shipped_problems_passes(key: str) -> None:
    _check(key, modules=False)


def _first_word(key: str) -> str:
    """Problems of one architecture begin with its name, and share a model that takes seconds to build."""
    return key.partition("/")[2].partition("_")[0]


@pytest.mark.slow
@pytest.mark.parametrize("key", [pytest.param(key, marks=pytest.mark.xdist_group(_first_word(key))) for key in KEYS])
def test_every_shipped_problem_passes(key: str) -> None:
    _check(key, modules=True)


def _check(key: str, *, modules: bool) -> None:
    findings = deep_check(load_problem(PROBLEMS / key, key=key), modules=modules)
    report = report_on(findings, read_exceptions(PROBLEMS), ())
    assert report.failures == ()
    assert report.fates["killed"] > 0


@pytest.mark.slow
def test_no_two_shipped_problems_compute_the_same() -> None:
    assert duplicates(load_problem(PROBLEMS / key, key=key) for key in KEYS) == {}


def test_the_exceptions_name_shipped_problems() -> None:
    named = {key for item in read_exceptions(PROBLEMS).exceptions for key in item.problems}
    assert named <= set(KEYS)
    assert named
