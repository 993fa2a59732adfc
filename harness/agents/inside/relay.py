"""The first process in an agent's sandbox: forwards a loopback port to the gateway's socket and runs the agent.

`python relay.py PORT SOCKET COMMAND...` listens on the port, runs the command and exits with its exit code. The package
is not in the sandbox, so this file imports only the standard library.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

_CHUNK_BYTES = 1 << 16


def _copy(source: socket.socket, destination: socket.socket) -> None:
    """Copy bytes until one side closes, then shut both directions down."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK_BYTES):
            destination.sendall(chunk)
    with contextlib.suppress(OSError):
        destination.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RD)


def _connect(client: socket.socket, path: str) -> None:
    """Connect one client with the gateway's socket and copy both directions."""
    with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gateway, contextlib.suppress(OSError):
        gateway.connect(path)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=_copy, args=(gateway, client), daemon=True)
        answers.start()
        _copy(client, gateway)
        answers.join()


def _listen(port: int, path: str) -> None:
    """Accept clients in a daemon thread until the process exits."""
    server = socket.create_server(("127.0.0.1", port), backlog=64)

    def accept() -> None:
        while True:
            client, _ = server.accept()
            threading.Thread(target=_connect, args=(client, path), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code, or 128 plus the number of the signal that ended it."""
    port, path, *command = arguments
    if Path(path).exists():
        _listen(int(port), path)
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
