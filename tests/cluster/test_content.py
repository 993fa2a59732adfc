"""Directories are sent as bytes named by their hash, and arrive unchanged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.cluster.cluster_judges import parcel_of
from harness.cluster.content import ContentStore, Manifest, ManifestFile, Parcel, data_files, manifest_of
from harness.cluster.device_actor import blob_places
from harness.errors import FormatError, HostFaultError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a directory with every kind of file of git: plain, executable, a link, and two files of the same bytes."""
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src/kernel.cpp").write_bytes(b"int x;\n")
    (root / "src/same.cpp").write_bytes(b"int x;\n")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "empty").write_bytes(b"")
    (root / "link").symlink_to("src/kernel.cpp")
    return root


def ship(store: ContentStore, root: Path, manifest: Manifest, chunk: int = 3) -> list[str]:
    """Send the missing content to a store, in small chunks; return the sent parts."""
    missing = store.missing(manifest)
    files = {file.sha256: root / file.path for file in manifest.files if file.link is None}
    for sha256 in missing:
        data = files[sha256].read_bytes()
        for offset in range(0, max(len(data), 1), chunk):
            store.store(sha256, offset, data[offset : offset + chunk], last=offset + chunk >= len(data))
    return missing


def test_a_directory_arrives_as_it_was(tree: Path, tmp_path: Path) -> None:
    store, manifest = ContentStore(tmp_path / "store"), manifest_of(tree)
    assert len(ship(store, tree, manifest)) == 3
    with store.locked_directory(manifest) as directory:
        assert manifest_of(directory) == manifest
        assert os.access(directory / "run.sh", os.X_OK)
        assert not os.access(directory / "src/kernel.cpp", os.X_OK)
        assert (directory / "link").read_bytes() == b"int x;\n"
    assert not list((tmp_path / "store/incoming").iterdir())


def test_only_what_a_host_lacks_is_sent(tree: Path, tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    ship(store, tree, manifest_of(tree))
    with store.locked_directory(manifest_of(tree)):
        assert store.missing(manifest_of(tree)) == []
    (tree / "src/kernel.cpp").write_bytes(b"int y;\n")
    changed = manifest_of(tree)
    assert store.missing(changed) == [file.sha256 for file in changed.files if file.path == "src/kernel.cpp"]


def test_a_digest_names_names_and_modes_too(tree: Path) -> None:
    before = manifest_of(tree).digest
    (tree / "run.sh").chmod(0o644)
    plain = manifest_of(tree).digest
    (tree / "empty").rename(tree / "blank")
    assert len({before, plain, manifest_of(tree).digest}) == 3


def test_bytes_with_another_hash_are_refused(tree: Path, tmp_path: Path) -> None:
    store, manifest = ContentStore(tmp_path / "store"), manifest_of(tree)
    sha256 = store.missing(manifest)[0]
    with pytest.raises(FormatError, match="another hash"):
        store.store(sha256, 0, b"int z;\n", last=True)
    assert sha256 in store.missing(manifest)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "."])
def test_a_path_that_leaves_its_directory_is_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        ManifestFile(path=path, sha256="0" * 64)


@pytest.mark.parametrize("link", ["../../secret", "/etc/passwd"])
def test_a_link_that_leads_out_is_refused_on_both_sides(tree: Path, tmp_path: Path, link: str) -> None:
    (tree / "src/out").symlink_to(link)
    with pytest.raises(FormatError, match="leads out"):
        manifest_of(tree)
    forged = Manifest(files=(ManifestFile(path="src/out", link=link),))
    with pytest.raises(FormatError, match="leads out"), ContentStore(tmp_path / "store").locked_directory(forged):
        pass


def test_trim_keeps_locked_directories(tree: Path, tmp_path: Path) -> None:
    store, first = ContentStore(tmp_path / "store"), manifest_of(tree)
    ship(store, tree, first)
    with store.locked_directory(first) as first_directory:
        (tree / "run.sh").write_bytes(b"#!/bin/bash\n")
        second = manifest_of(tree)
        ship(store, tree, second)
        with store.locked_directory(second) as released:
            pass
        store.trim(max_bytes=0)
        assert first_directory.is_dir()
        assert not released.exists()
    store.trim(max_bytes=0)
    assert not first_directory.exists()
    assert set(store.missing(first)) == set(first.blobs)


def test_a_full_disk_is_a_fault_of_the_host(tree: Path, tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    store.require_space(least_bytes=0)
    with pytest.raises(HostFaultError, match=r"the disk is full: .* GB are free, a judge needs \d+ GB"):
        store.require_space(least_bytes=1 << 62)
    (tmp_path / "store/incoming").mkdir()
    sha256 = store.missing(manifest_of(tree))[0]
    (tmp_path / f"store/incoming/{sha256}.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(HostFaultError, match="No space left"):
        store.store(sha256, 0, b"x" * 100_000, last=False)


def test_a_parcel_has_the_data_files_that_workloads_read(tmp_path: Path) -> None:
    problem, data = tmp_path / "problem", tmp_path / "data"
    (data / "weights").mkdir(parents=True)
    problem.mkdir()
    (data / "weights/a.safetensors").write_bytes(b"weights")
    (data / "unused.safetensors").write_bytes(b"unused")
    (problem / "own.safetensors").write_bytes(b"own")
    inputs = {
        "x": {"type": "safetensors", "path": "weights/a.safetensors", "tensor_key": "t"},
        "y": {"type": "safetensors", "path": "own.safetensors", "tensor_key": "t"},
        "z": {"type": "random"},
    }
    (problem / "workload.jsonl").write_text(json.dumps({"uuid": "1", "axes": {}, "inputs": inputs}) + "\n")
    assert data_files(problem, data) == ["weights/a.safetensors"]
    line = json.dumps({"problem_dir": str(problem), "solution_dir": None, "data_root": str(data)})
    parcel = parcel_of(line.encode())
    assert parcel.solution_dir is None
    assert parcel.data_root is not None
    assert [file.path for file in parcel.data_root.files] == ["weights/a.safetensors"]
    places = blob_places(Parcel.model_validate_json(parcel.model_dump_json()), line)
    assert {file.name for file, _ in places.values()} == {"workload.jsonl", "own.safetensors", "a.safetensors"}
