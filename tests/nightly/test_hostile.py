"""A real exporter under attack: no 5xx, no traceback, no growth, and good pushes and scrapes go on.

Hypothesis writes what is sent, and shortens what does harm.
"""

import http.client
import json
import math
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from devstack.load import scrape
from devstack.parts import ExporterProcess
from devstack.process import free_port, get
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import SNAPSHOT_PATH
from tests.nightly.figures import full_or_short, hold, row
from tests.nightly.hostile import NUMBERS, PATHS, bodies, newest, no_snapshots, requests, valid

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(7200)]

BODIES: Final = int(full_or_short(100_000, 800))
REQUESTS: Final = int(full_or_short(20_000, 200))
# Twenty times what the slowest case needs, on a machine that has other work too.
LONGEST_SECONDS: Final = 5.0
# What a push may be answered; written out, because the exporter could change its own list.
PUSH_STATUSES: Final = {200, 400, 403, 409, 413, 422, 429}
# How long an answer is waited for that may not come.
LOOK_SECONDS: Final = 0.03
MOST_LOG_BYTES: Final = 16 * 1024
# 50,000 cases that leave 84 bytes each are over it.
MOST_GROWTH_MIB: Final = 4.0
# Ranks are forgotten so soon, once the live page has seen them: one that an attack has put out of
# order makes room for the next. Four times RANKS_MAX may begin in a minute.
RETENTION_SECONDS: Final = 1.1
RANKS_MAX: Final = 128
FLAGS: Final = (
    f"--ranks.max={RANKS_MAX}",
    f"--ranks.silent-retention={RETENTION_SECONDS * 1e3:.0f}ms",
    f"--ranks.finished-retention={RETENTION_SECONDS * 1e3:.0f}ms",
)
# A rank has at most 68 series; 16 jobs, the node and itself.
MOST_SERIES: Final = RANKS_MAX * 68 + 16 * 100 + 600
# What the page is asked as, and Prometheus' own parser of it.
FORMATS: Final = (
    ("text/plain", text_string_to_metric_families),
    ("application/openmetrics-text;version=1.0.0", openmetrics.text_string_to_metric_families),
)
# Not at the beginning of a line only: an answer's body may end without one.
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
ENDINGS: Final = ("wait", "half", "close", "reset")


class Victim(ExporterProcess):
    """An exporter that is attacked; *statuses* counts its answers, *pages* the looks at it."""

    def __init__(self, directory: Path, flags: tuple[str, ...] = ()) -> None:
        super().__init__(directory, flags=[*FLAGS, *flags])
        self.statuses: dict[str, Counter[int]] = {"body": Counter(), "request": Counter()}
        self.pages = self.most_series = 0
        self._cases = self._log_began = 0
        self._pushes: http.client.HTTPConnection | None = None

    def start(self) -> None:
        """Start it; what its log says from here on is judged."""
        super().start()
        self._log_began = self.log.stat().st_size

    def stop(self) -> None:
        """End it, and the connection to it."""
        self.hang_up()
        super().stop()

    def hang_up(self) -> None:
        """Close the connection of the pushes; the next one opens another."""
        if self._pushes is not None:
            self._pushes.close()
        self._pushes = None

    def logged(self) -> bytes:
        """Return what it has logged since it was ready."""
        return self.log.read_bytes()[self._log_began :]

    def resources(self) -> tuple[float, int]:
        """Return resident MiB and open files, once all ranks are forgotten."""
        time.sleep(RETENTION_SECONDS + 1.1)  # The live page samples once a second.
        process = psutil.Process(self.pid)
        return process.memory_info().rss / 2**20, process.num_fds()

    def suffered(self, kind: str, statuses: list[int]) -> None:
        """Fail if a case was answered with *statuses* that it must not be, or did harm."""
        self.statuses[kind].update(statuses)
        assert not [status for status in statuses if status >= 500]
        self.check_alive()
        said = self.logged()
        assert b"Traceback" not in said
        assert len(said) <= MOST_LOG_BYTES, said[-2000:]
        self._cases += 1
        if self._cases % 100 == 0:
            self.check_service()

    def check_service(self) -> None:
        """Fail unless a proper push is taken and the pages can be read."""
        number = next(NUMBERS)
        assert self.post(valid("watched", 0, number)) == 200
        self.pages += 1
        accept, parsed = FORMATS[self.pages % len(FORMATS)]
        page = scrape(self.address, accept).decode()
        samples = [sample for family in parsed(page) for sample in family.samples]
        series = Counter((each.name, *sorted(each.labels.items())) for each in samples)
        self.most_series = max(self.most_series, len(series))
        assert series.most_common(1)[0][1] == 1
        assert len(series) <= MOST_SERIES
        assert not [sample for sample in samples if not math.isfinite(sample.value)]
        steps = [each for each in samples if each.name == "rankskew_steps_total"]
        watched = {each.value for each in steps if each.labels["job_id"] == "watched"}
        assert number in watched
        live = get(f"{self.url}/api/v1/live", LONGEST_SECONDS)
        json.loads(live, parse_constant=_no_json)

    @contextmanager
    def as_new_after_harm(self) -> Iterator[None]:
        """Start it anew if the block fails: the next case is to come upon an unharmed one."""
        try:
            yield
        except Exception:
            self.stop()
            self.start()
            raise

    def post(self, body: bytes) -> int:
        """Post *body* as a proper request; return the status."""
        connection = self._pushes or open_connection(self.target, LONGEST_SECONDS)
        self._pushes = connection
        try:
            connection.request("POST", SNAPSHOT_PATH, body)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self.hang_up()
            raise
        return answer.status

    def write(self, door: str, data: bytes, ending: str) -> list[int]:
        """Write *data* to the listener *door*; return the statuses of what comes back."""
        if door == "ingest":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(LONGEST_SECONDS)
            connection.connect(str(self.socket))
        else:
            host, _, port = self.address.rpartition(":")
            connection = socket.create_connection((host, int(port)), LONGEST_SECONDS)
        received = bytearray()
        with connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # It may close on what it reads.
                connection.sendall(data)
            if ending == "reset":
                option = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            if ending == "wait":
                connection.settimeout(LOOK_SECONDS)
                with suppress(TimeoutError):
                    _read(connection, received)
                connection.settimeout(LONGEST_SECONDS)
            if ending in ("wait", "half"):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                _read(connection, received)
        assert received.startswith(b"HTTP/1.1 ") or not received
        return [int(status) for status in STATUS.findall(received)]


def _read(connection: socket.socket, into: bytearray) -> None:
    """Add what comes until the other side closes."""
    with suppress(ConnectionResetError):
        while part := connection.recv(2**18):
            into += part


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def attack(victim: Victim, pushes: int, writes: int) -> None:
    """Send so many hostile snapshots, and so many hostile requests to its two listeners."""

    def push(body: bytes) -> None:
        with victim.as_new_after_harm():
            status = victim.post(newest(body))
            assert status in PUSH_STATUSES
            victim.suffered("body", [status])

    def write(data: st.DataObject, door: str, ending: str) -> None:
        sent = newest(data.draw(requests(door)))
        with victim.as_new_after_harm():
            victim.suffered("request", victim.write(door, sent, ending))

    doors, endings = st.sampled_from(tuple(PATHS)), st.sampled_from(ENDINGS)
    for case, count in (
        (given(bodies())(push), pushes * 3 // 4),
        (given(no_snapshots())(push), pushes // 4),
        (given(st.data(), doors, endings)(write), writes),
    ):
        settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )(case)()
    victim.check_service()


def test_hostile_input_does_no_harm(tmp_path: Path) -> None:
    """Each case, on either listener, is answered below 500 and leaves nothing behind."""
    with Victim(tmp_path) as victim:
        # By then the live page's minute is full, and the allocator's pools have their size.
        attack(victim, BODIES // 2, REQUESTS // 2)
        before, files_before = victim.resources()
        attack(victim, BODIES // 2, REQUESTS // 2)
        after, files_after = victim.resources()
        pushed, requested = victim.statuses["body"], victim.statuses["request"]
        assert pushed[200] > BODIES / 5  # Else little was tried.
        rows = [
            row("hostile snapshots", pushed.total()),
            row("of these taken", pushed[200]),
            row("hostile requests", REQUESTS),
            row("of their answers 2xx", requested[200]),
            row("of their answers 4xx", requested.total() - requested[200]),
            row("answers 5xx", 0, 0),
            row("tracebacks in the log", 0, 0),
            row("bytes logged", len(victim.logged()), MOST_LOG_BYTES),
            row("times that the pages were read", victim.pages),
            row("most series on a page", victim.most_series, MOST_SERIES),
            row("growth of resident memory, MiB", after - before, MOST_GROWTH_MIB),
            # The NVML child comes and goes by itself.
            row("growth of open files", files_after - files_before, 3),
        ]
    hold("hostile", rows)


def test_descriptions_are_true(tmp_path: Path) -> None:
    """Schemathesis finds nothing wrong with what either listener says in /openapi.json."""
    pytest.importorskip("schemathesis")
    ingest = f"127.0.0.1:{free_port()}"
    with Victim(tmp_path, (f"--ingest.listen-address={ingest}",)) as victim:
        for base in (victim.url, f"http://{ingest}"):
            command = [sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json"]
            # That a label must be printable, and a rank below its world's size, no schema can say.
            command += ["--exclude-checks=positive_data_acceptance", "--no-color"]
            command += [f"--max-examples={full_or_short(200, 10):.0f}", "--seed=1"]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1200
            )
            assert done.returncode == 0, done.stdout + done.stderr
            victim.hang_up()  # Idle for so long, its connection was ended meanwhile.
            victim.check_service()
