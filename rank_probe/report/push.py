"""Pushes snapshots to the node's exporter once a second, from a thread that never queues."""

import http.client
import logging
import random
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from rank_probe.guest.guard import never_raise
from rank_probe.guest.yielding import give_way, has_waited
from rank_probe.report.endpoint import TIMEOUT_SECONDS, Bearer, json_object, open_connection
from rank_probe.wire.snapshot import DEFAULT_LEVEL, LEVELS, SNAPSHOT_PATH, Snapshot, SnapshotEncoder
from rank_probe.wire.text import printable

log = logging.getLogger("rank_probe")

INTERVAL_SECONDS = 1.0
# For the push in progress at the end, and the last one. On a busy machine the thread waits for its
# turn, and a rank whose last push is missing looks dead instead of finished.
LAST_PUSH_SECONDS = 2.0
LARGEST_ANSWER_BYTES = 65536

_HEAD = (
    f"POST {SNAPSHOT_PATH} HTTP/1.1\r\nHost: localhost\r\n"
    "Content-Type: application/json\r\n%sContent-Length: %d\r\n\r\n"
)
# With a Python timeout, each operation would take two system calls: a poll and the operation.
_TIMEOUT = struct.pack("ll", int(TIMEOUT_SECONDS), int(TIMEOUT_SECONDS % 1 * 1e6))


class Control:
    """The level that the exporter asks for; only for the pusher thread.

    An unknown level is ignored, and logged once.
    """

    def __init__(self) -> None:
        self._answered = DEFAULT_LEVEL
        self._complained = False

    def level(self, answer: Mapping[str, object]) -> str:
        """Return the level to run at after the exporter's *answer* to a push.

        An answer without a level, such as {} while the exporter is down, changes nothing.
        """
        asked = answer.get("level")
        if isinstance(asked, str) and asked in LEVELS:
            self._answered = asked
        elif asked is not None and not self._complained:
            self._complained = True
            log.warning(
                "rank_probe: the exporter asks for an unknown level, %.42r; the levels are %s",
                str(asked),
                ", ".join(LEVELS),
            )
        return self._answered


class Pusher:
    """A daemon thread that posts *snapshot()* about once a second.

    A snapshot that cannot be delivered is dropped: the next one contains everything again. The
    thread calls *snapshot*, which returns None while there is nothing to report. After each push it
    calls *on_answer* with the JSON object in the exporter's answer, or with {} if there is none.
    stop() makes one last push, which calls both once more.
    """

    def __init__(
        self,
        endpoint: str,
        snapshot: Callable[[], Snapshot | None],
        interval_seconds: float = INTERVAL_SECONDS,
        on_answer: Callable[[dict[str, object]], object] = lambda _: None,
        token_file: str = "",
    ) -> None:
        self._connection = open_connection(endpoint, TIMEOUT_SECONDS)
        self._endpoint = endpoint
        self._snapshot = snapshot
        self._encoder = SnapshotEncoder()
        self._interval = interval_seconds
        self._on_answer = on_answer
        self._bearer = Bearer(token_file, endpoint)
        self._is_ending = False
        # Released to push soon. Waiting for an Event costs twice as much.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._random = random.Random()  # The global one is the user's.
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="rank_probe", daemon=True)
        self.failed_pushes = 0

    def start(self) -> None:
        """Start pushing."""
        self._thread.start()

    def soon(self) -> None:
        """Push now instead of within a second; for any thread."""
        with suppress(RuntimeError):  # A push is already due.
            self._wake.release()

    def stop(self) -> None:
        """Push one last time and end the thread, within two seconds whatever the exporter does."""
        self._is_ending = True
        self.soon()
        if self._thread.is_alive():
            self._thread.join(LAST_PUSH_SECONDS)
        else:
            self.push()
        self._connection.close()

    @never_raise
    def push(self) -> None:
        """Post the current snapshot; count the failure if it is not accepted."""
        has_waited()  # For its turn.
        answer = self._deliver() or {}
        give_way()
        self._on_answer(answer)

    @never_raise
    def _deliver(self) -> dict[str, object]:
        snapshot = self._snapshot()
        if snapshot is None:
            return {}
        give_way()
        body = self._encoder.encode(snapshot)  # Sending it lets others have the interpreter.
        try:
            answer = self._post(body)
            has_waited()  # For the answer.
            return answer
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            why = "timed out" if isinstance(error, BlockingIOError) else error
            self._failed(f"{self._endpoint} did not accept it ({why})")
            return {}

    def _run(self) -> None:
        # Jittered, so that the ranks of a node do not all push in the same millisecond.
        while True:
            self._wake.acquire(timeout=self._interval * (0.8 + 0.4 * self._random.random()))
            is_last = self._is_ending
            self.push()
            if is_last:
                return

    def _post(self, body: bytes) -> dict[str, object]:
        status, answer = self._exchange(body)
        if status == http.client.UNAUTHORIZED and self._bearer.read():
            status, answer = self._exchange(body)  # The token was changed on both sides.
        if status != http.client.OK:
            self._failed(f"{status}: {printable(answer.decode(errors='replace'), 300)}")
            return {}
        return {} if answer == b"{}" else json_object(answer)  # Nearly every answer.

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        if self._connection.sock is None:
            self._connect()
        lines = "".join([f"{name}: {value}\r\n" for name, value in self._bearer.headers.items()])
        self._connection.sock.sendall((_HEAD % (lines, len(body))).encode() + body)
        status, answer, is_last = _answer(self._connection.sock)
        if is_last:
            self._connection.close()
        return status, answer

    def _connect(self) -> None:
        self._bearer.read()  # Not in __init__, which runs in the training thread.
        self._connection.connect()
        self._connection.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._connection.sock.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)

    def _failed(self, why: str) -> None:
        self.failed_pushes += 1
        if not self._complained:
            self._complained = True
            log.warning(
                "rank_probe could not push a snapshot: %s. Training continues; the probe retries "
                "every second, and further failures are only counted.",
                why,
            )


def _answer(connection: socket.socket) -> tuple[int, bytes, bool]:
    """Return one answer's status and body, and whether the server then closes *connection*.

    Parsed by hand, because http.client's parsing of the few headers costs more than the rest of a
    push. Raises HTTPException for what it cannot parse.
    """
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(connection, received)
    head, _, body = received.partition(b"\r\n\r\n")
    head = head.lower()
    try:
        version, status, _ = head.split(maxsplit=2)
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r")[0])
        while len(body) < length:
            body += _more(connection, body)
        is_last = version != b"http/1.1" or b"\r\nconnection: close" in head
        return int(status), body[:length], is_last
    except ValueError as error:
        raise http.client.HTTPException("the server is not an exporter") from error


def _more(connection: socket.socket, received: bytes) -> bytes:
    if len(received) > LARGEST_ANSWER_BYTES:
        raise http.client.HTTPException("the server is not an exporter: its response does not end")
    more = connection.recv(LARGEST_ANSWER_BYTES)
    if not more:
        raise ConnectionResetError("the exporter closed the connection")
    return more
