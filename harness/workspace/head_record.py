"""Record of the host that works in a workspace, with a heartbeat.

It is for file systems whose locks do not reach other hosts. On one host the kernel's file locks decide. Over a network
file system they may hold for one host only (NFS mounted with `local_lock`, Lustre without `flock`), so the second head
waits for a heartbeat. It compares a counter with its value a few seconds earlier. It does not compare times, because
the clocks of two hosts may differ by hours.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import ConfigurationError
from harness.model.base_models import StrictModel
from harness.workspace.files import atomic_write, read_record

BEAT_S = 3.0
"""Time between two heartbeats."""
_SILENT_S = 4 * BEAT_S
"""A head of another host without a heartbeat for this time has ended."""
_POLL_S = 0.1


class HeadRecord(StrictModel):
    """The head that works in a workspace. The file is deleted when the head ends cleanly."""

    format: int = 1
    id: str
    boot: str
    """The kernel's boot id: processes with the same boot id share file locks."""
    host: str
    machine: str = ""
    """The host's own id, if it has one. The same id with another boot id is a host that was started again."""
    pid: int
    beat: int = 0


def boot_id() -> str:
    """Return the kernel's id of the present boot.

    Source: random(4), /proc/sys/kernel/random/boot_id.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def machine_id() -> str:
    """Return the permanent id of this installation of the system; "" if it has none.

    Source: machine-id(5).
    """
    with suppress(OSError):
        return Path("/etc/machine-id").read_text().strip()
    return ""


@contextmanager
def only_head(file: Path, part: str, *, taken_over: Callable[[], None], boot: str | None = None) -> Iterator[None]:
    """Make this process the only head of a workspace on all hosts, within a block. The caller holds this host's lock.

    Args:
        file: the record, in the workspace's state.
        part: the command that runs (`harness daemon`), for messages.
        taken_over: called, in a thread, if another head has written its record: this one must end.
        boot: this host's boot id; the default is the kernel's.

    Raises:
        ConfigurationError: a head of another host works in the workspace; the message names it.
    """
    record = HeadRecord(
        id=secrets.token_hex(8),
        boot=boot or boot_id(),
        host=socket.gethostname(),
        machine=machine_id(),
        pid=os.getpid(),
    )
    _refuse_second(file, part, record)
    atomic_write(file, record.model_dump_json())
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(file, record, ended, taken_over), name="head-heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        last = read_record(file, HeadRecord)
        if last is not None and last.id == record.id:
            file.unlink(missing_ok=True)


def _refuse_second(file: Path, part: str, own: HeadRecord) -> None:
    first = read_record(file, HeadRecord)
    if first is None or first.boot == own.boot:
        return
    if own.machine and (first.host, first.machine) == (own.host, own.machine):
        return  # this host was started again, which ended the other head
    until = time.monotonic() + _SILENT_S
    while time.monotonic() < until:
        present = read_record(file, HeadRecord)
        if present is None:
            return
        if present != first:
            raise ConfigurationError(
                f"{part} already runs on another host: {present.host}, process {present.pid}",
                where=str(file),
                remedy=f"end it there (`harness stop` on {present.host}); one head at a time works in a workspace",
            )
        time.sleep(_POLL_S)


def _beat(file: Path, record: HeadRecord, ended: threading.Event, taken_over: Callable[[], None]) -> None:
    while not ended.wait(BEAT_S):
        present = read_record(file, HeadRecord)
        if present is not None and present.id != record.id:
            taken_over()
            return
        record = record.model_copy(update={"beat": record.beat + 1})
        with suppress(ConfigurationError):  # a full disk is reported where entries are written
            atomic_write(file, record.model_dump_json())
