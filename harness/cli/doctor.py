"""`harness doctor`: checks of this machine and workspace, and the commands that fix what is missing."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec

import click

from harness.cli.devices import choose_devices, require_gpu_packages
from harness.cli.display.output import echo, emit, json_option
from harness.cli.preflight.check import Check
from harness.errors import AnswerIsNo, ConfigurationError, HarnessError
from harness.git.repo import Repo
from harness.ledger.coordination import read_assignments
from harness.model.config import Config
from harness.model.printable import count_of
from harness.sol.hardware import table, target_name
from harness.sol.measured_gpu import hardware_directory, stored_rates
from harness.workspace.configuration import explain_config, load_config
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock
from harness.workspace.processes import output_of


@click.command()
@click.option(
    "--cluster", metavar="ADDRESS", help="Check a Ray cluster and each of its hosts too; `auto` is this host's."
)
@json_option
def doctor(cluster: str | None, *, as_json: bool) -> None:
    """Check this machine and workspace, and print the commands that fix problems.

    The exit code is 1 if a requirement is missing.
    """
    from harness.cli.cluster import cluster_checks

    try:
        workspace: Workspace | None = Workspace.find()
    except ConfigurationError:
        workspace = None
    checks = [*_machine(), *_run(workspace), *_repository(workspace), *(cluster_checks(cluster) if cluster else ())]
    settings = _settings(workspace)
    if as_json:
        emit([*(check.row() for check in checks), *settings], as_json=True)
    else:
        emit([check.row() for check in checks], as_json=False)
        if settings:
            echo("\nconfiguration")
            emit(settings, as_json=False)
    missing = [check for check in checks if check.state == "missing"]
    if missing:
        count = f"{len(missing)} {'requirement is' if len(missing) == 1 else 'requirements are'} missing"
        fixes = dict.fromkeys(check.fix for check in missing if check.fix)
        names = ", ".join(check.name for check in missing)
        raise AnswerIsNo(f"{count}: {names}", remedy="\n    ".join(["to fix:", *fixes]) if fixes else None)


def _machine() -> Iterator[Check]:
    """Yield checks of Python, the GPU, the packages of its judge, and the packages of some languages."""
    from harness.judge.build.toolkit import seek_nvcc
    from harness.judge.devices.cuda_environment import require_no_mps

    yield Check("python", "ok", platform.python_version())
    gpu_line = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if gpu_line is None:
        yield Check("GPU", "note", "nvidia-smi lists no GPU: the default device is cpu")
        return
    yield Check("GPU", "ok", gpu_line.splitlines()[0])
    target = target_name(gpu_line.partition(",")[0].strip())
    if target not in table() and stored_rates(target, hardware_directory()) is None:
        yield Check("GPU bounds", "note", f"none: {target} is neither listed nor measured: harness hardware measure")
    yield _nvrtc()
    for name, require in (("GPU packages", require_gpu_packages), ("MPS", require_no_mps)):
        try:
            require()
        except HarnessError as error:
            yield Check.of_error(name, error)
    for name, language, command in (
        ("triton", "language triton", "pip install triton"),
        ("tvm_ffi", "language cuda_cpp", "pip install apache-tvm-ffi"),
        ("cutlass", "language cute_dsl", "pip install nvidia-cutlass-dsl"),
    ):
        if find_spec(name) is None:
            yield Check(name, "note", f"not installed: {language} needs it: {command}")
    if seek_nvcc() is None:
        yield Check(
            "nvcc", "note", "not installed: language cuda_cpp needs it for .cu sources: set CUDA_HOME to a toolkit"
        )


def _nvrtc() -> Check:
    """Check that NVRTC, the compiler of language cuda, supports the driver and the GPU; the GPU judge needs it too."""
    from harness.judge.build.toolkit import compiler_mismatch, find_toolkit, nvrtc_facts

    try:
        facts = nvrtc_facts(find_toolkit().library)
    except ConfigurationError as error:
        return Check("NVRTC", "missing", error.message, (error.remedy or "").partition("   ")[0])
    gpu_line = output_of("nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader") or ""
    driver, _, capability = gpu_line.partition("\n")[0].partition(",")
    if mismatch := compiler_mismatch(facts, driver, capability):
        return Check("NVRTC", "missing", mismatch.reason, mismatch.fix)
    newest = max(facts.architectures, default=0)
    return Check("NVRTC", "ok", f"{facts.version[0]}.{facts.version[1]}, up to sm_{newest}")


def _run(workspace: Workspace | None) -> Iterator[Check]:
    """Yield checks of the requirements of `harness start`, with its default device and agent."""
    from harness.cli.preflight.requirements import examine

    try:
        config = load_config(workspace) if workspace else Config()
    except HarnessError as error:
        yield Check("harness.yaml", "missing", str(error).splitlines()[0], _edit("harness.yaml", error))
        config = Config()
    yield from examine(workspace, config, choose_devices(config))
    if config.agent.network == "host":
        yield Check("agents' network", "note", "host: agents reach the network and use this user's login")


def _repository(workspace: Workspace | None) -> Iterator[Check]:
    if workspace is None:
        yield Check("workspace", "note", "not in a workspace", "harness init DIR    # or change into a workspace")
        return
    yield Check("workspace", "ok", str(workspace.root))
    try:
        config = load_config(workspace)
        with Repo(workspace) as repo:
            for sentence in repo.checkout_state(config.coordination_branch):
                yield Check("checkout", "note", sentence, "harness status")
            rows = read_assignments(repo, config.coordination_branch)
        yield Check("COORDINATION.md", "ok", f"{count_of(len(rows), 'row')} on {config.coordination_branch}")
    except HarnessError as error:
        yield Check.of_error("COORDINATION.md", error, fix=_edit("COORDINATION.md", error))
    for name in ("daemon", "planner"):
        lock = workspace.state / f"{name}.lock"
        try:
            with file_lock(lock, owner="harness doctor") if lock.exists() else nullcontext():
                pass
        except ConfigurationError as error:
            yield Check(f"harness {name}", "note", error.message)


def _edit(name: str, error: HarnessError) -> str:
    """Return the command that opens a file at the line that an error names."""
    file, _, line = (error.where or name).rpartition(":")
    file = (file if line.isdigit() else error.where or name).partition(" on ")[0]
    return f"${{EDITOR:-vi}} {f'+{line} ' if line.isdigit() else ''}{file}"


def _settings(workspace: Workspace | None) -> list[dict[str, str]]:
    try:
        settings = explain_config(workspace) if workspace else []
    except HarnessError:
        return []  # another check reports this error
    return [{"key": setting.key, "value": str(setting.value), "from": setting.source} for setting in settings]
