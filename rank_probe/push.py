"""Push snapshots to the node's exporter once a second, from a thread that never queues."""

import http.client
import logging
import random
import socket
import threading
from collections.abc import Callable

from rank_probe.guard import never_raise
from rank_probe.snapshot import SNAPSHOT_PATH, Snapshot

log = logging.getLogger("rank_probe")

DEFAULT_ENDPOINT = "unix:/run/rankskew/exporter.sock"
INTERVAL_SECONDS = 1.0
# The exporter is on this node and answers in a millisecond; longer means it is in trouble.
TIMEOUT_SECONDS = 0.5


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_SECONDS)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            raise
        self.sock = connection


def open_connection(endpoint: str) -> http.client.HTTPConnection:
    """Return an unconnected HTTP connection to *endpoint*.

    *endpoint* is `unix:/path/to.sock` or `http://127.0.0.1:PORT`; ValueError for anything else.
    """
    scheme, _, rest = endpoint.partition(":")
    if scheme == "unix" and rest.startswith("/"):
        return _UnixConnection("/" + rest.lstrip("/"))
    host, _, port = rest.removeprefix("//").rstrip("/").rpartition(":")
    if scheme == "http" and host and port.isdecimal():
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_SECONDS)
    raise ValueError(
        f"RANKSKEW_EXPORTER is {endpoint!r}; it must be unix:/path/to.sock or http://127.0.0.1:PORT"
    )


class Pusher:
    """A daemon thread that posts *snapshot()* about once a second.

    A snapshot that cannot be delivered is dropped: the next one says everything again. *snapshot*
    is called from this thread; None means that there is nothing to say yet.
    """

    def __init__(
        self,
        endpoint: str,
        snapshot: Callable[[], Snapshot | None],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._connection = open_connection(endpoint)
        self._endpoint = endpoint
        self._snapshot = snapshot
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="rank_probe", daemon=True)
        self.failed_pushes = 0

    def start(self) -> None:
        """Begin to push."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and push one last time, within about a second."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_SECONDS)
        if not self._thread.is_alive():
            self.push()
        self._connection.close()

    @never_raise
    def push(self) -> None:
        """Post the current snapshot; count the failure if nobody takes it."""
        snapshot = self._snapshot()
        if snapshot is None:
            return
        try:
            self._post(snapshot.to_json())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._failed(f"{self._endpoint} did not take it ({error})")

    def _run(self) -> None:
        # Jittered, so that the ranks of a node do not all push in the same millisecond.
        while not self._stop.wait(self._interval * random.uniform(0.8, 1.2)):
            self.push()

    def _post(self, body: bytes) -> None:
        self._connection.request(
            "POST", SNAPSHOT_PATH, body, headers={"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            self._failed(f"{response.status}: {answer.decode(errors='replace')[:300]}")

    def _failed(self, why: str) -> None:
        self.failed_pushes += 1
        if not self._complained:
            self._complained = True
            log.warning(
                "rank_probe could not push a snapshot: %s. Training goes on; "
                "it tries again every second and only counts from here.",
                why,
            )
