"""The image's health check: status 0 if the exporter answers that it is healthy, else 1.

It asks on the operator's socket, which has neither TLS nor a login and which no job can reach.
Docker starts it every few seconds, so it imports only what the interpreter starts with, and one
module for sockets: a sixth of what urllib costs.
"""

import _socket
import sys

SOCKET = "/run/rankskew-operator/operator.sock"
TIMEOUT_SECONDS = 4.0
REQUEST = b"GET /-/healthy HTTP/1.1\r\nHost: exporter\r\nConnection: close\r\n\r\n"


def answer(path: str) -> bytes:
    """Return what the exporter that listens on *path* says; raises OSError."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_SECONDS)
    connection.connect(path)
    connection.sendall(REQUEST)
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def main() -> int:
    """Print what the exporter says; return the exit status."""
    path = sys.argv[1] if len(sys.argv) > 1 else SOCKET
    try:
        head, _, body = answer(path).partition(b"\r\n\r\n")
    except OSError as error:
        print(f"no answer from {path}: {error}")
        return 1
    print(body.decode().strip())
    return 0 if head.startswith(b"HTTP/1.1 200 ") else 1


sys.exit(main())
