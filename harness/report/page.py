"""The report as one self-contained HTML file with its data (JSON), style and script."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

from harness.model.printable import printable

Json = dict[str, Any]


def render(data: Json) -> str:
    """Return a page that works from disk and does not use a network."""
    # `<` in a string of the data could end the script element that holds it.
    data = printable_data(data)
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    meta = data["meta"]
    title = html.escape(printable(f"{meta['run']} on {meta['target']}: kernels and their proof"))
    page = page_file("page.html").replace("{{title}}", title)
    script = page_file("charts.js") + page_file("page.js")
    for name, text in (("css", page_file("page.css")), ("js", script), ("data", embedded)):
        before, mark, after = page.partition("{{" + name + "}}")
        assert mark, name  # noqa: S101 - the template belongs to this package
        page = before + text + after
    return page


def printable_data(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON data with control characters escaped, in keys and values."""
    if isinstance(value, str):
        return printable(value, keep_newlines=True)
    if isinstance(value, dict):
        return {printable(key) if isinstance(key, str) else key: printable_data(item) for key, item in value.items()}
    return [printable_data(item) for item in value] if isinstance(value, list | tuple) else value


def page_file(name: str) -> str:
    """Return the text of a template, style or script of this package."""
    return resources.files("harness.report").joinpath(name).read_text(encoding="utf-8")
