"""The judge of one device on its host. Ray runs this object in its own process, as an actor.

It starts judge processes, makes the directories that requests name, and keeps events until they are fetched. Only text
and bytes are exchanged. Its state may be lost at any time: the head then starts another judge process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster.content import LEAST_FREE_BYTES, ContentStore, Parcel
from harness.cluster.messages import HostEvent, JudgeWrote, RemoteJudgeEnded, SendRequest
from harness.errors import EXIT_OUT_OF_MEMORY, HarnessError
from harness.formats.bounded import load_json
from harness.model.config import SandboxKind
from harness.model.judging import DeviceRecord, JudgeAnswer, JudgeReady
from harness.workspace.directories import user_cache
from harness.workspace.judge_client import judge_command
from harness.workspace.judge_endpoint import JudgeEnded, JudgeNotice, LocalJudge
from harness.workspace.log_files import tail
from harness.workspace.processes import oom_kills

FETCH_S = 5.0
"""A fetch returns after this time if there is no event."""
_KEPT_REQUESTS = 8
"""Number of requests whose directories are not removed: one is judged, the others are checks."""
_LOG_BYTES = 4000
_SIGKILL = -9


@dataclass
class _JudgeRun:
    """A judge process and what it has written."""

    number: int
    log_from: int
    judge: LocalJudge | None = None
    oom_kills: int = 0
    """The kernel's count before its last request."""
    fault: str | None = None
    """Fault of this host that ends it."""
    first: int = 0
    """Index of the first event that is kept."""
    events: list[str] = field(default_factory=list)
    """In JSON, kept until they are known to have arrived: a fetch whose answer was lost is repeated."""

    def after(self, index: int) -> list[str]:
        """Return the events from an index on; the earlier ones have arrived."""
        del self.events[: max(index - self.first, 0)]
        self.first = max(index, self.first)
        return list(self.events)


class JudgeHost:
    """The judge processes of one device, one at a time. Methods may be called from several threads.

    Args:
        device: the device's name in the cluster.
        local_device: its name for the judge: `cpu`, or `cuda:0`, because Ray shows the process one GPU.
        host: name of the host, for the entries.
    """

    def __init__(self, device: str, local_device: str, host: str) -> None:
        self._device, self._local_device, self._host = device, local_device, host
        self._cache = user_cache() / "cluster"
        self._log = self._cache / "logs" / f"judge-{device.replace('/', '-').replace(':', '-')}.log"
        self._store = ContentStore(self._cache / "content")
        self._changed = threading.Condition()
        self._process: _JudgeRun | None = None
        self._locked_directories: deque[ExitStack] = deque()
        _undo_settings_of_ray()

    def missing(self, parcel: str) -> list[str]:
        """Return the sha256 of the blobs that this host lacks for a parcel."""
        manifests = Parcel.model_validate_json(parcel).manifests
        return list(
            dict.fromkeys(sha256 for manifest in manifests.values() for sha256 in self._store.missing(manifest))
        )

    def store(self, sha256: str, offset: int, data: bytes, last: bool) -> str:
        """Store a part of a blob; return an error message, or an empty text.

        Args:
            offset: byte offset of the part.
            data: bytes of the part.
            last: true for the part at the end.
        """
        try:
            self._store.store(sha256, offset, data, last=last)
        except HarnessError as error:
            return str(error)
        return ""

    def start(self, number: int, sandbox: SandboxKind) -> None:
        """End the present process, if any, and start another."""
        self.close()
        process = _JudgeRun(number, self._log.stat().st_size if self._log.exists() else 0)
        with self._changed:
            self._process = process
        try:
            self._store.require_space(LEAST_FREE_BYTES)
            self._store.trim()
            command = judge_command(self._local_device, self._cache / "judge", sandbox)
            process.judge = LocalJudge(self._device, command, number, self._log, self._take_in)
        except HarnessError as error:
            self._append(RemoteJudgeEnded.by_host(self._device, number, str(error)))
        except OSError as error:
            self._append(RemoteJudgeEnded.by_host(self._device, number, f"the judge cannot be started: {error}"))

    def send(self, order: str) -> None:
        """Create the directories of a request, and pass it to its process."""
        request = SendRequest.model_validate_json(order)
        process = self._process
        if process is None or process.number != request.number or process.judge is None:
            return
        try:
            line = self._with_own_directories(request)
        except HarnessError as error:
            process.fault = str(error)
            process.judge.kill()
            return
        process.oom_kills = oom_kills()
        process.judge.send(line)

    def end(self, number: int, kill: bool) -> None:
        """End the process of this number."""
        process = self._process
        if process is not None and process.number == number and process.judge is not None:
            (process.judge.kill if kill else process.judge.hang_up)()

    def fetch(self, number: int, after: int) -> list[str]:
        """Return the events of a process from an index on; wait up to `FETCH_S` for one.

        Args:
            after: index of the first event to return.
        """
        until = time.monotonic() + FETCH_S
        with self._changed:
            while (process := self._process) is not None and process.number == number:
                if events := process.after(after):
                    return events
                if (left_s := until - time.monotonic()) <= 0:
                    return []
                self._changed.wait(left_s)
        ended = RemoteJudgeEnded.by_host(self._device, number, "this host has lost its judge process")
        return [ended.model_dump_json()]

    def close(self) -> None:
        """End the present process, if any, and wait for its end."""
        judge = self._process.judge if self._process is not None else None
        if judge is not None:
            judge.hang_up()
            if not judge.wait_ended(3.0):
                judge.kill()
                judge.wait_ended(3.0)

    def _with_own_directories(self, request: SendRequest) -> bytes:
        """Return a request's line with directories of this host."""
        content = load_json(request.line, where="a request")
        parcel = request.parcel
        if parcel is not None:
            locks = ExitStack()
            self._locked_directories.append(locks)
            if len(self._locked_directories) > _KEPT_REQUESTS:
                self._locked_directories.popleft().close()
            for name, manifest in parcel.manifests.items():
                content[name] = str(locks.enter_context(self._store.locked_directory(manifest)))
        return json.dumps(content).encode() + b"\n"

    def _take_in(self, notice: JudgeNotice) -> None:
        """Store the event of a notice."""
        if isinstance(notice, JudgeEnded):
            self._append(self._ended(notice))
            return
        event = notice.event
        if isinstance(event, JudgeReady | JudgeAnswer):
            device = DeviceRecord.model_validate({**event.device.model_dump(), "host": self._host})
            event = event.model_copy(update={"device": device})
        self._append(JudgeWrote(device=self._device, number=notice.process_number, line=event.model_dump_json()))

    def _ended(self, notice: JudgeEnded) -> RemoteJudgeEnded:
        process, code = self._process, notice.exit_code
        if process is not None and process.fault is not None:
            return RemoteJudgeEnded.by_host(self._device, notice.process_number, process.fault)
        if process is not None and code == _SIGKILL and oom_kills() > process.oom_kills:
            code = EXIT_OUT_OF_MEMORY
        return RemoteJudgeEnded(
            device=self._device,
            number=notice.process_number,
            reason=notice.reason,
            wrong_protocol=notice.wrong_protocol,
            exit_code=code,
            log=tail(self._log, process.log_from if process is not None else 0, _LOG_BYTES),
        )

    def _append(self, event: HostEvent) -> None:
        with self._changed:
            if self._process is not None and self._process.number == event.number:
                self._process.events.append(event.model_dump_json())
                self._changed.notify_all()


def _undo_settings_of_ray() -> None:
    """Restore the settings of a judge without Ray: all processors, and no preference of the kernel's OOM killer.

    Ray sets OMP_NUM_THREADS to 1 in a process without CPUs, and oom_score_adj to 1000 (proc(5)): a judge would be
    killed before the candidate that takes the memory.
    """
    os.environ.pop("OMP_NUM_THREADS", None)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
