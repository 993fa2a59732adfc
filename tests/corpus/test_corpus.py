"""The shipped problems: facts about all files, and the deep check of a few."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.formats.bounded import load_json_file
from harness.formats.problems import DEFINITION_NAME, list_problems, load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
from harness.model.problem import RandomInput, Workload
from tests.docs.catalogue import FILE, catalogue, catalogue_rows, duplicate_graphs

PROBLEMS = Path(__file__).parents[2] / "problems"
KEYS = list_problems(PROBLEMS)
DEFINITIONS: dict[str, dict[str, Any]] = {key: load_json_file(PROBLEMS / key / DEFINITION_NAME) for key in KEYS}
EXTRACTED = {key: value["x_provenance"] for key, value in DEFINITIONS.items() if "x_provenance" in value}
SAMPLE = sorted(EXTRACTED)[:: max(1, len(EXTRACTED) // 6)]
_SMALL = 3
_FEW_ELEMENTS = 30_000_000


def test_no_two_problems_have_the_same_graph() -> None:
    rows = catalogue_rows()
    assert duplicate_graphs(rows) == {}
    copied = dataclasses.replace(rows[-1], name="copy")
    assert list(duplicate_graphs([*rows, copied]).values()) == [
        [f"{copied.suite}/{rows[-1].name}", f"{copied.suite}/copy"]
    ]


def test_the_corpus_has_the_size_in_the_catalogue() -> None:
    rows = catalogue_rows()
    extracted = [row for row in rows if row.architecture]
    assert len({row.architecture for row in extracted}) >= 124
    assert len(extracted) >= 210
    assert sum(row.direction.startswith("backward") for row in rows) >= 46
    assert sum(row.workloads for row in rows) >= 3000
    families = {"llm", "moe", "ssm", "diffusion", "video", "vision", "audio", "multimodal", "encoder"}
    assert families <= {row.suite for row in extracted}


def test_at_most_six_problems_of_an_architecture() -> None:
    numbers = Counter(provenance["architecture"] for provenance in EXTRACTED.values())
    assert {name: number for name, number in numbers.items() if number > 6} == {}


def test_each_extracted_problem_names_its_origin() -> None:
    keys = {"architecture", "module", "file", "library", "version", "licence", "graph", "shapes_verified"}
    for key, provenance in EXTRACTED.items():
        assert keys <= set(provenance), key
        assert provenance["licence"].partition(" ")[0] in {"Apache-2.0", "MIT", "BSD-3-Clause"}, key
        assert int(provenance["shapes_verified"]) >= 4, key
        assert DEFINITIONS[key]["tags"], key
        assert DEFINITIONS[key]["description"].count("\n") == 0, key


def test_the_gradients_of_weights_have_the_tolerance_of_sums() -> None:
    """Their elements near zero exceed a tolerance that suits the other outputs."""
    for key, definition in ((key, DEFINITIONS[key]) for key in EXTRACTED):
        constant = {name for name, axis in definition["axes"].items() if axis["type"] == "const"}
        shapes = [spec["shape"] for spec in definition["outputs"].values() if spec["dtype"] in {"bfloat16", "float16"}]
        if any(all(axis in constant or axis.isdigit() for axis in shape) for shape in shapes):
            for workload in load_problem(PROBLEMS / key).workloads:
                assert workload.tolerance.required_matched_ratio == 0.9, key
                assert workload.tolerance.max_rtol >= 0.05, key


def test_the_catalogue_is_up_to_date() -> None:
    assert FILE.read_text() == catalogue(), "run `make docs`"


@pytest.mark.parametrize("key", SAMPLE)
def test_a_sample_loads_and_computes_finite_outputs(key: str) -> None:
    _check(key)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(EXTRACTED))
def test_every_problem_loads_and_computes_finite_outputs(key: str) -> None:
    _check(key)


def _check(key: str) -> None:
    """Run a reference with the judge's inputs at small sizes, sequence length 1 among them."""
    problem = load_problem(PROBLEMS / key)
    assert problem.warnings == ()
    assert len(problem.workloads) >= 3
    variable = [name for name, axis in problem.definition.axes.items() if axis.type == "var"]
    inputs = {name: RandomInput(type="random") for name in problem.definition.inputs}
    reference = load_reference(problem)
    for size in (1, _SMALL):
        workload = Workload(uuid="small", axes=dict.fromkeys(variable, size), inputs=dict(inputs))
        sizes = problem.sizes(workload)
        if sum(problem.nbytes(spec, sizes) for spec in problem.definition.inputs.values()) > 2 * _FEW_ELEMENTS:
            continue
        outputs = reference.outputs(list(InputSource(problem, seed=1).draw(workload).values()))
        for name, spec in problem.definition.outputs.items():
            assert tuple(outputs[name].shape) == problem.shape(spec, sizes)
            assert not outputs[name].is_floating_point() or bool(outputs[name].isfinite().all())
