"""The default device of commands without `--device`, and the quick start on a GPU with the stub judge."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.cli import devices
from harness.cli.devices import choose_devices
from harness.cli.preflight.check import RunPlan
from harness.cli.preflight.machine import check_devices
from harness.errors import ConfigurationError
from harness.model.config import Config
from tests.site import Site, git


def see_gpu(directory: Path, *names: str) -> str:
    """Return a PATH on which `nvidia-smi` lists GPUs of these names."""
    directory.mkdir()
    tool = directory / "nvidia-smi"
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{name}'\n" for name in names))
    tool.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("gpu", "cupy", "expected", "reason"),
    [
        ("NVIDIA B200", True, (("cuda",), "b200"), "--device cpu selects the CPU"),
        ("NVIDIA GeForce RTX 5090", True, (("cuda",), "rtx5090"), "a GPU was detected"),
        ("NVIDIA RTX 9999 Ada", True, (("cuda",), "rtx-9999-ada"), "a GPU was detected"),
        ("NVIDIA H200", False, (("cpu",), "cpu"), "pip install 'kernel-harness[gpu13]'"),
        (None, True, (("cpu",), "cpu"), "--device selects another device"),
    ],
)
def test_a_gpu_is_taken_where_one_can_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu: str | None,
    cupy: bool,
    expected: tuple[tuple[str, ...], str],
    reason: str,
) -> None:
    monkeypatch.setenv("PATH", see_gpu(tmp_path / "bin", gpu) if gpu else str(tmp_path))
    monkeypatch.setattr(devices, "find_spec", lambda _: object() if cupy else None)
    chosen = choose_devices(Config())
    assert (chosen.devices, chosen.target) == expected
    assert reason in chosen.reason


@pytest.mark.parametrize(
    ("shown", "expected"),
    [(None, ("cuda:0", "cuda:1")), ("3,1,0", ("cuda:0", "cuda:1", "cuda:2")), ("2", ("cuda",))],
)
def test_cuda_means_every_gpu_that_is_shown_and_of_the_firsts_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", see_gpu(tmp_path / "bin", "NVIDIA H200", "NVIDIA H200", "NVIDIA T1000"))
    monkeypatch.setattr(devices, "find_spec", lambda _: object())
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert choose_devices(Config()).devices == expected
    assert choose_devices(Config(devices=("cuda",))).devices == expected
    assert choose_devices(Config(devices=("cuda:1",))).devices == ("cuda:1",)


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0"])
def test_a_gpu_that_is_hidden_from_cuda_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    monkeypatch.setenv("PATH", see_gpu(tmp_path / "bin", "NVIDIA H200"))
    monkeypatch.setattr(devices, "find_spec", lambda _: object())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_devices(Config()).devices == ("cpu",)
    config = Config(devices=("cuda",))
    plan = RunPlan(None, config, choose_devices(config), "tuner", tmp_path)
    monkeypatch.delenv("HARNESS_JUDGE_COMMAND", raising=False)
    with pytest.raises(ConfigurationError, match="no such device: cuda:0"):
        check_devices(plan)


def test_a_configured_device_is_taken_whatever_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", see_gpu(tmp_path / "bin", "NVIDIA H200"))
    assert choose_devices(Config(devices=("cpu",))).target == "cpu"
    assert choose_devices(Config(devices=("cuda:0,1",))).target == "h200"
    assert choose_devices(Config(devices=("cuda",), target="mine")).target == "mine"


def test_a_gpu_without_solutions_begins_with_those_of_another(site: Site, tmp_path: Path) -> None:
    git(site.root, "mv", "problems/t/one/solutions/cpu", "problems/t/one/solutions/b200")
    git(site.root, "commit", "--quiet", "-m", "Tuned for another GPU")
    path = see_gpu(tmp_path / "bin", "NVIDIA H200")
    command = ("start", "--workers", "1", "--agent", "tuner", "--device", "cuda", "--problem", "t/one")
    completed = site.run(*command, "--max-evaluations", "2", extra={"PATH": path})
    assert completed.returncode == 0, completed.stdout
    judged = [entry for entry in site.entries() if entry.candidate]
    assert {entry.target for entry in judged} == {"h200"}
    for entry in judged:
        assert entry.candidate is not None
        files = git(site.root, "ls-tree", "--name-only", f"{entry.candidate.commit}:problems/t/one/solutions/h200")
        assert files.split() == ["kernel.cpp", "solution.yaml"]


def test_evaluate_takes_the_solution_of_the_devices_target(site: Site, tmp_path: Path) -> None:
    git(site.root, "mv", "problems/t/one/solutions/cpu", "problems/t/one/solutions/h200")
    command = ("evaluate", "problems/t/one", "--against", "eager", "--device")
    path = see_gpu(tmp_path / "bin", "NVIDIA H200")
    completed = site.call(*command, "cuda:0", "--json", extra={"PATH": path})
    assert completed.returncode == 0, completed.stdout
    assert json.loads(completed.stdout)["device"]["name"] == "stub cuda:0"
    elsewhere = site.call(*command, "cpu", extra={"PATH": path})
    assert elsewhere.returncode == 2
    assert "solutions/cpu" in elsewhere.stdout
