"""Neither an agent's nor a candidate's sandbox reaches the live page, although both have the token here."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

from harness.agents import confinement
from tests.judge.confined import stderr_of
from tests.report.live.page_server import Served, in_loop

CODE = """
import socket, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
for url in {urls!r}:
    try:
        with opener.open(url, timeout=5) as answer:
            print("REACHED", answer.status, file=sys.stderr)
    except OSError as error:
        print("no:", getattr(error, "reason", error), file=sys.stderr)
"""


def addresses() -> set[str]:
    """Return the addresses of this machine."""
    names = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    return {"127.0.0.1", "localhost", *map(str, names)}


def attempts(served: Served) -> str:
    """Return a program that opens the page at every address of this machine, with the token."""
    urls = [f"http://{name}:{served.access.port}/?token={served.access.token}" for name in sorted(addresses())]
    # The token's answer is a redirect that needs a cookie; any answer would be an escape.
    return CODE.format(urls=urls)


def in_agents_sandbox(code: str, root: Path) -> str:
    """Return the output of the code in an agent's sandbox."""
    command = confinement.command_line(confinement.empty_view(root), [sys.executable, "-I", "-c", code], {})
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr


def unconfined(code: str) -> str:
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr


def test_no_sandbox_can_connect(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.publish(meta={})
        code = attempts(served)
        outside = await asyncio.to_thread(unconfined, code)
        assert "no: Forbidden" in outside, "without a sandbox the same program is answered"
        assert "Connection refused" not in outside.splitlines()[0]
        agent = await asyncio.to_thread(in_agents_sandbox, code, tmp_path / "agent")
        (tmp_path / "candidate").mkdir()
        candidate = await asyncio.to_thread(stderr_of, code, tmp_path / "candidate")
        for lines in (agent.strip().splitlines(), candidate.splitlines()):
            assert len(lines) == len(addresses()), lines
            assert all(line.startswith("no: [Errno") for line in lines), lines
        assert served.viewers.count == 0

    in_loop(test)
