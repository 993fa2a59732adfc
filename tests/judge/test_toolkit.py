"""Versions of NVRTC, the driver and the GPU that do not fit together are named before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.judge.build.toolkit import NvrtcFacts, compiler_mismatch, find_toolkit, nvrtc_facts

OF_12_6 = NvrtcFacts((12, 6), (50, 80, 90))
OF_13_0 = NvrtcFacts((13, 0), (75, 80, 90, 100, 103, 120))


def test_the_installed_nvrtc_compiles_for_hopper_and_blackwell() -> None:
    facts = nvrtc_facts(find_toolkit().library)
    assert facts.version >= (12, 8)
    assert {90, 100} <= set(facts.architectures)


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so"
    library.write_text("not a library")
    with pytest.raises(ConfigurationError, match="NVRTC cannot be used"):
        nvrtc_facts(library)


@pytest.mark.parametrize(
    ("facts", "driver", "capability", "reason"),
    [
        (OF_12_6, "580.65.06", " 10.0", "NVRTC 12.6 does not compile for sm_100"),
        (OF_13_0, "570.86.15", " 10.0", "NVRTC 13.0 needs a driver of 580 or newer, and this one is 570.86.15"),
        (OF_13_0, "580.65.06", " 10.3", None),
        (OF_12_6, "550.54.15", " 9.0", None),
        (OF_13_0, "NVIDIA H200", "", None),
    ],
)
def test_versions_that_do_not_fit_are_named(
    facts: NvrtcFacts, driver: str, capability: str, reason: str | None
) -> None:
    mismatch = compiler_mismatch(facts, driver, capability)
    assert (mismatch.reason if mismatch else None) == reason
