from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HostFaultError
from harness.judge.devices.cuda_environment import require_no_mps


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one ordinary process: a stand-in among the real processes would disturb other tests."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes"))
    _start(tmp_path / "proc", 1, "systemd")
    return tmp_path / "proc"


def _start(processes: Path, number: int, name: str) -> None:
    (processes / str(number)).mkdir(parents=True)
    (processes / str(number) / "comm").write_text(f"{name[:15]}\n")


def test_a_machine_without_mps_is_accepted(processes: Path) -> None:
    require_no_mps(processes)


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"])
def test_a_running_daemon_is_refused(name: str, processes: Path) -> None:
    _start(processes, 4711, name)
    with pytest.raises(HostFaultError, match="MPS") as refused:
        require_no_mps(processes)
    assert refused.value.where == "process 4711"
    assert "echo quit | nvidia-cuda-mps-control" in (refused.value.remedy or "")


def test_the_pipe_of_a_daemon_outside_this_container_is_refused(processes: Path, tmp_path: Path) -> None:
    (tmp_path / "pipes").mkdir()
    (tmp_path / "pipes/control").touch()
    with pytest.raises(HostFaultError, match="MPS") as refused:
        require_no_mps(processes)
    assert refused.value.where == str(tmp_path / "pipes/control")
