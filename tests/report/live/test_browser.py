"""The live page in a real browser, during a real run of tuners on the CPU and on a synthetic ledger that grows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.model.entry import EntryDraft
from harness.model.process_status import DaemonStatus, JudgeStatus, StartStatus, WorkerStatus
from harness.workspace.directories import Workspace
from harness.workspace.status import write_status
from tests.ledger.ledgers import draft
from tests.report.big_run import make_run
from tests.report.chromium import chromium
from tests.report.live.serve_process import serve_process
from tests.report.test_browser import OUTSIDE, background

pytestmark = [pytest.mark.browser, pytest.mark.slow]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
KEPT = Path(__file__).parents[3] / "build" / "serve"
"""The directory of the last screenshots, for people."""
HARNESS = (sys.executable, "-m", "harness")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@dataclass
class Viewer:
    """A page with its requests and errors."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def check_requests(self, url: str) -> None:
        """Check that the page sent requests to this address only, and had no errors."""
        assert len(self.requests) > 5
        assert {urlsplit(request_url).netloc for request_url in self.requests} == {urlsplit(url).netloc}
        assert self.complaints == []

    def check_screen(self) -> None:
        """Check that everything fits on the screen."""
        wide = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
        assert self.page.evaluate(OUTSIDE) == []


@contextmanager
def watching(browser: Browser, url: str, size: dict[str, int], scheme: str = "light") -> Iterator[Viewer]:
    with browser.new_context(viewport=size, color_scheme="dark" if scheme == "dark" else "light") as context:  # type: ignore[arg-type]
        viewer = Viewer(context.new_page())
        viewer.page.on("request", lambda request: viewer.requests.append(request.url))
        viewer.page.on("console", lambda message: viewer.complaints.append(message.text))
        viewer.page.on("pageerror", lambda error: viewer.complaints.append(str(error)))
        viewer.page.goto(url)
        viewer.page.wait_for_selector("#main[data-loaded]")
        yield viewer


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Make a run of several days with forty problems."""
    return make_run(tmp_path_factory.mktemp("run") / "w", problems=40, entries=900)


@pytest.fixture
def live(workspace: Workspace) -> Iterator[str]:
    with serve_process(workspace.root) as (url, _):
        yield url


def append(workspace: Workspace, *drafts: EntryDraft) -> None:
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        for new_entry in drafts:
            ledger.append(new_entry)


@pytest.mark.serial
@pytest.mark.timeout(3600)
def test_during_a_real_run(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "kernels"
    identity = {
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@x",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@x",
    }
    env = {**os.environ, **identity}
    subprocess.run([*HARNESS, "init", str(root)], check=True, capture_output=True, env=env, timeout=240)
    globs = ("starter/rmsnorm_h4096", "starter/rope_gqa", "starter/causal_conv1d_silu")
    chosen = [word for glob in globs for word in ("--problem", glob)]
    command = [*HARNESS, "start", "--agent", "tuner", "--device", "cpu", "--max-evaluations", "4", *chosen]
    with (
        serve_process(root) as (url, _),
        watching(browser, url, DESKTOP) as desktop,
        watching(browser, url, PHONE) as phone,
    ):
        viewers = {"desktop": desktop, "phone": phone}
        expect(desktop.page.locator("#lede")).to_contain_text("No run is in progress")
        run = subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for page in (desktop.page, phone.page):
                expect(
                    page.locator("#workers .pill[data-state=working], #workers .pill[data-state=waiting]").first
                ).to_be_visible(timeout=300_000)
                expect(page.locator("#judges .pill[data-state=busy]")).to_be_visible(timeout=300_000)
            expect(desktop.page.locator("#problems tbody tr")).to_have_count(len(globs))
            store_screenshots(viewers, "1-started")
            expect(desktop.page.locator("#recent .verdict").nth(2)).to_be_visible(timeout=600_000)
            store_screenshots(viewers, "2-growing")
            expect(desktop.page.locator("#lede")).to_contain_text("The last one ended", timeout=900_000)
        finally:
            run.terminate()
            run.communicate(timeout=300)
        expect(phone.page.locator("#lede")).to_contain_text("The last one ended")
        verdicts = desktop.page.locator("#recent .verdict").count()
        assert verdicts >= 4
        waiting = desktop.page.locator("#queue li:not(.empty)").count()
        expect(desktop.page.locator("#tiles .tile", has_text="in the queue").locator("b")).to_have_text(str(waiting))
        desktop.page.locator("#problems button.open").first.click()
        expect(desktop.page.locator("#trajectory svg")).to_contain_text("fastest baseline")
        store_screenshots(viewers, "3-ended", whole=False)
        desktop.page.keyboard.press("Escape")
        store_screenshots(viewers, "3-ended")
        for viewer in viewers.values():
            viewer.check_requests(url)


def store_screenshots(viewers: dict[str, Viewer], moment: str, *, whole: bool = True) -> None:
    """Store a screenshot of each viewer; fail if an element exceeds the screen."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, viewer in viewers.items():
        viewer.check_screen()
        part = "" if whole else "-detail"
        viewer.page.screenshot(path=KEPT / f"{name}-{moment}{part}.png", full_page=whole)


def test_the_token_does_not_stay_in_the_address(browser: Browser, live: str) -> None:
    with watching(browser, live, DESKTOP) as viewer:
        assert "token" not in viewer.page.url
        viewer.page.reload()
        viewer.page.wait_for_selector("#main[data-loaded]")
        expect(viewer.page.locator("#connection")).to_have_text("live")
        place = viewer.page.url
    with browser.new_context() as context:
        page = context.new_page()
        answer = page.goto(place)
        assert answer is not None
        assert (answer.status, "needs" in page.inner_text("body")) == (403, True)


def test_every_part_is_drawn_and_nothing_comes_from_elsewhere(browser: Browser, live: str) -> None:
    with watching(browser, live, DESKTOP) as viewer:
        page = viewer.page
        expect(page.locator("#tiles .tile")).to_have_count(6)
        expect(page.locator("#problems tbody tr")).to_have_count(40)
        assert page.locator("#champions rect.bar").count() > 20
        assert page.locator("#champions line.mark").count() > 20
        assert page.locator("#problems svg.spark path.step").count() > 10
        assert page.locator("#recent .verdict").count() == 40
        expect(page.locator("#spending")).to_contain_text("dollars of the run")
        page.locator("#problems button.open").first.click()
        expect(page.locator("#detail svg")).to_contain_text("hardware's bound (SOL)")
        viewer.check_requests(live)


def test_it_grows_while_it_is_watched_and_keeps_focus_and_filters(browser: Browser, workspace: Workspace) -> None:
    with serve_process(workspace.root) as (url, _), watching(browser, url, DESKTOP) as viewer:
        page = viewer.page
        page.fill("#find", "rmsnorm")
        key = page.locator("#problems button.open").first.inner_text()
        row = page.locator(f'#problems tr[data-problem="{key}"]')
        evaluations = int(row.locator("td").nth(7).inner_text())
        row.locator("button").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#detail-title")).to_have_text(key)
        dots = page.locator("#trajectory circle.dot").count()
        new_entry = draft(tree="7" * 40, problem=key, speedup=9.0, worker="w77").model_copy(
            update={"target": "h200", "problem_digest": digest(workspace, key)}
        )
        append(workspace, new_entry)
        expect(row.locator("td").nth(7)).to_have_text(str(evaluations + 1), timeout=60_000)
        assert page.locator("#trajectory circle.dot").count() == dots + 1
        expect(page.locator("#recent li").first).to_contain_text(f"PASSED {key}".split()[1])
        expect(page.locator("#recent li").first).to_contain_text("w77")
        page.keyboard.press("Escape")
        expect(page.locator("#detail")).to_be_hidden()
        assert page.evaluate("document.activeElement.textContent") == key
        assert page.input_value("#find") == "rmsnorm"
        viewer.check_requests(url)


def digest(workspace: Workspace, key: str) -> str:
    from harness.ledger.index import Index

    with Index(workspace, branch="main") as index:
        return index.rows(key, limit=1)[0].problem_digest


def test_weakened_numbers_have_the_symbol_and_the_sentence(browser: Browser, live: str) -> None:
    with watching(browser, live, DESKTOP) as viewer:
        mark = viewer.page.locator("#problems abbr.flag").first
        expect(mark).to_have_text("†")
        assert "launch-bound" in (mark.get_attribute("title") or "")
        expect(viewer.page.locator("#fine")).to_contain_text("launch-bound: most of each call is the launch")
        expect(viewer.page.locator("#title")).to_contain_text("†")


def test_a_page_outlives_its_server_and_names_what_to_do(browser: Browser, workspace: Workspace) -> None:
    with serve_process(workspace.root) as (url, process), watching(browser, url, DESKTOP) as viewer:
        connection = viewer.page.locator("#connection")
        expect(connection).to_have_text("live")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
        expect(connection).to_have_text("connection lost, trying again", timeout=60_000)
        expect(viewer.page.locator("#problems tbody tr")).to_have_count(40)
        with serve_process(workspace.root, urlsplit(url).port or 0):
            expect(connection).to_contain_text("open the URL that harness serve printed last", timeout=60_000)


def test_text_of_agents_is_shown_as_text(browser: Browser, workspace: Workspace) -> None:
    worker = WorkerStatus(
        worker="w01", agent="tuner", state="working", last_message="<img src=x onerror=alert(1)> " + "long " * 200
    )
    judge = JudgeStatus(
        device="cuda:0", state="busy", problem="L1/rmsnorm_000", kind="evaluation", stage="timing", done=3, of=12
    )
    with serve_process(workspace.root) as (url, _), watching(browser, url, PHONE) as viewer:
        for status in (
            StartStatus(children=("daemon",), run="main"),
            DaemonStatus(queued=3, judges=(judge,), paused="no space left on device"),
            worker,
        ):
            write_status(workspace, status)
        try:
            expect(viewer.page.locator("#workers")).to_contain_text("<img src=x onerror=alert(1)>")
            expect(viewer.page.locator("#alerts")).to_contain_text("The run is paused: no space left on device")
            expect(viewer.page.locator("#judges progress")).to_have_attribute("value", "3")
            viewer.check_screen()
            viewer.check_requests(url)
        finally:
            for file in workspace.status.glob("*.json"):
                file.unlink()


UNNAMED = """() => {
  const named = (node) => node.getAttribute("aria-label") || node.getAttribute("aria-labelledby")
    || node.textContent.trim() || (node.labels && node.labels.length);
  return [...document.querySelectorAll("button, input, select, progress, [tabindex='0'], svg[role], ul, ol")]
    .filter((node) => !named(node)).map((node) => node.outerHTML.slice(0, 100));
}"""


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1280, 1920])
def test_at_every_width_in_light_and_dark_nothing_leaves_the_page(browser: Browser, live: str, width: int) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        with watching(browser, live, {"width": width, "height": 900}, scheme) as viewer:
            page = viewer.page
            viewer.check_screen()
            colours[scheme] = background(page)
            page.locator("#problems button.open").first.click()
            expect(page.locator("#trajectory svg")).to_be_visible()
            viewer.check_screen()
            box = page.locator("#detail").evaluate("(box) => [box.scrollWidth, box.clientWidth]")
            assert box[0] <= box[1]
            assert page.evaluate(UNNAMED) == []
            page.keyboard.press("Escape")
            page.click("#theme")
            colours[f"{scheme}, changed"] = background(page)
    assert colours["light"] == colours["dark, changed"] != colours["dark"] == colours["light, changed"]
