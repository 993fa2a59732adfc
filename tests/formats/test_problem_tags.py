"""Tags of problems, by which users select them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.formats.problem_tags import ProblemFilter, ProblemTags, tags_of
from harness.formats.problems import list_problems, load_problem

PROBLEMS = Path(__file__).parents[2] / "problems"


def facts(key: str) -> ProblemTags:
    return tags_of(key, load_problem(PROBLEMS / key, key=key).definition)


def test_facts_come_from_tags_and_tensors() -> None:
    tagged = facts("quantised/fp8_linear_backward")
    assert (tagged.suite, tagged.family, tagged.direction) == ("quantised", "llm", "backward")
    assert tagged.dtypes == {"float8_e5m2", "float8_e4m3fn", "float32", "bfloat16"}
    assert tagged.model == "meta-llama/Llama-3.1-8B"
    untagged = facts("starter/rmsnorm_h4096")
    assert (untagged.family, untagged.direction, untagged.tags) == ("starter", "forward", ())
    assert facts("starter/residual_rmsnorm_backward").direction == "backward"


@pytest.mark.parametrize(
    ("condition", "admitted"),
    [
        (ProblemFilter(), True),
        (ProblemFilter(family="moe"), True),
        (ProblemFilter(family="llm"), False),
        (ProblemFilter(suite="moe", direction="forward"), True),
        (ProblemFilter(direction="backward"), False),
        (ProblemFilter(dtype="float4_e2m1fn_x2"), True),
        (ProblemFilter(dtype="nvfp4"), True),
        (ProblemFilter(dtype="mxfp4"), False),
        (ProblemFilter(tags=("quantised", "expert-parallel")), True),
        (ProblemFilter(tags=("quantised", "serving")), False),
    ],
)
def test_every_condition_must_hold(condition: ProblemFilter, *, admitted: bool) -> None:
    assert condition.admits(facts("moe/nvfp4_experts")) is admitted


def test_every_shipped_problem_has_one_family_and_direction() -> None:
    for key in list_problems(PROBLEMS)[::10]:
        tagged = facts(key)
        assert tagged.family, key
        assert tagged.direction in {"forward", "backward"}, key
