"""Measurement of a GPU with published figures."""

from __future__ import annotations

import pytest
import torch

from harness.sol.gpu_measurement import measure_gpu
from harness.sol.hardware import table, target_of
from harness.sol.measured_gpu import hardware_of

pytestmark = pytest.mark.gpu


def test_a_listed_gpu_is_measured_near_its_figures_and_bounded_below_them() -> None:
    target = target_of(torch.cuda.get_device_name(0))
    if target is None:
        pytest.skip("the table has no figures of this GPU to compare with")
    listed, rates = table()[target], measure_gpu(0)
    assert 0.75 * listed.bandwidth_gbs < rates.bandwidth_gbs < 1.02 * listed.bandwidth_gbs
    for dtype in rates.tensor_tflops:
        assert 0.4 * listed.tflops.tensor[dtype] < rates.tensor_tflops[dtype] < 1.05 * listed.tflops.tensor[dtype]
    assert 0.5 * listed.vector_tflops("float32") < rates.float32_tflops < 1.05 * listed.vector_tflops("float32")
    measured = hardware_of(rates)
    assert measured.bandwidth_gbs >= listed.bandwidth_gbs
    for dtype in ("bfloat16", "float8_e4m3fn", "int8", "float32"):
        assert measured.product_tflops(dtype) >= listed.product_tflops(dtype)
