"""The report as one HTML file: the data as JSON, and the page's own style and script, all inside."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any


def render(data: dict[str, Any]) -> str:
    """A page that opens from disk and asks nothing of any network."""
    part = {name: _read(f"page.{name}") for name in ("html", "css", "js")}
    # `<` in a string of the data could end the script element that holds it.
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    meta = data["meta"]
    title = html.escape(f"{meta['run']} on {meta['target']}: kernels and their proof")
    page = part["html"].replace("{{title}}", title)
    for name, text in (("css", part["css"]), ("js", part["js"]), ("data", embedded)):
        before, mark, after = page.partition("{{" + name + "}}")
        assert mark, name  # noqa: S101 - the template is ours
        page = before + text + after
    return page


def _read(name: str) -> str:
    return resources.files("harness.report").joinpath(name).read_text(encoding="utf-8")
