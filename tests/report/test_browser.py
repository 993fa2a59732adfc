"""The report of a large run in a real browser: size, time, requests, sorting, filtering, links, keyboard, phone."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from tests.cli.test_audit import harness
from tests.report.big_run import make_run
from tests.report.chromium import chromium
from tests.site import site_in

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PROBLEMS, ENTRIES = 235, 20_000
COMMITS = "https://example.invalid/kernels/commit/"


@dataclass
class ReportFile:
    """A report and the processor time of its creation."""

    file: Path
    cpu_s: float


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportFile:
    workspace = make_run(tmp_path_factory.mktemp("large") / "w", problems=PROBLEMS, entries=ENTRIES)
    harness(workspace.root, "log", "-n", "1")  # makes the index before the measurement
    before = processor_time_s()
    completed = harness(workspace.root, "report", "-o", "report.html", "--commit-url", COMMITS + "{}")
    assert completed.returncode == 0, completed.stderr
    return ReportFile(workspace.root / "report.html", processor_time_s() - before)


def processor_time_s() -> float:
    """Return the processor time of this process, which runs the command, and of ended git commands."""
    used = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with two gains within seconds, a session before the first entry, and a session after the last."""
    with site_in(tmp_path_factory.mktemp("small")) as site:
        with Repo(site.workspace) as repo, Ledger(site.workspace, repo, branch="main", writer="planner") as planner:
            for ended in ("2026-01-01T00:00:00.000Z", "2126-01-01T00:00:00.000Z"):
                account = {"id": ended, "run": "main", "worker": "w01", "usd": 0.0123, "ended": ended}
                planner.append_record("ledger/accounts.yaml", account)
        for speedup in ("1.2", "1.7"):
            site.submit("w01", "t/one", f"stub: speedup={speedup} {'a long line ' * 30}")
            assert site.call("daemon", "--once").returncode == 0
        assert site.call("report", "-o", "report.html").returncode == 0
        page_file = tmp_path_factory.mktemp("page") / "report.html"
        page_file.write_bytes((site.root / "report.html").read_bytes())
    return page_file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@dataclass
class WatchedPage:
    """A page with its requests and errors."""

    page: Page
    requests: list[str]
    complaints: list[str]


@pytest.fixture
def watched(browser: Browser, report: ReportFile) -> Iterator[WatchedPage]:
    with browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light") as context:
        page = context.new_page()
        watched_page = WatchedPage(page, [], [])
        page.on("request", lambda request: watched_page.requests.append(request.url))
        page.on("console", lambda message: watched_page.complaints.append(message.text))
        page.on("pageerror", lambda error: watched_page.complaints.append(str(error)))
        page.goto(report.file.as_uri())
        yield watched_page


def first_cells(page: Page, column: int) -> list[str]:
    return page.locator(f"#problems tbody tr td:nth-child({column})").all_inner_texts()


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.partition("\u00d7")[0]) for cell in cells if cell[0].isdigit()]


def test_the_report_is_small_and_made_quickly(report: ReportFile) -> None:
    assert report.file.stat().st_size <= 3_000_000
    assert report.cpu_s <= 12, "processor time, independent of other load, with a margin of three"


def test_the_page_makes_no_request_and_has_no_errors(watched: WatchedPage, report: ReportFile) -> None:
    for name in ("#h-moves", "#h-duplicates"):
        watched.page.locator(name).scroll_into_view_if_needed()
    watched.page.locator("tbody button.open").first.click()
    assert watched.requests == [report.file.as_uri()]
    assert watched.complaints == []


def test_every_part_is_drawn(watched: WatchedPage) -> None:
    page = watched.page
    expect(page.locator("h1")).to_contain_text("235 problems")
    expect(page.locator("#tiles .tile")).to_have_count(8)
    for name in ("#speedups rect", "#scores rect", "#moves rect", "#verdicts rect", "#spend path"):
        assert page.locator(name).count() > 0, name
    expect(page.locator("#problems tbody tr")).to_have_count(PROBLEMS)
    expect(page.locator("#costs tbody tr")).to_have_count(PROBLEMS + 1)
    expect(page.locator("#costs tbody tr").first).to_contain_text("all problems")


def test_the_table_sorts(watched: WatchedPage) -> None:
    page = watched.page
    falling = numbers(first_cells(page, 3))
    assert falling == sorted(falling, reverse=True)
    page.get_by_role("button", name="Speed-up").click()
    rising = numbers(first_cells(page, 3))
    assert rising == sorted(rising)
    assert len(rising) == len(falling) > 100
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Speed-up")
    page.get_by_role("button", name="Evaluations").press("Enter")  # by keyboard too
    evaluations = [int(cell.replace(",", "")) for cell in first_cells(page, 9)]
    assert evaluations == sorted(evaluations, reverse=True)


def test_the_table_filters(watched: WatchedPage) -> None:
    page = watched.page
    page.fill("#find", "softmax")
    names = first_cells(page, 1)
    assert 0 < len(names) < PROBLEMS
    assert all("softmax" in name for name in names)
    page.select_option("#suite", "L2")
    matching = first_cells(page, 1)
    assert 0 < len(matching) < len(names)
    assert all(name.startswith("L2/") for name in matching)
    expect(page.locator("#count")).to_have_text(f"{len(matching)} of 235 problems")
    page.fill("#find", "")
    page.select_option("#suite", "")
    page.select_option("#state", "confirmed")
    assert {cell.partition(" ")[0] for cell in first_cells(page, 2)} == {"confirmed"}


def test_a_trajectory_has_baseline_and_bound_and_its_steps_lead_to_their_commits(watched: WatchedPage) -> None:
    page = watched.page
    page.locator("tbody button.open").first.click()
    detail = page.locator("#detail")
    expect(detail).to_be_visible()
    expect(detail.locator("svg")).to_contain_text("fastest baseline")
    expect(detail.locator("svg")).to_contain_text("hardware's bound (SOL)")
    step = detail.locator("svg a").last
    address = step.get_attribute("href") or ""
    commit = step.get_attribute("data-commit") or ""
    assert len(commit) == 40
    assert address == COMMITS + commit
    requested_urls: list[str] = []

    def answer(route: Route) -> None:
        requested_urls.append(route.request.url)
        route.fulfill(body="the commit")

    page.route(f"{COMMITS}**", answer)
    step.click()
    page.wait_for_url(address)
    assert requested_urls == [address]


def test_each_step_has_its_interval_workloads_and_confirmation(watched: WatchedPage) -> None:
    detail = watched.page.locator("#detail")
    watched.page.locator("tbody button.open").first.click()
    steps = detail.locator("details.step")
    assert steps.count() == detail.locator("svg a").count() == detail.locator("svg path.interval").count() > 1
    champion = detail.locator("details.step[open]")
    expect(champion).to_have_count(1)
    expect(champion.locator("summary")).to_contain_text("; the champion")
    expect(champion.locator("tbody tr")).to_have_count(2)
    expect(champion.locator("thead th").last).to_have_text("95 %")
    expect(detail.locator("svg")).to_contain_text("speed-up")


OUTSIDE = """() => [...document.querySelectorAll("svg")].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  const hangs = (one) => one.width + one.height > 0 && (one.left < box.left - 1 || one.right > box.right + 1);
  return [...svg.querySelectorAll("*")].filter((node) => hangs(node.getBoundingClientRect()))
    .map((node) => svg.getAttribute("aria-label") + ": " + node.outerHTML.slice(0, 120));
})"""


@pytest.mark.parametrize("width", [320, 390, 600, 768, 820, 1024, 1280, 1920, 2560])
def test_everything_fits_in_the_page_at_every_width(
    browser: Browser, report: ReportFile, small: Path, width: int
) -> None:
    for file in (report.file, small):
        with browser.new_context(viewport={"width": width, "height": 900}) as context:
            page = context.new_page()
            page.goto(file.as_uri())
            page.locator("tbody button.open").first.click()
            expect(page.locator("#detail svg")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            body = page.locator("#detail").evaluate("(box) => [box.scrollWidth, box.clientWidth]")
            assert body[0] <= body[1], "a table or a difference has its own scroll bar"
            assert page.evaluate(OUTSIDE) == []


def test_the_keyboard_opens_and_closes_a_problem_and_its_address_leads_back(
    watched: WatchedPage, report: ReportFile
) -> None:
    page = watched.page
    button = page.locator("tbody button.open").nth(4)
    name = button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_have_text(name)
    assert page.evaluate("decodeURIComponent(location.hash)") == f"#p={name}"
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    page.goto(f"{report.file.as_uri()}#p={name}")
    page.reload()
    expect(page.locator("#detail-title")).to_have_text(name)


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_by_the_system_and_by_hand(browser: Browser, report: ReportFile, tmp_path: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        with browser.new_context(color_scheme="dark" if scheme == "dark" else "light") as context:
            page = context.new_page()
            page.goto(report.file.as_uri())
            colours[scheme] = background(page)
            page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
            page.click("#theme")
            colours[f"{scheme}, changed"] = background(page)
    assert colours["light"] != colours["dark"]
    assert colours["light, changed"] == colours["dark"]
    assert colours["dark, changed"] == colours["light"]


def test_everything_fits_on_a_phone(browser: Browser, report: ReportFile, tmp_path: Path) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.goto(report.file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("tbody button.open").first.tap()
        expect(page.locator("#detail svg")).to_be_visible()
        box = page.locator("#detail").bounding_box()
        assert box is not None
        assert box["width"] <= 390
        page.screenshot(path=tmp_path / "phone.png", full_page=True)
