"""The judges of a cluster, for the daemon: one client for each device of each host, as hosts join and leave."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO

from pydantic import BaseModel, ValidationError

from harness.cluster.content import Parcel, data_files, manifest_of
from harness.cluster.messages import (
    BRIDGE_EVENTS,
    BridgeEvent,
    BridgeFailed,
    EndJudge,
    HostEvent,
    HostsChanged,
    JudgeWrote,
    RemoteJudgeEnded,
    SendRequest,
    StartJudge,
)
from harness.errors import ConfigurationError, HarnessError
from harness.formats.bounded import load_json
from harness.model.config import Config
from harness.model.process_status import HostStatus
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import FIRST_PAUSE_S, LONGEST_PAUSE_S, JudgeClient, judge_log_file
from harness.workspace.judge_endpoint import JudgeEnded, JudgeEndpoint, JudgeNotice, read_notice
from harness.workspace.judge_source import JudgeSource
from harness.workspace.processes import PARENT_VARIABLE

logger = logging.getLogger(__name__)

_END_S = 5.0
_NO_HOST = "no host of the cluster has a device for a judge: `ray start` on one (docs/how-to/cluster.md)"
_UNCONNECTED = "was lost with the connection to the Ray cluster"


class RemoteJudge:
    """A judge process on another host.

    Args:
        device: the device's name in the cluster.
        send_order: passes an order to the bridge.
        log_file: file on this host that receives the last lines that the process writes to stderr.
    """

    pid = None

    def __init__(
        self,
        device: str,
        number: int,
        send_order: Callable[[BaseModel], None],
        log_file: Path,
        post: Callable[[JudgeNotice], None],
    ) -> None:
        self._device, self.number, self._send_order = device, number, send_order
        self._log_file, self._post = log_file, post
        self._ended = threading.Event()
        send_order(StartJudge(device=device, number=number))

    def send(self, line: bytes) -> None:
        """Send a request with the content of the directories that it names."""
        try:
            order = SendRequest(device=self._device, number=self.number, line=line.decode(), parcel=parcel_of(line))
        except (HarnessError, OSError) as error:
            reason = f"was given up because its request cannot be read: {error}"
            self.take_in(RemoteJudgeEnded.by_host(self._device, self.number, reason))
            return
        self._send_order(order)

    def kill(self) -> None:
        """Order the immediate end of the process."""
        self._send_order(EndJudge(device=self._device, number=self.number, kill=True))

    def hang_up(self) -> None:
        """Order the end of the process."""
        self._send_order(EndJudge(device=self._device, number=self.number))

    def wait_ended(self, within_s: float) -> bool:
        """Wait for the event of its end."""
        return self._ended.wait(within_s)

    def take_in(self, event: HostEvent) -> None:
        """Post an event that the bridge has passed on; nothing after the end."""
        if self._ended.is_set():
            return
        if isinstance(event, JudgeWrote):
            self._post(read_notice(self._device, self.number, event.line))
            return
        if event.log:
            try:
                self._log_file.parent.mkdir(parents=True, exist_ok=True)
                with self._log_file.open("a") as log:
                    log.write(event.log.rstrip("\n") + "\n")
            except OSError as error:
                logger.warning("no log of the judge of %s: %s", self._device, error)
        self._ended.set()
        self._post(JudgeEnded(self._device, self.number, event.reason, event.wrong_protocol, exit_code=event.exit_code))


class ClusterJudges(JudgeSource):
    """Clients by device, and the bridge. Methods are for one thread.

    Args:
        address: address of the Ray cluster: `auto` or `HOST:PORT`.
        post: receives the notices of all judges, from other threads.
    """

    def __init__(
        self,
        workspace: Workspace,
        config: Config,
        address: str,
        post: Callable[[JudgeNotice], None],
        *,
        command: tuple[str, ...] = (sys.executable, "-m", "harness.cluster.bridge"),
    ) -> None:
        super().__init__({})
        self._workspace, self._config, self._address, self._post = workspace, config, address, post
        arguments = ("--address", address, "--sandbox", config.judge.sandbox, "--workspace", str(workspace.root))
        self._command = [*command, *arguments]
        self._running: dict[str, RemoteJudge] = {}
        """The present process of each device."""
        self._hosts: tuple[HostStatus, ...] = ()
        self._lock = threading.Lock()
        self._process: Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._failed: BridgeFailed | None = None
        self._losses = 0
        self._was_connected = False
        """If true, a run continues while the cluster is unusable, because it may become usable again."""
        self._start_at = 0.0

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return the hosts that have joined."""
        return self._hosts

    def fault(self) -> str | None:
        """Return the reason why there is no judge; None if there is one."""
        if self._clients:
            return None
        if self._failed is not None:
            return self._failed.message
        if not self._hosts:
            return f"the connection to the Ray cluster at {self._address} is being made"
        refused = [f"{host.name}: {host.refused}" for host in self._hosts if host.refused]
        return f"every host is refused: {'; '.join(refused)}" if len(refused) == len(self._hosts) else _NO_HOST

    def tick(self) -> None:
        """Start the bridge if it does not run, and create the clients of hosts that have joined.

        Raises:
            ConfigurationError: the cluster cannot be used, and another attempt does not help.
        """
        if self._failed is not None and self._failed.final and not self._was_connected:
            raise ConfigurationError(self._failed.message, where="--cluster", remedy=self._failed.fix)
        if self._process is None and time.monotonic() >= self._start_at:
            self._start_bridge()
        devices = {device for host in self._hosts for device in host.devices}
        for device in devices - set(self._clients):
            self._clients[device] = self._client(device)
        for device in set(self._clients) - devices:
            if self._clients[device].state in {"waiting", "given up"}:  # its loss has been processed
                del self._clients[device]

    def close(self) -> None:
        """End the bridge, and with it every judge. The judges' clients are closed before."""
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        _close(process.stdin)
        reader.join(timeout=_END_S)
        if reader.is_alive():
            process.kill()
            reader.join()
        self._process = None

    def _client(self, device: str) -> JudgeClient:
        log_file = judge_log_file(self._workspace, device.replace("/", "-"))

        def launch(number: int) -> JudgeEndpoint:
            judge = RemoteJudge(device, number, self._send_order, log_file, self._post)
            with self._lock:
                self._running[device] = judge
                connected = self._process is not None
            if not connected:
                judge.take_in(RemoteJudgeEnded.by_host(device, number, _UNCONNECTED))
            return judge

        return JudgeClient(device, (), log_file, self._post, target=self._config.target, launch=launch)

    def _start_bridge(self) -> None:
        log_file = self._workspace.logs / "cluster.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        with log_file.open("ab") as log:
            self._process = Popen(
                self._command, env=environment, stdin=PIPE, stdout=PIPE, stderr=log, text=True, start_new_session=True
            )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), name="cluster-bridge")
        self._reader.start()

    def _send_order(self, order: BaseModel) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            process.stdin.write(order.model_dump_json() + "\n")
            process.stdin.flush()
        except (OSError, ValueError):
            logger.info("an order was not passed on: the bridge has ended")

    def _listen(self, process: Popen[str]) -> None:
        """Process the bridge's events until it ends."""
        assert process.stdout is not None  # noqa: S101 - opened as a pipe
        with process.stdout as lines:
            for line in lines:
                try:
                    self._take_in(BRIDGE_EVENTS.validate_json(line))
                except ValidationError:
                    logger.exception("the bridge wrote a line that is not its protocol: %.200s", line)
                    break
        process.kill()
        process.wait()
        _close(process.stdin)
        self._bridge_ended()

    def _take_in(self, event: BridgeEvent) -> None:
        if isinstance(event, HostsChanged):
            self._hosts, self._failed, self._losses, self._was_connected = event.hosts, None, 0, True
        elif isinstance(event, BridgeFailed):
            self._failed = event
        else:
            with self._lock:
                judge = self._running.get(event.device)
            if judge is not None and judge.number == event.number:
                judge.take_in(event)

    def _bridge_ended(self) -> None:
        """Report the loss of every judge, and drop the hosts until the next bridge has found them."""
        self._hosts = ()
        self._losses += 1
        self._start_at = time.monotonic() + min(FIRST_PAUSE_S * 2 ** (self._losses - 1), LONGEST_PAUSE_S)
        lost = BridgeFailed(message="the connection to the Ray cluster was lost; it is made again")
        self._failed = self._failed or lost
        with self._lock:
            running, self._running, self._process = self._running, {}, None
        for device, judge in running.items():
            judge.take_in(RemoteJudgeEnded.by_host(device, judge.number, _UNCONNECTED))


def parcel_of(line: bytes) -> Parcel:
    """Return the content of the directories that a request names.

    Raises:
        FormatError: a path or a link leads out of its directory.
        OSError: a file cannot be read.
    """
    request = load_json(line, where="a request")
    problem, solution, root = Path(request["problem_dir"]), request.get("solution_dir"), request.get("data_root")
    names = data_files(problem, Path(root)) if root else []
    return Parcel(
        problem_dir=manifest_of(problem),
        solution_dir=manifest_of(Path(solution)) if solution else None,
        data_root=manifest_of(Path(root), names) if root else None,
    )


def _close(stream: IO[str] | None) -> None:
    if stream is not None:
        with suppress(OSError):  # the bridge did not take its last order
            stream.close()
