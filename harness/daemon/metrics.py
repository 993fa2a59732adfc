"""Metrics of the daemon for Prometheus, on this machine's loopback only."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from harness.errors import ConfigurationError
from harness.model.process_status import DaemonStatus

ADDRESS = "127.0.0.1"
_WAIT_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)


@dataclass
class DaemonMetrics:
    """Counters of the daemon. Its thread writes single values, and the server's threads read them."""

    status: DaemonStatus = field(default_factory=DaemonStatus)
    disk_free_bytes: int = 0
    entries: int = 0
    """Entries of every kind that this process wrote."""
    ledger_commit_s: float = 0.0
    """Duration of the last commit of the ledger."""
    ledger_commits: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(_WAIT_BOUNDS_S) + 1))
    """Candidates by the time that they waited in the queue: one count per bound, and one for longer waits."""
    waited_s: float = 0.0
    """Sum of all waits, in seconds."""

    def waited(self, seconds: float) -> None:
        """Count a candidate that waited `seconds` in the queue."""
        self.waits[bisect_left(_WAIT_BOUNDS_S, seconds)] += 1
        self.waited_s += seconds

    def text(self) -> str:
        """Return all figures in Prometheus' text format.

        Source: https://prometheus.io/docs/instrumenting/exposition_formats/
        """
        judges = Counter(judge.state.replace(" ", "_") for judge in self.status.judges)
        lines = [
            *_metric("queue_length", "gauge", "Candidates that wait for a judge.", self.status.queued),
            *_metric("evaluations_total", "counter", "Evaluations of this invocation.", self.status.evaluations_done),
            *_metric("entries_total", "counter", "Ledger entries that this process wrote.", self.entries),
            *_metric("ledger_commits_total", "counter", "Commits of the ledger.", self.ledger_commits),
            *_metric("ledger_commit_seconds", "gauge", "Duration of the last commit.", round(self.ledger_commit_s, 3)),
            *_metric("disk_free_bytes", "gauge", "Free space on the fullest disk of the run.", self.disk_free_bytes),
            *_metric("paused", "gauge", "1 while nothing can be judged.", int(self.status.paused is not None)),
            *_metric("resident_bytes", "gauge", "Memory of the daemon.", _resident_bytes()),
            "# HELP harness_judges Judges by state.",
            "# TYPE harness_judges gauge",
            *(f'harness_judges{{state="{state}"}} {count}' for state, count in sorted(judges.items())),
            *self._histogram(),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name, counts = "harness_queue_wait_seconds", list(self.waits)
        lines = [f"# HELP {name} Time that candidates waited in the queue.", f"# TYPE {name} histogram"]
        for position, bound in enumerate((*_WAIT_BOUNDS_S, "+Inf"), 1):
            lines.append(f'{name}_bucket{{le="{bound}"}} {sum(counts[:position])}')
        return [*lines, f"{name}_sum {self.waited_s:.3f}", f"{name}_count {sum(counts)}"]


class MetricsServer:
    """Serves `GET /metrics` on the loopback, in threads of its own, within a `with` block.

    Args:
        port: the port; 0 takes a free one, which the attribute `port` holds.
    """

    def __init__(self, metrics: DaemonMetrics, port: int) -> None:
        class MetricsRequest(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_metrics = self.path == "/metrics"
                body = metrics.text().encode() if is_metrics else b"see /metrics\n"
                self.send_response(200 if is_metrics else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Requests are not logged."""

        try:
            self._server = ThreadingHTTPServer((ADDRESS, port), MetricsRequest)
        except OSError as error:
            raise ConfigurationError(
                f"no metrics can be served on port {port}: {error.strerror or error}",
                where="--metrics",
                remedy="name a free port",
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _metric(name: str, kind: str, help_text: str, value: float) -> list[str]:
    return [f"# HELP harness_{name} {help_text}", f"# TYPE harness_{name} {kind}", f"harness_{name} {value}"]


def _resident_bytes() -> int:
    """Return the resident memory in bytes. Source: proc(5), /proc/PID/status, field VmRSS in kB."""
    fields = Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()
    return int(fields[0]) * 1024 if fields else 0
