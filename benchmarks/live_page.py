"""Load and update times of the page of `harness serve` on a large ledger, in Chromium.

    python -m benchmarks.live_page [--problems 235] [--entries 20000] [--keep DIR]

Makes a ledger in a temporary directory and removes it. Times are wall clock and include the browser's work: the page
counts as loaded when its table is complete and a frame was drawn after that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from tabulate import tabulate

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import draft
from tests.report.big_run import make_run

LOADS, UPDATES, IDLE_S = 7, 15, 20.0
# The page's policy forbids code from text, which playwright's own way of waiting needs.
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


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, int, float]]:
    """`harness serve` as a process: its URL, its pid, and seconds until it printed the URL."""
    since = time.perf_counter()
    command = [sys.executable, "-m", "harness", "serve", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = re.search(r"http\S+", process.stdout.readline())
        assert url
        yield url[0], process.pid, time.perf_counter() - since
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def load_s(browser: Browser, url: str) -> float:
    """Seconds from opening the URL in a fresh profile to the drawn page."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        since = time.perf_counter()
        page.goto(url)
        page.evaluate(_LOADED)
        return time.perf_counter() - since


def load_processor_s(browser: Browser, url: str) -> float:
    """Processor time of the browser's threads for one load, which other processes of the machine do not lengthen."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        browser.start_tracing(page=page, categories=["devtools.timeline", "disabled-by-default-devtools.timeline"])
        page.goto(url)
        page.evaluate(_LOADED)
        events = json.loads(browser.stop_tracing())["traceEvents"]
    tasks = [event for event in events if event.get("name") == "RunTask" and "tdur" in event]
    return float(sum(event["tdur"] for event in tasks)) / 1e6


def update_s(page: Page, ledger: Ledger, key: str, digest: str, number: int) -> float:
    """Seconds from the append of an entry to the drawn page that shows it."""
    entry = draft(tree=f"{number:040x}", problem=key, speedup=1.1, worker=f"u{number}")
    entry = entry.model_copy(update={"target": "h200", "problem_digest": digest})
    since = time.perf_counter()
    ledger.append(entry)
    page.evaluate(_SHOWN, f"u{number} ")
    return time.perf_counter() - since


def measure(workspace: Workspace, problems: int) -> list[tuple[str, str, str]]:
    """The lines of the table."""
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        keys = {row.problem: row.problem_digest for row in index.rows(kind="baseline")}
    assert len(keys) == problems
    with sync_playwright() as playwright, serving(workspace.root) as (url, pid, ready_s):
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        loads = [load_s(browser, url) for _ in range(LOADS)]
        load_processor = statistics.median(load_processor_s(browser, url) for _ in range(LOADS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.evaluate(_LOADED)
        used = processor_s(pid)
        time.sleep(IDLE_S)
        idle = (processor_s(pid) - used) / IDLE_S
        with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
            chosen = list(keys.items())[:UPDATES]
            updates = [update_s(page, ledger, *one, number) for number, one in enumerate(chosen)]
        memory_mb = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1e3  # type: ignore[index]
        browser.close()
    return [
        ("harness serve, index up to date, until it prints the URL", "", f"{ready_s:.2f} s"),
        (f"page loaded and drawn: median, worst of {LOADS}", "<= 2 s", seconds(loads)),
        ("the same, processor time of the browser's threads", "", f"{load_processor:.2f} s"),
        (f"appended entry drawn: median, worst of {UPDATES}", "<= 1 s", seconds(updates)),
        ("processor time of the server with one viewer and no change", "", f"{100 * idle:.1f} % of a core"),
        ("load average of the machine meanwhile", "", f"{os.getloadavg()[0]:.1f}"),
        ("server, resident", "", f"{memory_mb:.0f} MB"),
    ]


def processor_s(pid: int) -> float:
    """Processor time of a process and of its children that have ended, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / 100


def seconds(times: list[float]) -> str:
    """Median and worst."""
    return f"{statistics.median(times):.2f} s, {max(times):.2f} s"


def _chromium() -> str:
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert executable, "no Chromium here: `make browser` installs it"
    return executable


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=235)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--keep", type=Path, help="make the workspace here and leave it, or use the one that is there")
    given = parser.parse_args()
    root = given.keep or Path(tempfile.mkdtemp(prefix="kernel-harness-live-")) / "workspace"
    try:
        workspace = Workspace(root) if root.exists() else make_run(root, problems=given.problems, entries=given.entries)
        figures = measure(workspace, given.problems)
    finally:
        if not given.keep:
            shutil.rmtree(root.parent, ignore_errors=True)
    print(tabulate(figures, headers=("what", "limit", "seen")))


if __name__ == "__main__":
    main()
