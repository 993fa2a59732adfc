"""`harness doctor`: its rows, the missing parts, and its fixes."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.cli.preflight.check import Check
from tests.cli.test_devices import see_gpu
from tests.site import Site, git
from tests.waiting import wait_until


def checks(site: Site, extra: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    completed = site.call("doctor", "--json", extra=extra)
    rows, _ = json.JSONDecoder().raw_decode(completed.stdout)
    return completed.returncode, {row["what"]: row for row in rows if "what" in row}


def without(tmp_path: Path, *missing: str) -> str:
    """Return a PATH with all programs except some."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            if program.name not in missing:
                link = directory / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    return str(directory)


def test_a_complete_machine_passes_all_checks(site: Site) -> None:
    completed = site.call("doctor")
    assert completed.returncode == 0, completed.stdout
    for check in (
        "python",
        "git",
        "C++ compiler",
        "bubblewrap",
        "torch",
        "GPU",
        "default agent",
        "disk",
        "COORDINATION.md",
    ):
        assert f"\n{check} " in completed.stdout, check
    assert "missing" not in completed.stdout
    assert "configuration" in completed.stdout
    assert "policy.slice_evaluations" in completed.stdout


def test_what_is_missing_comes_with_the_command_that_fixes_it(site: Site, tmp_path: Path) -> None:
    path = without(tmp_path, "bwrap", "c++", "g++", "clang++", "gcc", "cc")
    code, rows = checks(site, {"PATH": path, "CXX": "", "HARNESS_JUDGE_COMMAND": ""})
    assert code == 1
    assert rows["bubblewrap"]["state"] == "missing"
    assert "bubblewrap" in rows["bubblewrap"]["fix"]
    assert (rows["C++ compiler"]["state"], rows["C++ compiler"]["fix"]) == ("missing", "apt-get install g++")
    assert rows["git"]["state"] == "ok"


def test_only_the_fixes_that_exist_are_listed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fix, without_fix = Check("a", "missing", "broken", "pip install a"), Check("b", "missing", "broken")
    monkeypatch.setattr("harness.cli.doctor._run", lambda _: [])
    monkeypatch.setattr("harness.cli.doctor._machine", lambda: [without_fix, with_fix])
    shown = site.call("doctor").stdout
    assert shown.endswith("harness: 2 requirements are missing: b, a\n  to fix:\n    pip install a\n")
    monkeypatch.setattr("harness.cli.doctor._machine", lambda: [without_fix])
    assert site.call("doctor").stdout.endswith("harness: 1 requirement is missing: b\n")


def test_every_value_comes_with_its_source(site: Site) -> None:
    config = site.root / "harness.yaml"
    config.write_text(config.read_text() + "\nworkers: 7\n")
    line = config.read_text().splitlines().index("workers: 7") + 1
    completed = site.call("doctor", "--json")
    settings = {row["key"]: row for row in json.loads(completed.stdout) if "key" in row}
    assert settings["workers"]["value"] == "7"
    assert f"harness.yaml:{line}" in settings["workers"]["from"]
    assert settings["policy.stale_after"]["from"] == "default"


def test_the_default_device_and_agent_are_given_with_the_reason(site: Site) -> None:
    _, rows = checks(site)
    assert rows["default device"]["found"].startswith("cpu: ")
    assert rows["default agent"]["found"].startswith("tuner: ")
    assert rows["model key"]["state"] == "note"
    assert "CLI 2." in rows["claude SDK"]["found"]
    assert rows["agents' sandbox"]["state"] == "ok"


def test_what_claude_lacks_is_missing_only_when_it_is_wanted(site: Site) -> None:
    site.workspace.config_file.write_text(f"{site.workspace.config_file.read_text()}\nagent: {{kind: claude}}\n")
    _, rows = checks(site)
    assert rows["model key"]["state"] == "missing"
    assert rows["model key"]["fix"].startswith("export ANTHROPIC_API_KEY=...")


def test_what_runs_here_is_named(site: Site) -> None:
    process = site.start("planner")
    wait_until((site.workspace.status / "planner.json").exists, event="a planner")
    _, rows = checks(site)
    assert str(process.pid) in rows["harness planner"]["found"]


def test_a_broken_table_is_found(site: Site) -> None:
    file = site.root / "COORDINATION.md"
    end = "<!-- harness:assignments end -->"
    file.write_text(file.read_text().replace(end, f"| w01 | nowhere |\n{end}"))
    git(site.root, "commit", "--quiet", "--all", "-m", "Break the table")
    code, rows = checks(site)
    assert code == 1
    assert "COORDINATION.md on main:" in rows["COORDINATION.md"]["found"]


def test_it_works_outside_a_workspace(site: Site, tmp_path: Path) -> None:
    _, rows = checks(Site(tmp_path, site.scratch))
    assert rows["workspace"]["state"] == "note"
    assert "harness init" in rows["workspace"]["fix"]
    assert "COORDINATION.md" not in rows


def test_every_complaint_ends_with_a_command(site: Site, tmp_path: Path) -> None:
    path = without(tmp_path, "bwrap", "c++", "g++", "clang++", "gcc", "cc")
    config = site.root / "harness.yaml"
    config.write_text(config.read_text() + "\nworkers: none\n")
    line = len(config.read_text().splitlines())
    completed = site.call("doctor", "--json", extra={"PATH": path, "CXX": "", "HARNESS_JUDGE_COMMAND": ""})
    assert completed.returncode == 1
    text = completed.stdout[: completed.stdout.rindex("]") + 1] if "]" in completed.stdout else "[]"
    rows = {row["what"]: row for row in json.loads(text) if "what" in row}
    assert rows["harness.yaml"]["fix"] == f"${{EDITOR:-vi}} +{line} harness.yaml"
    complaints = [row for row in rows.values() if row["state"] == "missing"]
    assert len(complaints) >= 3
    for row in complaints:
        assert row["fix"].split()[0] in {"apt-get", "sudo", "pip", "git", "harness", "rm", "${EDITOR:-vi}"}, row
        assert f"    {row['fix']}" in completed.stdout


def test_what_a_gpu_needs_is_looked_for(site: Site, tmp_path: Path) -> None:
    code, rows = checks(site, {"PATH": see_gpu(tmp_path / "smi", "NVIDIA H200"), "CUDA_HOME": "/nowhere"})
    assert rows["GPU"]["found"] == "NVIDIA H200"
    assert rows["NVRTC"]["state"] == "ok"
    assert ", up to sm_1" in rows["NVRTC"]["found"]
    if find_spec("cupy") is None:  # as in every environment without a GPU
        assert code == 1
        assert rows["GPU packages"]["state"] == "missing"
        assert rows["GPU packages"]["fix"].startswith("pip install 'kernel-harness[gpu13]'")
        assert rows["default device"]["found"].startswith(
            "cpu: a GPU was detected (h200), but these packages are missing: cupy"
        )
    if find_spec("cutlass") is None:
        assert "pip install nvidia-cutlass-dsl" in rows["cutlass"]["found"]


def test_a_driver_that_is_too_old_for_the_compiler_is_named(site: Site, tmp_path: Path) -> None:
    path = see_gpu(tmp_path / "smi", "470.57.02, 10.0")
    code, rows = checks(site, {"PATH": path})
    assert code == 1
    assert rows["NVRTC"]["state"] == "missing"
    assert "needs a driver of" in rows["NVRTC"]["found"]
    assert "470.57.02" in rows["NVRTC"]["found"]
