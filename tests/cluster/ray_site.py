"""Workspaces whose daemon judges on a real Ray cluster of this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.model.entry import Entry
from harness.model.verdict import EntryKind
from tests.cluster.ray_nodes import RayNodes
from tests.site import Commit, Site
from tests.waiting import wait_until

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[cluster]'")


class RaySite:
    """A workspace, its cluster, and its daemon as a process."""

    def __init__(self, site: Site, nodes: RayNodes) -> None:
        self.site, self.nodes = site, nodes
        self.daemon: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the daemon, again if it was killed."""
        self.daemon = self.site.start("daemon", "--cluster", self.nodes.address, extra=self.nodes.ray_environment())

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def end(self) -> str:
        """End the daemon cleanly and return its output."""
        assert self.daemon is not None
        self.daemon.terminate()
        output, _ = self.daemon.communicate(timeout=120)
        assert self.daemon.returncode == 0, output
        return output

    def evaluations(self) -> list[Entry]:
        return [entry for entry in self.site.entries() if entry.kind is EntryKind.EVALUATION]

    def wait_for_evaluations(self, count: int) -> None:
        def reached() -> bool:
            assert self.daemon is not None
            assert self.daemon.poll() is None, self.daemon.communicate()[0]
            return len(self.evaluations()) >= count

        wait_until(reached, event=f"{count} evaluations", deadline_s=600, poll_s=0.2)

    def wait_for_judges(self, count: int) -> None:
        """Wait until this number of judges is ready."""

        def ready() -> bool:
            return sum(judge.state in {"idle", "busy"} for judge in self.site.daemon().judges) >= count

        wait_until(ready, event=f"{count} judges", deadline_s=240)

    def assert_each_passed_once(self, commits: list[Commit]) -> None:
        entries = self.evaluations()
        trees = Counter(entry.candidate.tree for entry in entries if entry.candidate)
        assert trees == Counter(commit.tree for commit in commits)
        assert {str(entry.verdict) for entry in entries} == {"PASSED"}

    def assert_audited(self) -> None:
        with Repo(self.site.workspace) as repo:
            assert audit(self.site.workspace, repo, branch="main").breaks == []

    def close(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.communicate()


@contextlib.contextmanager
def ray_site(site: Site, nodes: RayNodes) -> Iterator[RaySite]:
    """Yield a site on a cluster; no judge is left on a node at the end."""
    created_site = RaySite(site, nodes)
    try:
        yield created_site
    finally:
        created_site.close()


def no_judge_left(nodes: RayNodes) -> None:
    """Wait until no node has an actor of the harness or a judge."""

    def remaining_pids() -> list[int]:
        return [pid for name in nodes.names for part in ("actor", "judge") for pid in nodes.processes(name, part)]

    wait_until(lambda: not remaining_pids(), event="the end of every judge on the nodes")


def evaluations_asked(nodes: RayNodes) -> int:
    """Return the number of evaluations that the stub judges of a cluster have received."""
    file = Path(nodes.environment["STUB_JUDGE_REQUESTS"])
    lines = file.read_text().splitlines() if file.exists() else []
    return sum(json.loads(line)["kind"] == "evaluation" for line in lines)
