"""`harness start` on a machine with a missing part prints one line with the fix, and starts no process.

`harness doctor` checks the same list and reports the same part as missing.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from harness.agents.visibility import check_program
from harness.cli.devices import DeviceChoice
from harness.cli.preflight import machine as machine_checks
from harness.cli.preflight.check import Check, RunPlan
from harness.cli.preflight.machine import check_torch
from harness.cli.preflight.torch_trial import (
    TRIAL_TIMEOUT_S,
    TorchTrial,
    TrialDevice,
    remember,
    success_record,
    try_torch,
)
from harness.errors import ConfigurationError
from harness.judge.devices.cuda_environment import runner_environment
from harness.model.config import AgentConfig, Config
from harness.model.process_status import DaemonStatus
from harness.workspace.status import write_status
from tests.cli.situations import HARNESS, Place, Situation
from tests.cli.wrong_uses import ROWS, SLOW_ROWS, WrongUse
from tests.site import Site, git

OWN_JUDGE = {"HARNESS_JUDGE_COMMAND": "", "CXX": ""}


def named(row: WrongUse) -> str:
    return row.name


def run_in_situation(
    place: Place, situation: Situation, *arguments: str, in_process: bool = True, extra: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a situation; stdout and stderr are merged."""
    cache = {"XDG_CACHE_HOME": str(place.scratch / "cache")}  # no stored result of an earlier trial of torch
    site = Site(situation.directory, place.site.scratch) if situation.directory else place.site
    whole = {**extra, **cache, **situation.environment}
    if in_process and situation.program is None:
        return site.call(*arguments, extra=whole)
    return site.run_program([*(situation.program or HARNESS), *arguments], extra=whole)


def refs_and_files(site: Site) -> tuple[str, list[str]]:
    worktrees = [path.name for path in site.workspace.worktrees.iterdir()]
    return git(site.root, "for-each-ref"), worktrees


def check_error(row: WrongUse, site: Site, scratch: Path, *, in_process: bool = True) -> float:
    """Run a wrong use, check its error, and return the elapsed seconds."""
    scratch.mkdir()
    with ExitStack() as stack:
        place = Place(site, scratch, stack)
        situation = row.arrange(place)
        before = refs_and_files(site)
        begin = time.monotonic()
        completed = run_in_situation(place, situation, *row.arguments, in_process=in_process, extra=OWN_JUDGE)
        took_s = time.monotonic() - begin
        assert refs_and_files(site) == before, "no commit, branch or worktree was made"
    assert completed.returncode == 2, completed.stdout
    lines = [line for line in completed.stdout.splitlines() if not line.startswith("trying torch inside")]
    assert len(lines) == 2, completed.stdout
    error, fix = lines
    assert error.startswith("harness: "), error
    assert re.search(row.message, error), error
    assert fix.startswith("  "), fix
    assert row.fix in fix, fix
    assert not list(site.workspace.logs.glob("*.log")), "no process of a run has a log"
    return took_s


def test_the_table_has_at_least_25_rows_with_names_of_their_own() -> None:
    names = [row.name for row in (*ROWS, *SLOW_ROWS)]
    assert len(names) == len(set(names)) >= 25


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_wrong_use_is_refused_with_one_line_and_its_fix(row: WrongUse, site: Site, tmp_path: Path) -> None:
    check_error(row, site, tmp_path / "row")


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("row", [*ROWS, *SLOW_ROWS], ids=named)
def test_a_wrong_use_is_refused_in_time(row: WrongUse, site: Site, tmp_path: Path) -> None:
    assert check_error(row, site, tmp_path / "row", in_process=False) < row.within_s


def doctor(row: WrongUse, site: Site, scratch: Path, extra: Mapping[str, str]) -> None:
    """Check that `harness doctor` reports as missing the part for which `harness start` fails."""
    scratch.mkdir()
    with ExitStack() as stack:
        place = Place(site, scratch, stack)
        completed = run_in_situation(place, row.arrange(place), "doctor", "--json", extra=extra)
    assert completed.returncode == 1, completed.stdout
    rows, end = json.JSONDecoder().raw_decode(completed.stdout)
    (check,) = [check for check in rows if check.get("what") == row.doctor]
    assert check["state"] == "missing"
    assert row.fix in check["fix"] or row.doctor == "harness.yaml"
    assert str(row.doctor) in completed.stdout[end:], "the summary names it"


JUDGE = {"torch", "bubblewrap"}
"""Requirements of the harness' own judge only."""
DISK = {"files", "disk"}
CPU = TrialDevice()


@pytest.mark.parametrize("row", [row for row in ROWS if row.doctor and row.doctor not in JUDGE | DISK], ids=named)
def test_doctor_finds_what_start_refuses(row: WrongUse, site: Site, tmp_path: Path) -> None:
    doctor(row, site, tmp_path / "row", {})


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row.doctor in DISK], ids=named)
def test_doctor_finds_a_disk_that_cannot_be_written(row: WrongUse, site: Site, tmp_path: Path) -> None:
    doctor(row, site, tmp_path / "row", {})


@pytest.mark.parametrize("row", [row for row in ROWS if row.doctor in JUDGE], ids=named)
def test_doctor_does_not_call_ok_what_the_sandbox_lacks(row: WrongUse, site: Site, tmp_path: Path) -> None:
    doctor(row, site, tmp_path / "row", OWN_JUDGE)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in SLOW_ROWS if row.doctor], ids=named)
def test_doctor_tries_torch_compile(row: WrongUse, site: Site, tmp_path: Path) -> None:
    doctor(row, site, tmp_path / "row", OWN_JUDGE)


@pytest.mark.slow
def test_a_trial_of_torch_is_made_once(tmp_path: Path) -> None:
    plan = machine(tmp_path)
    messages: list[str] = []
    for _ in range(2):
        assert "torch.compile tried inside the sandbox" in str(check_torch(replace(plan, show=messages.append)))
    assert len(messages) == 1
    check_torch(replace(plan, show=messages.append, thorough=True))
    assert len(messages) == 2, "doctor reuses no earlier trial"


def test_a_trial_is_remembered_for_what_it_was_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(tmp_path, "bubblewrap", CPU)
    assert success_record(tmp_path, "bubblewrap", CPU).is_file()
    assert not success_record(tmp_path, "none", CPU).is_file()
    assert not success_record(tmp_path, "bubblewrap", TrialDevice("cuda")).is_file()
    monkeypatch.setenv("CXX", "/bin/true")
    assert not success_record(tmp_path, "bubblewrap", CPU).is_file(), "another compiler"
    monkeypatch.delenv("CXX")
    assert success_record(tmp_path, "bubblewrap", CPU).is_file()


def test_a_trial_without_an_answer_is_not_repeated_and_one_that_failed_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_JUDGE_COMMAND", raising=False)
    plan = machine(tmp_path)
    monkeypatch.setattr(machine_checks, "_TRIAL_S", 0.01)
    check_torch(plan)
    assert success_record(tmp_path, "bubblewrap", CPU).is_file()
    monkeypatch.setattr(machine_checks, "TRIAL_TIMEOUT_S", 0.01)
    with pytest.raises(ConfigurationError, match=r"torch\.compile does not work inside the sandbox: no answer within"):
        check_torch(replace(plan, thorough=True))
    assert not success_record(tmp_path, "bubblewrap", CPU).is_file()


def test_a_gpu_run_compiles_on_its_gpu_and_ends_with_the_compilers_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the trial records its devices, as the runners of their judges see them."""
    monkeypatch.delenv("HARNESS_JUDGE_COMMAND", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    tried: list[TrialDevice] = []

    def stand_in(kind: str, device: TrialDevice, *, within_s: float) -> TorchTrial:
        tried.append(device)
        assert kind == "bubblewrap"
        assert within_s * 2 <= 18, "both trials together end before 20 s"
        return TorchTrial(no_compile="RuntimeError: Failed to find C compiler" if device.name == "cuda" else None)

    monkeypatch.setattr(machine_checks, "try_torch", stand_in)
    plan = machine(tmp_path, "cuda:1", "cpu")
    with pytest.raises(ConfigurationError, match=r"on the GPU: RuntimeError: Failed to find C compiler") as refused:
        check_torch(plan)
    assert "apt-get install gcc" in str(refused.value.remedy)
    assert [device.name for device in tried] == ["cpu", "cuda"]
    assert tried[1].env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert success_record(tmp_path, "bubblewrap", tried[0]).is_file()
    assert not success_record(tmp_path, "bubblewrap", tried[1]).is_file()


def test_doctor_leaves_a_gpu_alone_on_which_a_run_is_timed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_JUDGE_COMMAND", raising=False)
    write_status(site.workspace, DaemonStatus())
    plan = replace(machine(tmp_path, "cuda"), workspace=site.workspace, thorough=True)
    result = check_torch(plan)
    assert isinstance(result, Check)
    assert "not tried, since a run on this GPU is in progress" in result.result


@pytest.mark.slow
def test_a_trial_for_a_gpu_compiles_in_a_sandbox_with_its_device_nodes() -> None:
    """Without a GPU, CUDA is missing; with the CPU as a stand-in, `torch.compile` works in the sandbox."""
    shown = TrialDevice("cuda", ("/dev/null",), runner_environment("0"))
    trial = try_torch("bubblewrap", shown, within_s=TRIAL_TIMEOUT_S)
    assert trial.no_import is None
    assert re.search("CUDA|NVIDIA", str(trial.no_compile)), trial
    assert try_torch("bubblewrap", replace(shown, name="cpu"), within_s=TRIAL_TIMEOUT_S) == TorchTrial()


def machine(cache: Path, *devices: str) -> RunPlan:
    """Return a plan of a run outside of any workspace, on the CPU by default."""
    return RunPlan(None, Config(), DeviceChoice(devices or ("cpu",), "cpu", ""), "tuner", cache)


def test_a_script_in_agent_binds_is_visible(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("")
    command = AgentConfig(kind="command", command=f"python3 {script}")
    with pytest.raises(ConfigurationError, match=r"does not show .*agent\.py") as refused:
        check_program(Config(agent=command), "command", None)
    assert "agent.binds" in str(refused.value.remedy)
    shown = command.model_copy(update={"binds": (str(script),)})
    assert check_program(Config(agent=shown), "command", None) == "python3"
