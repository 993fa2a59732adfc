"""The report of a large run in a real browser: size, time, no request, sorting, filtering, links, keyboard, phone."""

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
class Made:
    """A report, and what making it took."""

    file: Path
    cpu_s: float


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    workspace = make_run(tmp_path_factory.mktemp("large") / "w", problems=PROBLEMS, entries=ENTRIES)
    harness(workspace.root, "log", "-n", "1")  # makes the index, which is another test's subject
    before = processor_time_s()
    ran = harness(workspace.root, "report", "-o", "report.html", "--commit-url", COMMITS + "{}")
    assert ran.returncode == 0, ran.stderr
    return Made(workspace.root / "report.html", processor_time_s() - before)


def processor_time_s() -> float:
    """Of this process, in which the command runs, and of the git commands that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One problem, two gains within seconds, a session before the first entry and one after the last."""
    with site_in(tmp_path_factory.mktemp("small")) as site:
        with Repo(site.workspace) as repo, Ledger(site.workspace, repo, branch="main", writer="planner") as planner:
            for ended in ("2026-01-01T00:00:00.000Z", "2126-01-01T00:00:00.000Z"):
                account = {"id": ended, "run": "main", "worker": "w01", "usd": 0.0123, "ended": ended}
                planner.append_record("ledger/accounts.yaml", account)
        for speedup in ("1.2", "1.7"):
            site.submit("w01", "t/one", f"stub: speedup={speedup} {'a long line ' * 30}")
            assert site.call("daemon", "--once").returncode == 0
        assert site.call("report", "-o", "report.html").returncode == 0
        kept = tmp_path_factory.mktemp("page") / "report.html"
        kept.write_bytes((site.root / "report.html").read_bytes())
    return kept


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@dataclass
class Seen:
    """A page, and everything that it asked for or complained of."""

    page: Page
    requests: list[str]
    complaints: list[str]


@pytest.fixture
def seen(browser: Browser, made: Made) -> Iterator[Seen]:
    with browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light") as context:
        page = context.new_page()
        found = Seen(page, [], [])
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.goto(made.file.as_uri())
        yield found


def first_cells(page: Page, column: int) -> list[str]:
    return page.locator(f"#problems tbody tr td:nth-child({column})").all_inner_texts()


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.partition("\u00d7")[0]) for cell in cells if cell[0].isdigit()]


def test_it_is_small_and_soon_made(made: Made) -> None:
    assert made.file.stat().st_size <= 3_000_000
    assert made.cpu_s <= 12, "processor time, three times what it takes: another process' load is not ours"


def test_it_asks_for_nothing_and_has_nothing_to_complain_of(seen: Seen, made: Made) -> None:
    for name in ("#h-moves", "#h-duplicates"):
        seen.page.locator(name).scroll_into_view_if_needed()
    seen.page.locator("tbody button.open").first.click()
    assert seen.requests == [made.file.as_uri()]
    assert seen.complaints == []


def test_every_part_is_drawn(seen: Seen) -> None:
    page = seen.page
    expect(page.locator("h1")).to_contain_text("235 problems")
    expect(page.locator("#tiles .tile")).to_have_count(8)
    for name in ("#speedups rect", "#scores rect", "#moves rect", "#verdicts rect", "#spend path"):
        assert page.locator(name).count() > 0, name
    expect(page.locator("#problems tbody tr")).to_have_count(PROBLEMS)


def test_the_table_sorts(seen: Seen) -> None:
    page = seen.page
    falling = numbers(first_cells(page, 3))
    assert falling == sorted(falling, reverse=True)
    page.get_by_role("button", name="Speed-up").click()
    rising = numbers(first_cells(page, 3))
    assert rising == sorted(rising)
    assert len(rising) == len(falling) > 100
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Speed-up")
    page.get_by_role("button", name="Evaluations").press("Enter")  # by keyboard too
    made = [int(cell.replace(",", "")) for cell in first_cells(page, 9)]
    assert made == sorted(made, reverse=True)


def test_the_table_filters(seen: Seen) -> None:
    page = seen.page
    page.fill("#find", "softmax")
    names = first_cells(page, 1)
    assert 0 < len(names) < PROBLEMS
    assert all("softmax" in name for name in names)
    page.select_option("#suite", "L2")
    both = first_cells(page, 1)
    assert 0 < len(both) < len(names)
    assert all(name.startswith("L2/") for name in both)
    expect(page.locator("#count")).to_have_text(f"{len(both)} of 235 problems")
    page.fill("#find", "")
    page.select_option("#suite", "")
    page.select_option("#state", "confirmed")
    assert {cell.partition(" ")[0] for cell in first_cells(page, 2)} == {"confirmed"}


def test_a_trajectory_has_baseline_and_bound_and_its_steps_lead_to_their_commits(seen: Seen) -> None:
    page = seen.page
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
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(body="the commit")

    page.route(f"{COMMITS}**", answer)
    step.click()
    page.wait_for_url(address)
    assert asked == [address]


def test_each_step_has_its_interval_workloads_and_confirmation(seen: Seen) -> None:
    detail = seen.page.locator("#detail")
    seen.page.locator("tbody button.open").first.click()
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
def test_nothing_leaves_the_page_at_any_width(browser: Browser, made: Made, small: Path, width: int) -> None:
    for file in (made.file, small):
        with browser.new_context(viewport={"width": width, "height": 900}) as context:
            page = context.new_page()
            page.goto(file.as_uri())
            page.locator("tbody button.open").first.click()
            expect(page.locator("#detail svg")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            body = page.locator("#detail").evaluate("(box) => [box.scrollWidth, box.clientWidth]")
            assert body[0] <= body[1], "a table or a difference scrolls by itself"
            assert page.evaluate(OUTSIDE) == []


def test_the_keyboard_opens_and_closes_a_problem_and_its_address_leads_back(seen: Seen, made: Made) -> None:
    page = seen.page
    button = page.locator("tbody button.open").nth(4)
    name = button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_have_text(name)
    assert page.evaluate("decodeURIComponent(location.hash)") == f"#p={name}"
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    page.goto(f"{made.file.as_uri()}#p={name}")
    page.reload()
    expect(page.locator("#detail-title")).to_have_text(name)


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_by_the_system_and_by_hand(browser: Browser, made: Made, tmp_path: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        with browser.new_context(color_scheme="dark" if scheme == "dark" else "light") as context:
            page = context.new_page()
            page.goto(made.file.as_uri())
            colours[scheme] = background(page)
            page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
            page.click("#theme")
            colours[f"{scheme}, changed"] = background(page)
    assert colours["light"] != colours["dark"]
    assert colours["light, changed"] == colours["dark"]
    assert colours["dark, changed"] == colours["light"]


def test_on_a_phone_nothing_hangs_over(browser: Browser, made: Made, tmp_path: Path) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.goto(made.file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("tbody button.open").first.tap()
        expect(page.locator("#detail svg")).to_be_visible()
        box = page.locator("#detail").bounding_box()
        assert box is not None
        assert box["width"] <= 390
        page.screenshot(path=tmp_path / "phone.png", full_page=True)
