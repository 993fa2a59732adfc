"""`harness doctor`: what works here, what is missing, and the command that fixes it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from harness.cli.check import Check
from harness.cli.output import echo, emit, json_option
from harness.errors import AnswerIsNo, ConfigurationError, HarnessError
from harness.workspace.directories import Workspace

_FREE_GB = 5
_GIT = (2, 30)
_ASK_S = 20


@click.command()
@json_option
def doctor(*, as_json: bool) -> None:
    """Say what works here, what is missing, and the command that fixes it. Exit code 1 when something is missing."""
    try:
        workspace: Workspace | None = Workspace.find()
    except ConfigurationError:
        workspace = None
    checks = [*_machine(), *_defaults(workspace), *_repository(workspace)]
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


def _machine() -> Iterator[Check]:
    yield Check("python", "ok", platform.python_version())
    yield _git()
    yield _compiler()
    yield _sandbox()
    yield _torch()
    yield from _gpu()
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    fix = "" if free > _FREE_GB else "rm -r .harness/cache    # derived, made again when needed"
    yield Check("disk", "ok" if free > _FREE_GB else "missing", f"{free:.0f} GB free", fix)


def _git() -> Check:
    said = _ask("git", "--version")
    if said is None:
        return Check("git", "missing", "not installed", "apt-get install git")
    version = said.split()[2]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _GIT:
        return Check("git", "missing", f"{version}: needs {_GIT[0]}.{_GIT[1]} or newer", "apt-get install git")
    return Check("git", "ok", version)


def _compiler() -> Check:
    from harness.cli.preflight import compiler

    found = compiler()
    said = _ask(found, "--version") if found else None
    if said is None:
        return Check("C++ compiler", "missing", "none: language cpp and torch.compile need one", "apt-get install g++")
    return Check("C++ compiler", "ok", said.splitlines()[0])


def _sandbox() -> Check:
    from harness.judge.sandbox import check

    try:
        check("bubblewrap")
    except ConfigurationError as error:
        return Check("bubblewrap", "missing", error.what, error.remedy or "apt-get install bubblewrap")
    return Check("bubblewrap", "ok", (_ask("bwrap", "--version") or "").strip() + ", tried")


def _torch() -> Check:
    from importlib import metadata

    try:
        return Check("torch", "ok", metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Check("torch", "missing", "not installed", "pip install torch")


def _gpu() -> Iterator[Check]:
    """The GPU, what its judge needs, and what some languages need beyond that."""
    from importlib.util import find_spec

    from harness.judge.toolkit import seek_nvcc

    said = _ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if said is None:
        yield Check("GPU", "note", "none that nvidia-smi sees: device cpu is the default here")
        return
    yield Check("GPU", "ok", said.splitlines()[0])
    lacking = [name for name in ("cupy", "pynvml") if find_spec(name) is None]
    if lacking:
        install = "pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12"
        yield Check("GPU packages", "missing", f"{' and '.join(lacking)}: the device cuda needs them", install)
    for name, what, command in (
        ("triton", "language triton", "pip install triton"),
        ("tvm_ffi", "language cuda_cpp", "pip install apache-tvm-ffi"),
        ("cutlass", "language cute_dsl", "pip install nvidia-cutlass-dsl"),
    ):
        if find_spec(name) is None:
            yield Check(name, "note", f"not here: {what} needs it: {command}")
    if seek_nvcc() is None:
        yield Check("nvcc", "note", "not here: language cuda_cpp needs it for .cu sources: set CUDA_HOME to a toolkit")


def _defaults(workspace: Workspace | None) -> Iterator[Check]:
    """What `harness start` takes when nobody says, and why."""
    from harness.agents.kinds import default_kind
    from harness.cli.devices import choose
    from harness.cli.doctor_agents import agent_checks
    from harness.model.config import Config
    from harness.workspace.configuration import load_config

    try:
        config = load_config(workspace) if workspace else Config()
    except HarnessError as error:
        yield Check("harness.yaml", "missing", str(error).splitlines()[0], _edit("harness.yaml", error))
        return
    chosen = choose(config)
    yield Check("default device", "ok", f"{', '.join(chosen.devices)}: {chosen.why}")
    if config.agent.kind is None:
        kind = default_kind(config, chosen.devices)
        why = "a GPU and a key are here" if kind == "claude" else "needs no key and no model"
        yield Check("default agent", "ok", f"{kind}: {why}")
    else:
        yield Check("default agent", "ok", f"{config.agent.kind}: as configured")
    yield from agent_checks(config)


def _repository(workspace: Workspace | None) -> Iterator[Check]:
    from harness.git.repo import Repo, requirements

    if workspace is None:
        yield Check("workspace", "note", "none here", "harness init DIR    # or change into one")
        return
    yield Check("workspace", "ok", str(workspace.root))
    for sentence in requirements(workspace):
        what, _, command = sentence.partition(": ")
        yield Check("repository", "missing", what, command.strip("`").replace("` (", "    # (") or "git fsck")
    try:
        from harness.ledger.coordination import read_assignments
        from harness.workspace.configuration import load_config

        config = load_config(workspace)
        with Repo(workspace) as repo:
            rows = read_assignments(repo, config.coordination_branch)
        yield Check("COORDINATION.md", "ok", f"{len(rows)} rows on {config.coordination_branch}")
    except HarnessError as error:
        where = f"{error.where}: " if error.where else ""
        yield Check("COORDINATION.md", "missing", f"{where}{error.what}", _edit("COORDINATION.md", error))
    yield from _waiting(workspace)
    for name in ("start", "daemon", "planner"):
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
        yield Check(f"harness {name}", "note", error.what, "harness stop" if name == "start" else "")


def _settings(workspace: Workspace | None) -> list[dict[str, str]]:
    from harness.workspace.configuration import explain_config

    try:
        settings = explain_config(workspace) if workspace else []
    except HarnessError:
        return []  # a complaint of its own
    return [{"key": each.key, "value": str(each.value), "from": each.source} for each in settings]


def _ask(*command: str) -> str | None:
    """What a program prints, or None when it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
