"""A real exporter process for tests, HTTP over its Unix socket, and certificates for its web."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PATIENCE_SECONDS: Final = 30.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return status, headers and body of the only answer on *connection*."""
    with closing(connection):
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def basic(login: str) -> dict[str, str]:
    """Return the header with a *login*, a user and a password."""
    return {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def _tcp(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)


class RunningExporter:
    """An exporter process that serves; *port* is its web port."""

    COMMAND: Final = (sys.executable, "-m", "rankskew", "exporter")

    def __init__(self, socket_path: Path, *flags: str) -> None:
        self.socket_path = socket_path
        self.operator_path = socket_path.with_name("operator.sock")
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [
                *self.COMMAND,
                "--web.listen-address=127.0.0.1:0",
                f"--ingest.socket={socket_path}",
                f"--operator.socket={self.operator_path}",
                *flags,
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        try:
            self.port = int(self._logged(r" serves https?://127\.0\.0\.1:(\d+)/"))
        except AssertionError:
            self.kill()
            raise

    def get(self, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Return status, headers and body of a GET on the web listener."""
        return exchange(_tcp(self.port), "GET", path, None, headers)

    def metrics(self) -> str:
        """Return the page that Prometheus scrapes."""
        status, _, body = self.get("/metrics")
        assert status == 200
        return body.decode()

    def push(self, body: Any, **headers: str) -> tuple[int, Any]:
        """Post *body* to the ingest socket; return status and decoded answer."""
        connection = UnixConnection(self.socket_path)
        status, _, answer = exchange(connection, "POST", "/v1/snapshots", body, headers)
        return status, json.loads(answer)

    def tcp_port(self) -> int:
        """Return the port on which the ingest listens over TCP."""
        return int(self._logged(r"ingest listens on \d+\.\d+\.\d+\.\d+:(\d+)"))

    def push_over_tcp(self, port: int, body: bytes, **headers: str) -> tuple[int, Any]:
        """Post *body* to the TCP listener; return status and decoded answer."""
        status, _, answer = exchange(_tcp(port), "POST", "/v1/snapshots", body, headers)
        return status, json.loads(answer)

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Send signal *number* and wait for the end of the process."""
        self.process.send_signal(number)
        self.process.wait(PATIENCE_SECONDS)
        self._reader.join()

    def kill(self) -> None:
        """End the process the hard way, if it still runs."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def _logged(self, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, "\n".join(self.log))

        wait_until(lambda: found() is not None or self.process.poll() is not None)
        match = found()
        assert match is not None, self.log
        return match[1]


@contextmanager
def running_exporter(socket_path: Path, *flags: str) -> Iterator[RunningExporter]:
    """Run an exporter on a free port; it is ended in any case."""
    exporter = RunningExporter(socket_path, *flags)
    try:
        yield exporter
    finally:
        exporter.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*; an assertion fails when it does not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def counted(page: str, result: str) -> float:
    """Return how many snapshots *page* counts with this *result*."""
    match = re.search(rf'rankskew_ingest_snapshots_total{{result="{result}"}} (\S+)', page)
    # A count is exposed only once it is above zero.
    return 0.0 if match is None else float(match[1])


def promtool_check_metrics(page: str) -> subprocess.CompletedProcess[str]:
    """Run promtool's lint over an exposition."""
    return subprocess.run(
        ["promtool", "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )


def make_certificate(directory: Path, name: str, days: int = 2) -> tuple[Path, Path]:
    """Write a self-signed certificate for localhost; return its path and its key's."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", str(days), "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
