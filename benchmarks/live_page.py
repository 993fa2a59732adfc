"""Load and update times of the page of `harness serve` on a large ledger, in Chromium.

    python -m benchmarks.live_page [--problems 235] [--entries 20000] [--keep DIR]

It creates a ledger in a temporary directory and removes it. Times are wall-clock times with the browser's work. The
page counts as loaded when its table is complete and a frame was drawn after that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, Page

from benchmarks.ledger import Figure, print_figures, workspace_root
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import draft
from tests.report.big_run import make_run
from tests.report.chromium import chromium
from tests.report.live.serve_process import serve_process

LOADS, UPDATES, IDLE_S = 7, 15, 20.0
# The page's security policy forbids code from text, which playwright's wait functions need.
_LOADED = """() => new Promise((done) => {
  const look = () => {
    const rows = document.querySelectorAll("#problems tbody tr").length;
    if (document.querySelector("#main").dataset.loaded && rows) requestAnimationFrame(() => setTimeout(done, 0));
    else setTimeout(look, 5);
  };
  look();
})"""
_SHOWN = """(word) => new Promise((done) => {
  const look = () => {
    const newest = document.querySelector("#recent li").textContent;
    if (newest.includes(word)) requestAnimationFrame(() => setTimeout(done, 0));
    else setTimeout(look, 5);
  };
  look();
})"""


def load_s(browser: Browser, url: str) -> float:
    """Return the seconds from opening the URL in a new profile to the drawn page.

    Args:
        browser: a running browser.
        url: address of the page.
    """
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        since = time.perf_counter()
        page.goto(url)
        page.evaluate(_LOADED)
        return time.perf_counter() - since


def load_processor_s(browser: Browser, url: str) -> float:
    """Return the processor time of the browser's threads for one load, in seconds; other processes do not affect it.

    Args:
        browser: a running browser.
        url: address of the page.
    """
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        browser.start_tracing(page=page, categories=["devtools.timeline", "disabled-by-default-devtools.timeline"])
        page.goto(url)
        page.evaluate(_LOADED)
        events = json.loads(browser.stop_tracing())["traceEvents"]
    tasks = [event for event in events if event.get("name") == "RunTask" and "tdur" in event]
    return float(sum(event["tdur"] for event in tasks)) / 1e6


def update_s(page: Page, ledger: Ledger, key: str, digest: str, number: int) -> float:
    """Return the seconds from the append of an entry to the drawn page that shows it.

    Args:
        page: the open page.
        ledger: the ledger to append to.
        key: the problem's key.
        digest: the problem's digest.
        number: number of the entry.
    """
    entry = draft(tree=f"{number:040x}", problem=key, speedup=1.1, worker=f"u{number}")
    entry = entry.model_copy(update={"target": "h200", "problem_digest": digest})
    since = time.perf_counter()
    ledger.append(entry)
    page.evaluate(_SHOWN, f"u{number} ")
    return time.perf_counter() - since


def measure(workspace: Workspace, problems: int) -> list[Figure]:
    """Return the figures of a workspace's page.

    Args:
        workspace: a workspace with a ledger.
        problems: number of its problems.
    """
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        keys = {row.problem: row.problem_digest for row in index.rows(kind="baseline")}
    assert len(keys) == problems
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())
        since = time.perf_counter()
        url, process = stack.enter_context(serve_process(workspace.root))
        ready_s = time.perf_counter() - since
        loads = [load_s(browser, url) for _ in range(LOADS)]
        load_processor = statistics.median(load_processor_s(browser, url) for _ in range(LOADS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.evaluate(_LOADED)
        used = processor_s(process.pid)
        time.sleep(IDLE_S)
        idle = (processor_s(process.pid) - used) / IDLE_S
        with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
            chosen = list(keys.items())[:UPDATES]
            updates = [update_s(page, ledger, key, digest, number) for number, (key, digest) in enumerate(chosen)]
        memory_mb = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) / 1e3  # type: ignore[index]
    return [
        Figure("harness serve, index up to date, until it prints the URL", "", f"{ready_s:.2f} s"),
        Figure(f"page loaded and drawn: median, worst of {LOADS}", "<= 2 s", seconds(loads)),
        Figure("the same, processor time of the browser's threads", "", f"{load_processor:.2f} s"),
        Figure(f"appended entry drawn: median, worst of {UPDATES}", "<= 1 s", seconds(updates)),
        Figure("processor time of the server with one viewer and no change", "", f"{100 * idle:.1f} % of a core"),
        Figure("load average of the machine meanwhile", "", f"{os.getloadavg()[0]:.1f}"),
        Figure("server, resident", "", f"{memory_mb:.0f} MB"),
    ]


def processor_s(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / 100


def seconds(times: list[float]) -> str:
    """Return the median and the longest time as text."""
    return f"{statistics.median(times):.2f} s, {max(times):.2f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=235)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--keep", type=Path, help="make the workspace here and leave it, or use the one that is there")
    options = parser.parse_args()
    with workspace_root(options.keep) as root:
        exists = root.exists()
        workspace = Workspace(root) if exists else make_run(root, problems=options.problems, entries=options.entries)
        figures = measure(workspace, options.problems)
    print_figures(figures)


if __name__ == "__main__":
    main()
