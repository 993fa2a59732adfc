"""`harness audit --rerun` repeats measurements of the ledger."""

from __future__ import annotations

import json

from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.model.entry import Candidate
from tests.ledger.ledgers import draft, workload
from tests.site import Site


def enter_forged_evaluation(site: Site, speedup: float) -> None:
    """Enter a forged measurement whose numbers are consistent with each other."""
    commit = site.submit("w09", "t/two", "stub: speedup=1.2")
    workloads = [workload(speedup, seed=number).model_copy(update={"uuid": f"t/two-{number}"}) for number in (0, 1)]
    digest = problem_digest(site.root / "problems/t/two")
    measurement = draft(problem="t/two", digest=digest, workloads=workloads)
    candidate = Candidate(commit=commit.id, tree=commit.tree, branch=commit.branch, worker="w09", language="cpp")
    with Repo(site.workspace) as repo, Ledger(site.workspace, repo, branch="main") as ledger:
        ledger.append(measurement.model_copy(update={"candidate": candidate}))


def test_a_measurement_is_reproduced_and_a_forged_one_is_not(site: Site) -> None:
    site.submit("w01", "t/one", "stub: speedup=1.5")
    site.submit("w02", "t/one", "stub: speedup=1.1")
    assert site.call("daemon", "--once").returncode == 0
    honest = site.call("audit", "--rerun", "5", "--seed", "1")
    assert honest.returncode == 0, honest.stdout
    assert honest.stdout.count("as recorded") == 2  # the champion by its confirmation, and the other evaluation
    assert "between sessions a speed-up varies by 5.00% (an assumption" in honest.stdout

    enter_forged_evaluation(site, 2.5)
    completed = site.call("audit", "--rerun", "1", "--top", "--json")
    assert completed.returncode == 1
    report = json.loads(completed.stdout[completed.stdout.index("{") : completed.stdout.rindex("}") + 1])
    assert report["whole"], "only a rerun detects it"
    (mismatch,) = report["reruns"]
    assert (mismatch["problem"], mismatch["holds"]) == ("t/two", False)
    assert mismatch["recorded"] > mismatch["expected"][0] > 1.9
    assert 1.15 < mismatch["measured"] < 1.25
    assert "1 of 1 entries could not be reproduced: t/two seq 1" in completed.stdout


def test_a_missing_device_is_reported(site: Site) -> None:
    completed = site.call("audit", "--rerun", "1", "--device", "nonsense", extra={"HARNESS_JUDGE_COMMAND": ""})
    assert completed.returncode == 2
    assert "nonsense" in completed.stdout
