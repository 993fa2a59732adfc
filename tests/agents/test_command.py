"""Agents by command line: a script improves a kernel and submits it, in the sandbox of every agent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model.process_status import DaemonStatus
from harness.workspace.notes import waiting_notes
from harness.workspace.status import read_status
from tests.agents import agents_site
from tests.site import Site, git, site_in
from tests.waiting import wait_until

SCRIPT = """
set -eu
cd {solution}
grep -q "t/one" {prompt_file}
grep -q "^| n=64 | 120 | 100 | - |" {prompt_file}
head -1 /task/COORDINATION.md
test -f /task/others/README.md
if echo x > /task/others/README.md; then exit 5; fi
harness docs launch plan of cuda > /tmp/docs; grep -q "Launch plan" /tmp/docs
sed -i "s/^params.*/params: {{WIDTH: 2}}/" solution.yaml
echo "// stub: verdict=COMPILE_ERROR" >> kernel.cpp
if harness check > /tmp/checked; then exit 6; fi
grep -q "COMPILE_ERROR" /tmp/checked; grep -q "warning: kernel.cpp:1: warning: of the stub" /tmp/checked
if harness submit -m "a first try"; then exit 9; fi
sed -i "s/verdict=COMPILE_ERROR/speedup=1.75/" kernel.cpp
harness check --show assembly --function run | grep "^PASSED without timing: correct on 2 workloads"
harness submit -m "corrected" | grep "PASSED 1.75"
harness history | grep COMPILE_ERROR
harness note "WIDTH 2 is good"
harness profile && exit 8
echo x > /task/COORDINATION.md && exit 7
exit 0
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, tunable=True) as created_site:
        yield created_site


def configure(site: Site, script: str) -> None:
    text = "\n".join(f"    {line}" for line in script.strip().splitlines())
    agents_site.configure(site, f"agent:\n  kind: command\n  command: |\n{text}")


def judge_is_ready(site: Site) -> bool:
    status = read_status(site.workspace, DaemonStatus)
    return status is not None and any(judge.became_ready for judge in status.judges)


def test_a_script_improves_a_kernel_and_submits(site: Site) -> None:
    configure(site, SCRIPT)
    site.start("daemon")
    wait_until(lambda: judge_is_ready(site), event="a judge, so that baselines are measured before the session")
    agents_site.assign(site, agents_site.row("t/one"))
    worker = site.start("worker", "w01")
    agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
    worker.terminate()
    worker.communicate(timeout=120)
    verdicts = agents_site.verdicts(site)
    log = agents_site.log(site)
    assert verdicts == ["COMPILE_ERROR", "PASSED"], log
    assert "leaves t/one: done" in log
    assert [note.text for note in waiting_notes(site.workspace)] == ["WIDTH 2 is good"]
    assert "Agent: command" in git(site.root, "log", "-1", "--format=%B", "agents/main/w01/t/one")


def test_a_failed_command_is_reported_with_its_last_output(site: Site) -> None:
    configure(site, "echo no licence here >&2; exit 3")
    agents_site.assign(site, agents_site.row("t/one"))
    site.start("worker", "w01")
    agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
    agents_site.wait_for_status(
        site, "reports the reason", lambda status: "exit code 3: no licence here" in status.last_message
    )


def test_a_command_that_goes_on_is_ended_when_it_is_moved(site: Site) -> None:
    configure(site, "case {problem} in t/one) sleep 500;; *) exit 0;; esac")
    agents_site.assign(site, agents_site.row("t/one"))
    site.start("worker", "w01")
    agents_site.wait_for_status(site, "works", lambda status: status.state == "starting")
    agents_site.assign(site, agents_site.row("t/two"))
    agents_site.wait_for_status(site, "has finished the other", agents_site.finished("t/two"))


def test_a_language_that_the_run_does_not_allow_is_refused_at_submit(site: Site) -> None:
    agents_site.configure(site, "languages: [cuda]")
    configure(site, "harness submit -m x | tee /tmp/output; grep -q 'this run allows cuda' /tmp/output")
    agents_site.assign(site, agents_site.row("t/one"))
    site.start("worker", "w01")
    agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
    agents_site.wait_for_status(site, "was refused", lambda status: "this run allows cuda" in status.last_message)
    assert site.entries("t/one") == []


def test_requests_that_are_none_are_refused(site: Site) -> None:
    configure(
        site,
        """
        cd /run/harness/requests
        echo garbage > a.request
        echo '{{"tool": "rm", "arguments": {{}}}}' > b.request
        ln -s /etc/passwd c.request
        while ! [ -e c.answer ]; do sleep 0.1; done
        cat a.answer b.answer c.answer | grep -o "expected one of check" | wc -l
        """,
    )
    agents_site.assign(site, agents_site.row("t/one"))
    site.start("worker", "w01")
    agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
    agents_site.wait_for_status(site, "refused all", lambda status: status.last_message.endswith("3"))


def test_the_hosts_network_is_available_on_request_and_reported(site: Site) -> None:
    ask = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 5)' && echo reached"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = "\n".join(f"    {line}" for line in ask.replace("{port}", str(port)).splitlines())
        agents_site.configure(site, f"agent:\n  kind: command\n  network: host\n  command: |\n{script}")
        agents_site.assign(site, agents_site.row("t/one"))
        site.start("worker", "w01")
        agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"))
        agents_site.wait_for_status(site, "was out", lambda status: status.last_message == "reached")
    assert "agents have the host's network" in agents_site.log(site)
