"""Inside an agent's sandbox: a port of the loopback that leads to the gateway's socket, and the agent itself.

`python relay.py PORT SOCKET COMMAND...`: listens, runs the command, ends with it and with its exit code. Runs from a
directory of its own inside the sandbox, so it imports nothing of the harness.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

_PIECE = 1 << 16


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes as they come, until one side ends."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    for each, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            each.shutdown(how)


def carry(inner: socket.socket, path: str) -> None:
    """Connect one caller with the gateway."""
    with inner, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as outer, contextlib.suppress(OSError):
        outer.connect(path)
        inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=pump, args=(outer, inner), daemon=True)
        back.start()
        pump(inner, outer)
        back.join()


def listen(port: int, path: str) -> None:
    """Accept callers in a thread, for ever."""
    server = socket.create_server(("127.0.0.1", port), backlog=64)

    def accept() -> None:
        while True:
            inner, _ = server.accept()
            threading.Thread(target=carry, args=(inner, path), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Run; the command's exit code, 128 + signal when one ended it."""
    port, path, *command = arguments
    if Path(path).exists():
        listen(int(port), path)
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
