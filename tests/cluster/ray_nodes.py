"""A Ray cluster on this machine whose nodes are started with `ray start`, so that each can be killed separately."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.waiting import wait_until

NODE = "HARNESS_TEST_NODE"
"""A variable in the environment of every process of a node, and so of its judges."""
STORE_BYTES = "80000000"
Part = Literal["raylet", "gcs_server", "actor", "judge"]
_COMMANDS: dict[Part, str] = {
    "raylet": "/raylet/raylet",
    "gcs_server": "/gcs/gcs_server",
    "actor": "ray::JudgeHost",
    "judge": "--device cpu --cache",
}
SHORT_WAITS = {
    # Ray declares a node dead that does not answer for (timeout + period) * threshold.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
    # A Ray process ends this many seconds after it has lost the head.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


@dataclass
class RayNodes:
    """The nodes of one cluster.

    Args:
        environment: of every node's processes.
        directory: Ray's files; the paths of its sockets must be short.
    """

    environment: Mapping[str, str]
    directory: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    port: int = 0
    names: list[str] = field(default_factory=list)

    def ray_environment(self) -> dict[str, str]:
        """Return the environment of every process that uses the cluster."""
        return {
            **self.environment,
            **SHORT_WAITS,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.directory),
            "RAY_worker_niceness": "0",
        }

    @property
    def address(self) -> str:
        return self._address_file.read_text().strip()

    @property
    def _address_file(self) -> Path:
        return self.directory / "ray_current_cluster"

    def start_head(self, name: str = "head", *, cpu: bool = False) -> None:
        """Start a head; a further head uses the port of the first."""
        options = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.directory}"]
        self._start(name, [*options, "--include-log-monitor=false"], cpu=cpu)
        self.port = int(self.address.rpartition(":")[2])

    def add(self, name: str, *, extra: Mapping[str, str] | None = None, inside: Sequence[str] = ()) -> None:
        """Start a node with a device for a CPU judge.

        Args:
            name: of the node, here only.
            extra: variables of its processes.
            inside: a command that runs `ray start` inside another environment.
        """
        self._start(name, [f"--address={self.address}"], cpu=True, extra=extra, inside=inside)

    def cache_of(self, name: str) -> Path:
        """Return the directory in which a node's judges store the files that they receive, and their builds."""
        return self.directory.parent / f"{self.directory.name}-cache-{name}"

    def _start(
        self,
        name: str,
        options: list[str],
        *,
        cpu: bool,
        extra: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        cache = self.cache_of(name)
        cache.mkdir(exist_ok=True)
        environment = {**self.ray_environment(), NODE: name, "XDG_CACHE_HOME": str(cache), **(extra or {})}
        resources = ['--resources={"cpu_judge": 1}'] if cpu else []
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *resources, "--num-cpus=0"]

        def started() -> bool:  # a port of the head that was killed may be in use for a moment
            completed = subprocess.run(
                [*inside, *command, f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if completed.returncode:
                print(completed.stdout, completed.stderr)  # noqa: T201 - for who reads why a test failed
                self.kill_node(name)
            return completed.returncode == 0

        wait_until(started, event=f"the start of the node {name}", poll_s=1.0)
        self.names.append(name)

    def processes(self, name: str, part: Part | None = None) -> list[int]:
        """Return the live processes of a node, or those of one part."""
        wanted = f"{NODE}={name}".encode()
        pids = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted not in (directory / "environ").read_bytes().split(b"\0"):
                    continue
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX" and (part is None or _COMMANDS[part] in command):
                    pids.append(int(directory.name))
        return pids

    def kill(self, name: str, part: Part) -> bool:
        """Send SIGKILL to one part of a node; return False if it does not run."""
        pids = self.processes(name, part)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def kill_node(self, name: str) -> None:
        """Send SIGKILL to all processes of a node, as when its host is switched off."""

        def ended() -> bool:
            pids, judges = self.processes(name), set(self.processes(name, "judge"))
            for pid in sorted(
                pids, key=lambda pid: pid in judges
            ):  # no process is left that could report a judge's end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        wait_until(ended, event=f"the end of the node {name}")
        self.names = [node for node in self.names if node != name]

    def signal_node(self, name: str, number: signal.Signals) -> None:
        """Send a signal to every process of a node."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        for name in list(self.names):
            self.signal_node(name, signal.SIGCONT)
            self.kill_node(name)


@contextlib.contextmanager
def ray_nodes(environment: Mapping[str, str]) -> Iterator[RayNodes]:
    """Yield a cluster without nodes; nodes that were added are ended after the block."""
    base = Path(tempfile.mkdtemp(prefix="ray", dir="/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"))
    nodes = RayNodes(environment, base / "r")
    nodes.directory.mkdir()
    try:
        yield nodes
    finally:
        nodes.close()
        shutil.rmtree(base, ignore_errors=True)
