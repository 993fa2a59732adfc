"""The installed Chromium, for tests and benchmarks of the pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a headless browser, which is closed at the end of the block."""
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    assert executable, "no Chromium here: `make browser` installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
