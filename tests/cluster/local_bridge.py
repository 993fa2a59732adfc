"""A bridge without Ray: it implements the bridge's protocol and keeps the judge hosts in its own process.

It stands in for `python -m harness.cluster.bridge` where Ray is not the subject. The hosts are those of the JSON file
`$LOCAL_BRIDGE_HOSTS` (a list of HostStatus), which may change. While `$LOCAL_BRIDGE_FAILURE` exists, it ends with the
BridgeFailed in that file. `$LOCAL_BRIDGE_DELAY` is a file: while it exists, events of the device
that it names wait.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from harness.cluster.device_actor import blob_places
from harness.cluster.judge_host import JudgeHost
from harness.cluster.messages import (
    BRIDGE_ORDERS,
    BridgeFailed,
    EndJudge,
    HostsChanged,
    RemoteJudgeEnded,
    SendRequest,
    StartJudge,
)
from harness.errors import EXIT_HOST_FAULT
from harness.model.process_status import HostStatus

_HOSTS = TypeAdapter(tuple[HostStatus, ...])
_lock = threading.Lock()


def write(event: BaseModel) -> None:
    with _lock:
        sys.stdout.write(event.model_dump_json() + "\n")
        sys.stdout.flush()


class Local:
    def __init__(self) -> None:
        self.hosts: tuple[HostStatus, ...] | None = None
        self.judges: dict[str, JudgeHost] = {}
        self.open: dict[str, int] = {}

    def apply_hosts(self) -> None:
        hosts = _HOSTS.validate_json(Path(os.environ["LOCAL_BRIDGE_HOSTS"]).read_text())
        if hosts == self.hosts:
            return
        self.hosts = hosts
        present = {device for host in hosts for device in host.devices}
        for device in set(self.judges) - present:
            number = self.open.pop(device, None)
            self.judges.pop(device).close()
            if number is not None:
                write(RemoteJudgeEnded(device=device, number=number, reason="has left", exit_code=EXIT_HOST_FAULT))
        for device in present - set(self.judges):
            self.judges[device] = JudgeHost(device, "cpu", device.partition("/")[0])
        write(HostsChanged(hosts=hosts))

    def obey(self, line: str) -> None:
        order = BRIDGE_ORDERS.validate_json(line)
        host = self.judges.get(order.device)
        if host is None:
            return
        if isinstance(order, StartJudge):
            self.open[order.device] = order.number
            host.start(order.number, "none")
            threading.Thread(target=self.listen, args=(host, order), daemon=True).start()
        elif isinstance(order, EndJudge):
            host.end(order.number, order.kill)
        else:
            ship(host, order)
            host.send(order.model_dump_json())

    def listen(self, host: JudgeHost, order: StartJudge) -> None:
        count = 0
        while self.open.get(order.device) == order.number:
            lines = host.fetch(order.number, count)
            while delayed() == order.device:
                time.sleep(0.01)
            count += len(lines)
            for line in lines:
                with _lock:
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
                if json.loads(line)["event"] == "ended":
                    return


def delayed() -> str | None:
    """Return the device whose events wait."""
    try:
        return Path(os.environ["LOCAL_BRIDGE_DELAY"]).read_text()
    except OSError:
        return None


def ship(host: JudgeHost, order: SendRequest) -> None:
    assert order.parcel is not None
    places = blob_places(order.parcel, order.line)
    for sha256 in host.missing(order.parcel.model_dump_json()):
        refused = host.store(sha256, 0, places[sha256][0].read_bytes(), last=True)
        assert not refused, refused


def main() -> None:
    failure = Path(os.environ.get("LOCAL_BRIDGE_FAILURE", "/nowhere"))
    if failure.exists():
        write(BridgeFailed.model_validate_json(failure.read_text()))
        sys.exit(2)
    local = Local()
    ended = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            local.obey(line)
        ended.set()

    local.apply_hosts()
    threading.Thread(target=read, daemon=True).start()
    while not ended.wait(0.02):
        local.apply_hosts()
    for host in local.judges.values():
        host.close()
    os._exit(0)  # the reader of stdin may hold its lock


if __name__ == "__main__":
    main()
