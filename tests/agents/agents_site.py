"""A site whose workers run Claude through the real SDK and CLI, with a scripted model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from harness.git.repo import Repo
from harness.ledger.coordination import read_text, render
from harness.model.assignment import Assignment
from harness.model.entry import Entry
from harness.model.process_status import WorkerStatus
from harness.model.verdict import EntryKind
from harness.workspace.status import read_status
from tests.scripted_model import ScriptedModel, Step, Use
from tests.site import KERNEL, SOLUTION, Site, git
from tests.waiting import wait_until

KEY = "sk-scripted-0123456789"


def environment(model: ScriptedModel, key: str = KEY) -> dict[str, str]:
    """Return the environment variables with which a process of the harness reaches the scripted model."""
    return {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": key, "ANTHROPIC_AUTH_TOKEN": ""}


def assign(site: Site, *rows: Assignment) -> None:
    """Commit a table of assignments."""
    with Repo(site.workspace) as repo:
        text = render(
            read_text(repo, "main"), assignments=rows, standings_markdown="", notes={}, updated_at="2026-01-01"
        )
        repo.commit_files("main", {"COORDINATION.md": text.encode()}, "Assign")


def row(problem: str, worker: str = "w01") -> Assignment:
    return Assignment(worker=worker, problem=problem, wanted="make it faster")


def configure(site: Site, text: str) -> None:
    """Append settings to harness.yaml."""
    file = site.workspace.config_file
    file.write_text(f"{file.read_text()}\n{text}\n")


def wait_for_status(site: Site, event: str, condition: Callable[[WorkerStatus], object], worker: str = "w01") -> None:
    """Wait until a worker's status record meets a condition."""

    def meets() -> bool:
        status = read_status(site.workspace, WorkerStatus, worker)
        return status is not None and bool(condition(status))

    try:
        wait_until(meets, event=f"{worker} {event}", deadline_s=240)
    except TimeoutError as error:
        status = read_status(site.workspace, WorkerStatus, worker)
        raise AssertionError(f"{error}; {status}\n{log(site, worker)[-6000:]}") from None


def log(site: Site, worker: str = "w01") -> str:
    """Return the log of a worker; empty before the worker has started."""
    file = site.workspace.logs / f"worker-{worker}.log"
    return file.read_text() if file.exists() else ""


def evaluations(site: Site, problem: str = "t/one") -> list[Entry]:
    """Return the evaluations of a problem in the order of the ledger."""
    return [entry for entry in site.entries(problem) if entry.kind is EntryKind.EVALUATION]


def verdicts(site: Site, problem: str = "t/one") -> list[str]:
    """Return the verdicts of a problem's evaluations in the order of the ledger."""
    return [str(entry.verdict) for entry in evaluations(site, problem)]


def processes_below(*pids: int) -> list[tuple[int, str]]:
    """Return pid -> command line of the descendants of processes, including those in sandboxes."""
    parents, commands = {}, {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat = (directory / "stat").read_text().rpartition(")")[2].split()
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if stat[0] not in "ZX":
            parents[int(directory.name)], commands[int(directory.name)] = int(stat[1]), command
    wanted = set(pids)
    while True:
        children = {pid for pid, parent in parents.items() if parent in wanted} - wanted
        if not children:
            return [(pid, commands[pid]) for pid in wanted - set(pids) if pid in commands]
        wanted |= children


def solution_path(problem: str) -> str:
    return f"/task/problems/{problem}/solutions/cpu"


def write(problem: str, name: str, text: str) -> Use:
    return Use("Write", {"file_path": f"{solution_path(problem)}/{name}", "content": text})


def kernel(problem: str, text: str) -> tuple[Step, ...]:
    """Return the steps that write a solution; `text` holds directives to the stub judge."""
    return (
        write(problem, "solution.yaml", SOLUTION),
        write(problem, "kernel.cpp", f"{KERNEL}// {text}\n"),
    )


def bash(command: str) -> Use:
    return Use("Bash", {"command": command})


def submit(message: str = "try") -> Use:
    return Use("mcp__harness__submit", {"message": message})


def finished(problem: str) -> Callable[[WorkerStatus], bool]:
    return lambda status: problem in status.finished


def branches(site: Site) -> list[str]:
    """Return the branches of the workers."""
    return git(site.root, "branch", "--list", "--format=%(refname:short)", "agents/*").split()


def submitted_trees(site: Site, branch: str) -> list[str]:
    """Return the solution trees of a branch's submissions, which are the commits with the trailer `Worker`."""
    place = f"problems/{'/'.join(branch.split('/')[3:])}/solutions/cpu"
    commits = git(site.root, "log", "--format=%H %(trailers:key=Worker,valueonly,separator=)", f"main..{branch}")
    submissions = [line.split()[0] for line in commits.splitlines() if len(line.split()) == 2]
    return [git(site.root, "rev-parse", f"{commit}:{place}") for commit in submissions]


def accounts_usd(site: Site) -> list[float]:
    """Return the cost of each account in the committed ledger, in USD."""
    documents = yaml.safe_load_all(git(site.root, "show", "main:ledger/accounts.yaml"))
    return [float(document["usd"]) for document in documents if document and "usd" in document]
