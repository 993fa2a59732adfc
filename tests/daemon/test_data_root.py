"""Problems whose inputs are in files outside of the repository."""

from __future__ import annotations

import json
import struct

from harness.model.config import Config
from harness.model.verdict import Verdict
from tests.daemon.conftest import Once, entries_of
from tests.safetensors import write_safetensors
from tests.site import Site, git


def test_the_judge_gets_the_directory_of_file_inputs(site: Site, once: Once) -> None:
    write_safetensors(site.root.parent / "data/x.safetensors", "x", "F32", [64], struct.pack("<64f", *range(64)))
    inputs = {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}
    line = json.dumps({"uuid": "file", "axes": {"n": 64}, "inputs": inputs})
    (site.root / "problems/t/one/workload.jsonl").write_text(line)
    git(site.root, "commit", "--quiet", "-am", "Take the input from a file")
    commit = site.submit("w01", "t/one", "honest")
    once(Config(data_root="../data"))
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.PASSED
    requests = [request for request in site.requests() if request["problem"] == "t/one"]
    assert {request["kind"] for request in requests} == {"baseline", "evaluation", "confirmation"}
    assert {request["data_root"] for request in requests} == {str(site.root / "../data")}
