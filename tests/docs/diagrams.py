"""Draw docs/diagrams/*.mmd as SVG with the Mermaid command line; `make diagrams` calls it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "docs/diagrams"
_MERMAID = "@mermaid-js/mermaid-cli@11.17.0"


def source_mark(source: Path) -> str:
    """Return the comment that names the version of a source; its drawing ends with it."""
    return f"<!-- {source.name} sha256:{hashlib.sha256(source.read_bytes()).hexdigest()} -->"


def draw(source: Path, browser: str) -> None:
    """Write the drawing of a Mermaid source beside it, as SVG.

    Args:
        source: the Mermaid file.
        browser: path of Chromium, which lays the text out.
    """
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch, "browser.json")
        settings.write_text(json.dumps({"executablePath": browser, "args": ["--no-sandbox"]}))
        drawing = Path(scratch, "drawing.svg")
        options = ["--quiet", "--puppeteerConfigFile", str(settings), "--backgroundColor", "white"]
        files = ["--input", str(source), "--output", str(drawing)]
        subprocess.run(["npx", "--yes", _MERMAID, *options, *files], check=True)
        source.with_suffix(".svg").write_text(f"{drawing.read_text()}\n{source_mark(source)}\n")


def main() -> None:
    """Draw every diagram whose source has changed."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    for source in sorted(DIRECTORY.glob("*.mmd")):
        drawing = source.with_suffix(".svg")
        if not drawing.exists() or source_mark(source) not in drawing.read_text():
            draw(source, str(browser))


if __name__ == "__main__":
    main()
