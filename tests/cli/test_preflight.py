"""`harness start` on a machine that lacks something: one line with the fix, and nothing has been started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_devices import see_gpu
from tests.site import Site, git

ONE_WORKER = ("start", "--workers", "1", "--agent", "tuner")


def path_without(directory: Path, *missing: str) -> str:
    """A PATH with every program of this machine's, but these."""
    directory.mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = directory / program.name
            if program.name not in missing and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def refused(site: Site, *arguments: str, **environment: str) -> str:
    """What `harness start` says when it refuses; nothing was committed, and no part ever ran."""
    before = git(site.root, "rev-parse", "main")
    done = site.call(*ONE_WORKER, *arguments, extra={"HARNESS_JUDGE_COMMAND": "", "CXX": "", **environment})
    assert done.returncode == 2, done.stdout
    assert git(site.root, "rev-parse", "main") == before
    assert not list(site.workspace.logs.glob("*.log")), "no part has a log"
    return done.stdout


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:1"])
def test_a_device_that_does_not_exist(site: Site, device: str) -> None:
    said = refused(site, "--device", device)
    assert said == f"harness: --device: no such device: {device}\n  devices: cpu, cuda, cuda:0 ...\n"


def test_a_gpu_where_there_is_none(site: Site, tmp_path: Path) -> None:
    said = refused(site, "--device", "cuda", PATH=path_without(tmp_path / "bin", "nvidia-smi"))
    assert said.startswith("harness: --device: there is no GPU that nvidia-smi lists\n  --device cpu")


def test_more_gpus_than_there_are(site: Site, tmp_path: Path) -> None:
    said = refused(site, "--device", "cuda:0,3", PATH=see_gpu(tmp_path / "bin", "NVIDIA H200"))
    assert said == "harness: --device: no such device: cuda:3\n  GPUs here: cuda:0\n"


def test_no_bubblewrap(site: Site, tmp_path: Path) -> None:
    said = refused(site, "--device", "cpu", PATH=path_without(tmp_path / "bin", "bwrap"))
    assert "bubblewrap" in said
    assert "apt-get install bubblewrap" in said


def test_no_compiler(site: Site, tmp_path: Path) -> None:
    said = refused(site, "--device", "cpu", PATH=path_without(tmp_path / "bin", "c++", "g++", "clang++"))
    assert said.startswith("harness: there is no C++ compiler")
    assert "apt-get install g++" in said
