"""Names of devices."""

from __future__ import annotations

import pytest

from harness.errors import ConfigurationError
from harness.model.devices import expand_devices, parse_device


def test_devices_are_one_name_per_judge() -> None:
    assert expand_devices(()) == ("cpu",)
    assert expand_devices(("cuda:0,1", "cpu", "cuda:1")) == ("cuda:0", "cuda:1", "cpu")


def test_a_name_has_a_kind_and_a_number() -> None:
    assert parse_device("cpu") == ("cpu", 0)
    assert parse_device("cuda") == ("cuda", 0)
    assert parse_device("cuda:12") == ("cuda", 12)


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:0", "", "CUDA", "cuda:-1"])
def test_other_names_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no such device") as refused:
        parse_device(name)
    assert refused.value.remedy == "devices: cpu, cuda, cuda:0 ..."
