"""`harness doctor`: what works here, what is missing, and the command that fixes it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from harness.cli.display.output import echo, emit, json_option
from harness.cli.preflight.check import Check
from harness.errors import AnswerIsNo, ConfigurationError, HarnessError, HostFaultError
from harness.workspace.directories import Workspace


@click.command()
@click.option(
    "--cluster", metavar="ADDRESS", help="Check a Ray cluster and each of its hosts too; `auto` is this host's."
)
@json_option
def doctor(cluster: str | None, *, as_json: bool) -> None:
    """Say what works here, what is missing, and the command that fixes it. Exit code 1 when something is missing."""
    try:
        workspace: Workspace | None = Workspace.find()
    except ConfigurationError:
        workspace = None
    checks = [*_machine(), *_run(workspace), *_repository(workspace), *_cluster(cluster)]
    settings = _settings(workspace)
    if as_json:
        emit([*(asdict(check) for check in checks), *settings], as_json=True)
    else:
        emit(
            [asdict(check) for check in checks],
            as_json=False,
            columns={name: (lambda row, name=name: row[name]) for name in ("what", "state", "found", "fix")},  # type: ignore[misc]
        )
        if settings:
            echo("\nconfiguration")
            emit(settings, as_json=False)
    missing = [check for check in checks if check.state == "missing"]
    if missing:
        count = f"{len(missing)} {'thing is' if len(missing) == 1 else 'things are'} missing"
        commands = dict.fromkeys(check.fix for check in missing)
        names = ", ".join(check.what for check in missing)
        raise AnswerIsNo(f"{count}: {names}", remedy="type\n    " + "\n    ".join(commands))


def _cluster(address: str | None) -> Iterator[Check]:
    from harness.cli.cluster import cluster_checks

    return cluster_checks(address) if address else iter(())


def _machine() -> Iterator[Check]:
    yield Check("python", "ok", platform.python_version())
    yield from _gpu()


def _gpu() -> Iterator[Check]:
    """The GPU, what its judge needs, and what some languages need beyond that."""
    from importlib.util import find_spec

    from harness.cli.devices import missing_gpu_packages
    from harness.cli.preflight.machine import ask
    from harness.judge.build.toolkit import seek_nvcc
    from harness.judge.devices.mps import require_no_mps
    from harness.sol.hardware import table, target_name
    from harness.sol.measured_gpu import hardware_directory, stored_rates

    said = ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if said is None:
        yield Check("GPU", "note", "none that nvidia-smi sees: device cpu is the default here")
        return
    yield Check("GPU", "ok", said.splitlines()[0])
    target = target_name(said.partition(",")[0].strip())
    if target not in table() and stored_rates(target, hardware_directory()) is None:
        yield Check("GPU bounds", "note", f"none: {target} is neither listed nor measured: harness hardware measure")
    yield _nvrtc()
    lacking = missing_gpu_packages()
    if lacking:
        install = "pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12"
        yield Check("GPU packages", "missing", f"{' and '.join(lacking)}: the device cuda needs them", install)
    try:
        require_no_mps()
    except HostFaultError as error:
        yield Check("MPS", "missing", f"{error.message} ({error.where})", error.remedy or "")
    for name, what, command in (
        ("triton", "language triton", "pip install triton"),
        ("tvm_ffi", "language cuda_cpp", "pip install apache-tvm-ffi"),
        ("cutlass", "language cute_dsl", "pip install nvidia-cutlass-dsl"),
    ):
        if find_spec(name) is None:
            yield Check(name, "note", f"not here: {what} needs it: {command}")
    if seek_nvcc() is None:
        yield Check("nvcc", "note", "not here: language cuda_cpp needs it for .cu sources: set CUDA_HOME to a toolkit")


def _nvrtc() -> Check:
    """The compiler of language cuda, which the judge of every GPU uses too: its version, the driver's, the GPU's."""
    from harness.cli.preflight.machine import ask
    from harness.judge.build.toolkit import compiler_mismatch, find_toolkit, nvrtc_facts

    try:
        facts = nvrtc_facts(find_toolkit().library)
    except ConfigurationError as error:
        return Check("NVRTC", "missing", error.message, (error.remedy or "").partition("   ")[0])
    said = ask("nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader") or ""
    driver, _, capability = said.partition("\n")[0].partition(",")
    if mismatch := compiler_mismatch(facts, driver, capability):
        return Check("NVRTC", "missing", mismatch.reason, mismatch.fix)
    newest = max(facts.architectures, default=0)
    return Check("NVRTC", "ok", f"{facts.version[0]}.{facts.version[1]}, up to sm_{newest}")


def _run(workspace: Workspace | None) -> Iterator[Check]:
    """Requirements of `harness start`, and the device and agent that it takes by default."""
    from harness.cli.devices import choose
    from harness.cli.preflight.requirements import examine
    from harness.model.config import Config
    from harness.workspace.configuration import load_config

    try:
        config = load_config(workspace) if workspace else Config()
    except HarnessError as error:
        yield Check("harness.yaml", "missing", str(error).splitlines()[0], _edit("harness.yaml", error))
        config = Config()
    yield from examine(workspace, config, choose(config))
    if config.agent.network == "host":
        yield Check("agents' network", "note", "host: agents reach the network and use this user's login")


def _repository(workspace: Workspace | None) -> Iterator[Check]:
    from harness.git.repo import Repo

    if workspace is None:
        yield Check("workspace", "note", "none here", "harness init DIR    # or change into one")
        return
    yield Check("workspace", "ok", str(workspace.root))
    try:
        from harness.ledger.coordination import read_assignments
        from harness.workspace.configuration import load_config

        config = load_config(workspace)
        with Repo(workspace) as repo:
            rows = read_assignments(repo, config.coordination_branch)
        yield Check("COORDINATION.md", "ok", f"{len(rows)} rows on {config.coordination_branch}")
    except HarnessError as error:
        where = f"{error.where}: " if error.where else ""
        yield Check("COORDINATION.md", "missing", f"{where}{error.message}", _edit("COORDINATION.md", error))
    yield from _waiting(workspace)
    for name in ("daemon", "planner"):
        yield from _lock(workspace.state / f"{name}.lock", name)


def _edit(name: str, error: HarnessError) -> str:
    """The command that opens a file at the line that an error names."""
    file, _, line = (error.where or name).rpartition(":")
    file = (file if line.isdigit() else error.where or name).partition(" on ")[0]
    return f"${{EDITOR:-vi}} {f'+{line} ' if line.isdigit() else ''}{file}"


def _waiting(workspace: Workspace) -> Iterator[Check]:
    """What the checkout does not show of the coordination branch."""
    from harness.git.repo import Repo
    from harness.workspace.configuration import load_config

    try:
        config = load_config(workspace)
        with Repo(workspace) as repo:
            sentences = repo.checkout_state(config.coordination_branch)
    except HarnessError:
        return  # said above
    for sentence in sentences:
        yield Check("checkout", "note", sentence, "harness status")


def _lock(path: Path, name: str) -> Iterator[Check]:
    from harness.workspace.files import file_lock

    if not path.exists():
        return
    try:
        with file_lock(path, owner="harness doctor"):
            pass
    except ConfigurationError as error:
        yield Check(f"harness {name}", "note", error.message)


def _settings(workspace: Workspace | None) -> list[dict[str, str]]:
    from harness.workspace.configuration import explain_config

    try:
        settings = explain_config(workspace) if workspace else []
    except HarnessError:
        return []  # a complaint of its own
    return [{"key": each.key, "value": str(each.value), "from": each.source} for each in settings]
