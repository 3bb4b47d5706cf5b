"""The exporter under attack, a real process, and what must hold of it after every case."""

import http.client
import json
import math
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.hostile.bodies import JOBS, RANKS, valid
from benchmarks.hostile.case import Case
from benchmarks.scrape.load import scrape
from devstack.parts import ExporterProcess
from devstack.process import get
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import SNAPSHOT_PATH

# Twenty times what the slowest case needs, on a machine that has other work too.
LONGEST_SECONDS: Final = 5.0
# What a push may be answered; written out, because the exporter could change its own list.
PUSH_STATUSES: Final = {200, 400, 403, 409, 413, 422, 429}
PIECE_SECONDS: Final = 0.001
# How long an answer is waited for that may not come, and the next one after it.
LOOK_SECONDS: Final = 0.03
NEXT_SECONDS: Final = 0.003
MOST_LOG_BYTES: Final = 16 * 1024
# Ranks are forgotten so soon, once the live page has seen them: one that an attack has put out of
# order makes room for the next. Four times RANKS_MAX may begin in a minute.
RETENTION_SECONDS: Final = 1.1
RANKS_MAX: Final = 128
# A rank has at most 68 series; 16 jobs, the node and itself.
MOST_SERIES: Final = RANKS_MAX * 68 + 16 * 100 + 600
# So often a proper rank pushes, which is never forgotten.
WATCH_SECONDS: Final = 0.4
FLAGS: Final = (
    f"--ranks.max={RANKS_MAX}",
    f"--ranks.silent-retention={RETENTION_SECONDS * 1e3:.0f}ms",
    f"--ranks.finished-retention={RETENTION_SECONDS * 1e3:.0f}ms",
)
# Each in turn: what it is asked as, and Prometheus' own parser of it.
FORMATS: Final[tuple[tuple[str, Callable[[str], Iterable[Metric]]], ...]] = (
    ("text/plain", text_string_to_metric_families),
    ("application/openmetrics-text;version=1.0.0", openmetrics.text_string_to_metric_families),
)
RESET: Final = struct.pack("ii", 1, 0)
# Not at the beginning of a line only: an answer's body may end without one.
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
NO_ROOM: Final = b"connections are open on this"


class Broken(Exception):
    """Something that must hold does not; the text says what."""


class Victim(ExporterProcess):
    """An exporter that is attacked; *answers* counts the statuses of each door."""

    def __init__(self, directory: Path, flags: tuple[str, ...] = ()) -> None:
        super().__init__(directory, flags=[*FLAGS, *flags])
        self.answers: dict[str, Counter[int]] = {"body": Counter(), "web": Counter()}
        self.answers["ingest"] = Counter()
        self.turned_away = 0
        self.is_harmed = False
        self.pages = 0
        self.most_series = 0
        self._watched = 0
        self._watched_seconds = 0.0
        self._log_read = 0
        self._log_began = 0
        self._pushes: http.client.HTTPConnection | None = None

    def start(self) -> None:
        """Start it; what its log says from here on is judged."""
        super().start()
        self._log_read = self._log_began = self.log.stat().st_size
        self.is_harmed = False

    def stop(self) -> None:
        """End it, and the connection to it."""
        self.hang_up()
        super().stop()

    @property
    def log_bytes(self) -> int:
        """How much it has logged since it was ready."""
        return self.log.stat().st_size - self._log_began

    def resources(self) -> tuple[float, int]:
        """Return resident MiB and open files, once all ranks are forgotten."""
        until = time.monotonic() + RETENTION_SECONDS + 1.1  # The live page samples once a second.
        while time.monotonic() < until:
            self._watch()
            time.sleep(WATCH_SECONDS / 4)
        process = psutil.Process(self.pid)
        return process.memory_info().rss / 2**20, process.num_fds()

    def suffer(self, case: Case) -> None:
        """Send *case*; raises Broken when something that must hold does not."""
        try:
            statuses = [self._post(case.data)] if case.door == "body" else self._write(case)
        except TimeoutError as error:
            raise Broken(f"no answer within {LONGEST_SECONDS} s") from error
        self.answers[case.door].update(statuses)
        bad = [status for status in statuses if status >= 500]
        if bad:
            raise Broken(f"answered {bad[0]}")
        self._watch()
        self.check_log()

    def hang_up(self) -> None:
        """Close the connection of the proper pushes; the next one opens another."""
        if self._pushes is not None:
            self._pushes.close()
        self._pushes = None

    def check_log(self) -> None:
        """Raise Broken for a traceback in the log, a log that grows, or a process that ended."""
        if self.exit_code is not None:
            raise Broken(f"ended with code {self.exit_code}:\n{self.last_lines()}")
        size = self.log.stat().st_size
        if size == self._log_read:
            return
        with self.log.open("rb") as log:
            log.seek(self._log_read)
            said = log.read()
        self._log_read += len(said)
        if b"Traceback" in said:
            raise Broken(f"logged a traceback:\n{said.decode(errors='replace')}")
        if self.log_bytes > MOST_LOG_BYTES:
            raise Broken(f"logged {self.log_bytes} bytes:\n{self.last_lines()}")

    def check_service(self) -> None:
        """Raise Broken unless a proper push is taken and both pages can be read."""
        self.pages += 1
        self._watch(is_due=True)
        try:
            self._check_page()
            live = get(f"{self.url}/api/v1/live", LONGEST_SECONDS)
            json.loads(live, parse_constant=_no_json)
        except (OSError, ValueError) as error:
            raise Broken(f"its page cannot be read: {error!r}") from error
        self.check_log()

    def _watch(self, is_due: bool = False) -> None:
        """Push for the proper rank if that *is_due*, or was long ago; raise Broken if refused."""
        if not is_due and time.monotonic() < self._watched_seconds + WATCH_SECONDS:
            return
        self._watched += 1
        if (status := self._post(valid("watched", self._watched * RANKS * JOBS))) != 200:
            raise Broken(f"answered {status} to a proper push")
        self._watched_seconds = time.monotonic()

    def _check_page(self) -> None:
        accept, parsed = FORMATS[self.pages % len(FORMATS)]
        page = scrape(self.address, accept).decode()
        samples = [sample for family in parsed(page) for sample in family.samples]
        series = Counter((s.name, *sorted(s.labels.items())) for s in samples)
        self.most_series = max(self.most_series, len(series))
        name, most = series.most_common(1)[0]
        if most > 1:
            raise ValueError(f"{name} is there {most} times")
        if len(series) > MOST_SERIES:
            raise ValueError(f"{len(series)} series")
        odd = [sample for sample in samples if not math.isfinite(sample.value)]
        if odd:
            raise ValueError(f"{odd[0]} is no number")
        steps = {s.value for s in samples if s.labels.get("job_id") == "watched" and _is_steps(s)}
        if 10 * self._watched * RANKS * JOBS not in steps:
            raise ValueError(f"a proper push is not on it: {steps}")

    def _post(self, body: bytes) -> int:
        """Post *body* as a proper request; return the status."""
        connection = self._pushes or open_connection(self.target)
        connection.timeout = LONGEST_SECONDS
        self._pushes = None
        try:
            connection.request("POST", SNAPSHOT_PATH, body)
            answer = connection.getresponse()
            said = answer.read()
        except TimeoutError:
            connection.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Broken(f"gave no answer: {error!r}") from error
        if answer.status == 503 and NO_ROOM in said:
            connection.close()
            self.turned_away += 1
            return 429  # By design; counted apart.
        if answer.status not in PUSH_STATUSES:
            raise Broken(f"answered {answer.status}: {said[:200]!r}")
        self._pushes = connection
        return answer.status

    def _write(self, case: Case) -> list[int]:
        """Write the bytes of *case*; return the statuses of what comes back."""
        received = self._exchange(case)
        if NO_ROOM in received:
            self.turned_away += 1
            return []
        if received and not received.startswith(b"HTTP/1.1 "):
            raise Broken(f"answered what is no HTTP: {received[:200]!r}")
        return [int(status) for status in STATUS.findall(received)]

    def _exchange(self, case: Case) -> bytes:
        with self._connect(case.door) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # It may close on no HTTP.
                for piece in case.pieces:
                    connection.sendall(piece)
                    if len(case.pieces) > 1:
                        time.sleep(PIECE_SECONDS)
            return ENDINGS[case.ending](connection)

    def _connect(self, door: str) -> socket.socket:
        if door == "ingest":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(LONGEST_SECONDS)
            connection.connect(str(self.socket))
            return connection
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), LONGEST_SECONDS)


def _waited_for(connection: socket.socket) -> bytes:
    """Return the answers that come within a moment, and those that come when nothing follows."""
    received = b""
    connection.settimeout(LOOK_SECONDS)
    with suppress(TimeoutError, ConnectionResetError):
        while part := connection.recv(2**18):
            received += part
            connection.settimeout(NEXT_SECONDS)
    connection.settimeout(LONGEST_SECONDS)
    return received + _half_closed(connection)


def _half_closed(connection: socket.socket) -> bytes:
    """Say that nothing more comes, and return the answers to the end."""
    received = b""
    with suppress(OSError):  # It may be gone.
        connection.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):
        while part := connection.recv(2**18):
            received += part
    return received


def _closed(_: socket.socket) -> bytes:
    return b""


def _reset(connection: socket.socket) -> bytes:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return b""


ENDINGS: Final = {"wait": _waited_for, "half": _half_closed, "close": _closed, "reset": _reset}


def _is_steps(sample: Any) -> bool:
    return bool(sample.name == "rankskew_steps_total")


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
