"""The driver's names for the types in a launch plan."""

from __future__ import annotations

from typing import get_args

import pytest
from cuda.bindings import driver as cuda

from harness.model.plan import MapDtype, TensorMap
from harness.runner import driver


@pytest.mark.parametrize("dtype", get_args(MapDtype))
def test_every_type_of_a_tensor_map_is_one_of_the_drivers(dtype: str) -> None:
    assert driver.map_type(dtype).name.startswith("CU_TENSOR_MAP_DATA_TYPE_")


@pytest.mark.parametrize("swizzle", get_args(TensorMap.model_fields["swizzle"].annotation))
def test_every_swizzle_is_one_of_the_drivers(swizzle: str) -> None:
    assert hasattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle.upper()}")


def test_bindings_that_are_too_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0

    monkeypatch.setattr(cuda, "CUtensorMapDataType", Older)
    with pytest.raises(driver.CudaError, match=r"tensor maps of fp4 need CUDA 12\.8"):
        driver.map_type("fp4")
