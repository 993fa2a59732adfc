"""`harness serve` as a process: its URL, errors at its start, and Ctrl-C."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.cli.serve import _warnings
from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.report.live.server import listen
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from tests.cli.test_audit import harness
from tests.ledger.ledgers import PROBLEM, draft, make_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "w", {f"problems/{PROBLEM}/definition.json": "{}"})


def test_it_prints_a_url_shows_the_ledger_as_it_grows_and_ends_at_ctrl_c(workspace: Workspace) -> None:
    command = [sys.executable, "-m", "harness", "serve", str(workspace.root), "--port", "0"]
    process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.fullmatch(r"watch the run at (http://127\.0\.0\.1:\d+/\?token=(\S+))\n", line)
        assert url, line
        address = urlsplit(url[1])
        client = http.client.HTTPConnection(address.netloc, timeout=120)
        client.request("GET", f"/?{address.query}")
        entered = client.getresponse()
        entered.read()
        place, cookie = entered.headers["Location"], entered.headers["Set-Cookie"].partition(";")[0]
        client.request("GET", f"{place}events", headers={"Cookie": cookie})
        events = client.getresponse()
        assert data_of(events).count("evaluations") > 0
        with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
            ledger.append(draft(tree="1" * 40))
        while '"state":"unconfirmed"' not in data_of(events):
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        client.close()
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, errors) == (130, "Ctrl-C ends this server and does not end the run\n")


def data_of(stream: http.client.HTTPResponse) -> str:
    """Return the data of the next event."""
    while not (line := stream.readline().decode()).startswith("data: "):
        assert line, "the stream has ended"
    return line


@pytest.mark.parametrize(
    ("text", "bind", "warning"),
    [
        ("run: main\n", "127.0.0.1", None),
        ("run: main\n", "0.0.0.0", "other machines can connect to 0.0.0.0, and .* `ssh -L 8123:127.0.0.1:8123 HOST`"),
        ("agent: {network: host}\n", "::1", "agents have this machine's network"),
        ("judge: {sandbox: none}\n", "127.0.0.1", "candidates run without a sandbox"),
    ],
)
def test_weaker_protection_gives_a_warning(workspace: Workspace, text: str, bind: str, warning: str | None) -> None:
    workspace.config_file.write_text(text)
    warnings = list(_warnings(load_config(workspace), bind, 8123))
    assert len(warnings) == (warning is not None)
    assert all(re.match(f"warning: {warning}", line) for line in warnings)


def test_a_port_that_is_taken(workspace: Workspace) -> None:
    with listen("127.0.0.1", 0) as server:
        port = str(server.getsockname()[1])
        completed = harness(workspace.root, "serve", "--port", port)
    assert completed.returncode == 2
    error, fix = completed.stderr.splitlines()
    assert error == f"harness: --port: port {port} is used by another program"
    assert fix == "  harness serve --port 0    # selects a free port"


def test_a_directory_that_is_no_workspace(tmp_path: Path) -> None:
    completed = harness(tmp_path, "serve", "--port", "0", str(tmp_path))
    assert completed.returncode == 2
    assert completed.stderr.startswith(f"harness: no workspace here: neither {tmp_path} nor a directory above it")
    assert "harness init DIR" in completed.stderr
    completed = harness(tmp_path, "serve", str(tmp_path / "missing"))
    assert completed.returncode == 2
    assert "missing' does not exist" in completed.stderr


def test_a_ledger_that_cannot_be_read_is_named_before_the_page_is_served(workspace: Workspace) -> None:
    (workspace.root / "harness.yaml").write_text("run: main\ncoordination_branch: gone\n")
    completed = harness(workspace.root, "serve", "--port", "0")
    assert completed.returncode == 2
    assert "there is no branch gone" in completed.stderr
    assert completed.stdout == ""
