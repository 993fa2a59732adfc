"""Solutions with wgmma also pass on a Hopper without it, by the path of a B200 (mma.sync).

`python -m pytest tests/gpu/test_without_wgmma.py -s` prints the speed-up over the eager reference by workload.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.gpu.conftest import answer_on

PROBLEMS = Path(__file__).parents[2] / "problems"
SOLUTIONS = sorted(path.parent.relative_to(PROBLEMS).as_posix() for path in PROBLEMS.glob("*/*/solutions/*/hopper.cuh"))


@pytest.mark.parametrize("name", SOLUTIONS)
def test_it_passes_with_mma_sync(name: str, tmp_path: Path) -> None:
    solution = tmp_path / "solution"
    shutil.copytree(PROBLEMS / name, solution)
    spec = yaml.safe_load((solution / "solution.yaml").read_text())
    spec["compile"] = {"flags": ["-DMMA_SYNC"]}
    (solution / "solution.yaml").write_text(yaml.safe_dump(spec))
    answer = answer_on(solution, (PROBLEMS / name).parents[1], tmp_path, within_s=200)
    assert answer["verdict"] == "PASSED", answer["reason"]
    for workload in answer["workloads"]:
        sys.stdout.write(
            f"{name} {workload['uuid'][:8]}: {workload['latency_us']:.2f} us, {workload['speedup']:.2f}x\n"
        )
