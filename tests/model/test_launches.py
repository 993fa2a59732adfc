"""Launch plans: substitution of sizes, and an error for each invalid plan that names its field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from harness.errors import FormatError
from harness.model.launches import DeviceLimits, Pointer, ResolvedPlan, Value, resolve
from harness.model.plan import Launch, WorkspaceSpec
from harness.model.problem import Definition

DEFINITION = Definition.model_validate(
    {
        "name": "scale",
        "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 4096}},
        "inputs": {
            "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
            "eps": {"shape": None, "dtype": "float32"},
            "heads": {"shape": None, "dtype": "int32"},
        },
        "outputs": {"y": {"shape": ["rows", "width"], "dtype": "float32"}},
        "reference": "def run(x, eps, heads):\n    return x",
    }
)
SIZES = {"rows": 6, "width": 4096}
PLAIN: dict[str, Any] = {"kernel": "k", "grid": ["rows"], "block": ["BLOCK"], "args": ["x", "y"]}


def plan(
    launch: dict[str, Any], workspaces: dict[str, dict[str, Any]] | None = None, device: DeviceLimits | None = None
) -> ResolvedPlan:
    launches = TypeAdapter(tuple[Launch, ...]).validate_python((PLAIN | launch,))
    spaces = TypeAdapter(dict[str, WorkspaceSpec]).validate_python(workspaces or {})
    return resolve(
        launches, spaces, DEFINITION, SIZES, {"eps": 1e-5, "heads": 8}, {"BLOCK": 128, "MODE": "fast"}, device
    )


def test_expressions_see_axes_integer_scalars_and_params() -> None:
    (launch,) = plan({"grid": ["(rows + heads - 1) // heads", "width // BLOCK"], "shared_bytes": "4 * BLOCK"}).launches
    assert (launch.grid, launch.block, launch.shared_bytes) == ((1, 32, 1), (128, 1, 1), 512)


def test_arguments_become_pointers_and_values() -> None:
    arguments = ["x", "y", "eps", "heads", {"i32": "rows"}, {"u64": "rows * width"}, {"f32": "eps"}, {"f64": 2.5}]
    (launch,) = plan({"args": arguments}).launches
    assert launch.args == (
        Pointer("input:x", 0),
        Pointer("output:y", 0),
        Value("f", 1e-5),
        Value("i", 8),
        Value("i", 6),
        Value("Q", 6 * 4096),
        Value("f", 1e-5),
        Value("d", 2.5),
    )


def test_workspaces_and_offsets() -> None:
    resolved = plan(
        {"args": [{"workspace": "partial", "offset": "rows * 4"}, {"tensor": "x", "offset": 16}]},
        {
            "partial": {"bytes": "rows * 8", "init": 0},
            "scale": {"bytes": 4, "init": 1.0},
            "kept": {"bytes": 4, "init": "none"},
        },
    )
    assert resolved.launches[0].args == (Pointer("workspace:partial", 24), Pointer("input:x", 16))
    assert resolved.workspaces == {"partial": (48, 0), "scale": (4, 1.0), "kept": (4, "none")}


def test_a_tensor_map_takes_dtype_and_contiguous_strides_from_the_tensor() -> None:
    tensor_map = {"tensor": "x", "dims": ["width", "rows"], "box": [64, 1], "swizzle": "128B"}
    (launch,) = plan({"args": [{"tensor_map": tensor_map}]}).launches
    (encoded,) = launch.args
    assert encoded.kind == "tensor_map"
    assert (encoded.dtype, encoded.dims, encoded.strides, encoded.box) == ("bf16", (4096, 6), (8192,), (64, 1))


@pytest.mark.parametrize(
    ("dtype", "box", "stride"), [("fp4", 64, 2048), ("fp4_padded", 128, 2048), ("fp6_padded", 128, 3072)]
)
def test_a_tensor_map_of_elements_smaller_than_a_byte(dtype: str, box: int, stride: int) -> None:
    tensor_map = {"tensor": "x", "dtype": dtype, "dims": ["width", "rows"], "box": [box, 1]}
    (launch,) = plan({"args": [{"tensor_map": tensor_map}]}).launches
    (encoded,) = launch.args
    assert encoded.kind == "tensor_map"
    assert (encoded.dtype, encoded.dims, encoded.strides, encoded.box) == (dtype, (4096, 6), (stride,), (box, 1))


def test_limits_and_the_number_of_multiprocessors_are_the_devices() -> None:
    launch = {"grid": ["SM_COUNT - 4"], "shared_bytes": 250_000}
    device = DeviceLimits(shared_bytes=262_144, sm_count=148)
    (resolved,) = plan(launch, device=device).launches
    assert (resolved.grid, resolved.shared_bytes) == ((144, 1, 1), 250_000)
    with pytest.raises(FormatError, match="expected 0 to 100000"):
        plan(launch, device=DeviceLimits(shared_bytes=100_000))


def test_repeat_makes_several_launches() -> None:
    assert len(plan({"repeat": "rows // 2"}).launches) == 3


@pytest.mark.parametrize(
    ("launch", "workspaces", "where", "message"),
    [
        ({"grid": ["width * width * width"]}, {}, "launch[0].grid[0]", "gives 68719476736; expected 1 to 2147483647"),
        ({"grid": ["rows - 6"]}, {}, "launch[0].grid[0]", "gives 0; expected 1"),
        ({"grid": ["row"]}, {}, "launch[0].grid[0]", "`row` is not known here"),
        ({"block": [1024, 2]}, {}, "launch[0].block", "a block of 2048 threads; expected at most 1024"),
        ({"shared_bytes": 300_000}, {}, "launch[0].shared_bytes", "expected 0 to 232448"),
        ({"cluster": [4]}, {}, "launch[0].grid", "not a multiple of the cluster (4, 1, 1)"),
        ({"cluster": [16, 2], "grid": [16, 2]}, {}, "launch[0].cluster", "a cluster of 32 blocks"),
        ({"args": ["z"]}, {}, "launch[0].args[0]", "`z` is no input or output; expected one of `x`, `eps`"),
        (
            {"args": [{"workspace": "w"}]},
            {"v": {"bytes": 4}},
            "launch[0].args[0]",
            "`w` is no workspace; expected one of: `v`",
        ),
        ({"args": [{"f32": "nothing"}]}, {}, "launch[0].args[0].f32", "`nothing` is no scalar input, param or axis"),
        (
            {"args": [{"i32": "width * width * width"}]},
            {},
            "launch[0].args[0].i32",
            "expected -2147483648 to 2147483647",
        ),
        (
            {"args": [{"tensor_map": {"dims": [1], "box": [1]}}]},
            {},
            "launch[0].args[0].tensor_map",
            "either `tensor` or",
        ),
        (
            {"args": [{"tensor_map": {"tensor": "x", "dims": [4, 4], "box": [4]}}]},
            {},
            "launch[0].args[0].tensor_map",
            "2 dims, 1 box sizes",
        ),
        (
            {"args": [{"tensor_map": {"tensor": "x", "dims": [9, 4], "box": [4, 4]}}]},
            {},
            "launch[0].args[0].tensor_map.strides[0]",
            "a stride of 18 bytes; expected a multiple of 16",
        ),
        (
            {"args": [{"tensor_map": {"tensor": "x", "dtype": "fp4", "dims": [33, 4], "box": [32, 4]}}]},
            {},
            "launch[0].args[0].tensor_map.dims[0]",
            "33 elements of fp4; expected a multiple of 2",
        ),
        (
            {"args": [{"tensor_map": {"tensor": "x", "dtype": "fp6_padded", "dims": [128, 4], "box": [64, 4]}}]},
            {},
            "launch[0].args[0].tensor_map.box[0]",
            "a box of 64; fp6_padded has 128",
        ),
        ({"repeat": 400}, {}, "launch[0].repeat", "expected 0 to 256"),
        ({}, {"huge": {"bytes": "10 ** 12"}}, "workspaces.huge.bytes", "expected 1 to 8589934592"),
    ],
)
def test_a_bad_plan_names_its_field(
    launch: dict[str, Any], workspaces: dict[str, dict[str, Any]], where: str, message: str
) -> None:
    with pytest.raises(FormatError) as caught:
        plan(launch, workspaces)
    assert caught.value.where == where
    assert message in caught.value.message
