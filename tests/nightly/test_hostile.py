"""A real exporter under attack: no 5xx, no traceback, no growth, and good pushes and scrapes go on.

Hypothesis writes what is sent, and shortens what does harm. Slow clients come by the hundred, and
come back a second after they are thrown out.
"""

import asyncio
import http.client
import json
import math
import os
import re
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks.report import Row
from devstack.load import RANK, RANKS, beside, pushing, scrape
from devstack.parts import ExporterProcess
from devstack.process import get, wait_for
from exporter.listeners.connection import MOST_PIPELINED
from exporter.operator.orders import CONTROL_PATH, GPUS_PATH
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import DRY_RUN_PATH, SNAPSHOT_PATH
from rank_probe.wire.stages import STAGES
from tests.nightly.figures import full_or_short, hold, row
from tests.repo.test_stability import everything

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
# 50,000 cases that leave 100 bytes each are over it.
MOST_GROWTH_MIB: Final = 4.0
# Ranks are forgotten this soon after the live page has seen them, so that a rank broken by an
# attack makes room for the next. Four times RANKS_MAX may begin in a minute.
RETENTION_SECONDS: Final = 1.1
RANKS_MAX: Final = 128
FLAGS: Final = (
    f"--ranks.max={RANKS_MAX}",
    f"--ranks.silent-retention={RETENTION_SECONDS * 1e3:.0f}ms",
    f"--ranks.finished-retention={RETENTION_SECONDS * 1e3:.0f}ms",
)
# A rank has at most 68 series; 16 jobs, the node and itself.
MOST_SERIES: Final = RANKS_MAX * 68 + 16 * 100 + 600

# ---- What is sent --------------------------------------------------------------------------------

# Hypothesis makes all bodies with this number; newest() replaces it with the next when sent.
OLDEST: Final = 10**9
NUMBERS: Final = count(OLDEST + 1)
# Changing one of these makes a rank of another process or job, and their number is limited.
IDENTITY: Final = {"job_id", "rank", "attempt", "sequence", "started_timestamp_seconds"}
# What json.dumps() does not write.
RAW: Final = (
    *(b"1e999", b"-0", b"0x10", b"01", b"1_0", b"9" * 5_000, b"undefined", b"'x'", b""),
    *(b'"\\ud800"', b'"\\x"', b'"\xff"', b'"\xed\xa0\x80"', b'"\n"', b'"', b'1,"rank":1'),
    *(b"[" * 20_000, b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
    b"{" + b",".join(b'"k%d":1' % number for number in range(3_000)) + b"}",
)
NAMES: Final = st.sampled_from((*STAGES, "all", "__class__", "schema", "x" * 5_000))
VALUES: Final = (
    st.floats()
    | st.integers()
    | st.text()
    | NAMES
    | st.sampled_from([f"raw {number}" for number in range(len(RAW))])
    | st.recursive(
        st.none() | st.booleans() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | NAMES, inner),
    )
)


def valid(job_id: str, rank: int = 0, number: int = OLDEST) -> bytes:
    """Return a snapshot that is to be accepted, newer than those with a lower *number*."""
    own = {"job_id": job_id, "rank": rank, "sequence": number, "steps": number}
    return json.dumps(everything() | own).encode()


def newest(data: bytes) -> bytes:
    """Return *data* with the number of its snapshots above all before."""
    return data.replace(b"%d" % OLDEST, b"%d" % next(NUMBERS))


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in *value*, at any depth."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from objects(each)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a snapshot, wrong in up to three places.

    With more faults, less of the exporter's code would run before the refusal.
    """
    job, rank = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    whole = json.loads(valid(f"hostile-{job}", rank))
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 1, 1, 2, 3)))):
        part = draw(st.sampled_from(list(objects(whole))))
        name = draw(st.sampled_from(sorted({*part, "new"} - IDENTITY)) | NAMES)
        if draw(st.booleans()):
            part[name] = draw(VALUES)
        else:
            part.pop(name, None)
    body = json.dumps(whole).encode()
    return re.sub(rb'"raw (\d+)"', lambda found: RAW[int(found[1])], body)


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """Return *data* with some bytes replaced, inserted, deleted or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.sampled_from((begin, begin + 1, begin + 10, len(data))))
        data = data[:begin] + draw(st.binary(max_size=40)) + data[end:]
    return data


PATHS: Final = {
    "web": (b"/metrics", b"/", b"/api/v1/live", b"/-/healthy", b"/-/ready", b"/openapi.json"),
    "ingest": tuple(map(str.encode, (SNAPSHOT_PATH, DRY_RUN_PATH, CONTROL_PATH, GPUS_PATH))),
}
METHODS: Final = (b"GET", b"GET", b"HEAD", b"POST", b"CONNECT", b"PRI", b"", b"X" * 5_000)
TARGETS: Final = (
    *(b"*", b"//", b"/../../etc/passwd", b"/%00", b"/%zz", b"/%ff", b"http://[::1/", b"x:443"),
    *(b"/metrics?collect[]=%ff", b"/metrics?" + b"collect[]=ranks&" * 500, b"/" + b"a" * 70_000),
)
VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"")
CHUNKED: Final = tuple(
    b"Transfer-Encoding" + rest
    for rest in (b": chunked", b": xchunked", b":\x0bchunked", b" : gzip")
)
HEADERS: Final = (
    *(b"Host: a\r\nHost: b", b"Host: \xff", b": x", b"NoColon", b"\0: \0", b"X: a\r\n b"),
    *(b"Connection: close", b"Connection: upgrade\r\nUpgrade: h2c", b"Expect: 100-continue"),
    *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 5\r\nContent-Length: 6"),
    *(b"Content-Length: 99999999999999999999999", b"Content-Length: \xb2", *CHUNKED),
    *(b"X: " + b"y" * 20_000, b"Y" * 20_000 + b": x", b"\r\n".join([b"Z: 1"] * 2_000)),
    *(b"Accept: ;;;,,,=", b"Accept-Encoding: gzip;q=x", b"Authorization: Basic AAAAAAAAA"),
    *(b"X-Prometheus-Scrape-Timeout-Seconds: nan", b"X-Prometheus-Scrape-Timeout-Seconds: 1e999"),
)
CHUNKS: Final = (
    *(b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n", b"-1\r\n", b"fffffffffffffffff\r\n"),
    *(b"5;ext=" + b"e" * 9_000 + b"\r\nhello\r\n", b"0\r\n" + b"T: x\r\n" * 3_000 + b"\r\n"),
    *(b"1\r\na\r\n" * 2_000, 2 * (b"FFFF\r\n" + b"x" * 0xFFFF + b"\r\n") + b"0\r\n\r\n"),
)
GET: Final = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
POST: Final = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


@st.composite
def requests(draw: st.DrawFn, door: str) -> bytes:
    """Return bytes that are nearly, or not at all, HTTP/1.1, for the listener *door*.

    Parts of one request, of which each may be wrong; or a row of proper ones, damaged or not.
    """
    path, body = draw(st.sampled_from(PATHS[door])), valid("request")
    if draw(st.booleans()):
        proper = POST % (path, len(body), body) if door == "ingest" else GET % path
        several = proper * draw(st.sampled_from((1, 2, 5, 30)))
        return draw(st.just(several) | spoiled(several))
    target = draw(st.sampled_from((path, path, *TARGETS)))
    first = (draw(st.sampled_from(METHODS)), target, draw(st.sampled_from(VERSIONS)))
    headers = draw(st.lists(st.sampled_from((b"Host: x", *HEADERS)), max_size=4))
    lines = [b" ".join(first), b"Host: x", *headers]
    chunks = draw(st.lists(st.sampled_from((b"hello", *CHUNKS)), max_size=3))
    return b"\r\n".join(lines) + b"\r\n\r\n" + b"".join(chunks)


# ---- Who suffers it ------------------------------------------------------------------------------

# Not at the beginning of a line only: an answer's body may end without one.
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")


def post(exporter: ExporterProcess, body: bytes) -> int:
    """Post *body* as a proper request; return the status."""
    with closing(open_connection(exporter.target, LONGEST_SECONDS)) as connection:
        connection.request("POST", SNAPSHOT_PATH, body)
        return connection.getresponse().status


class Victim(ExporterProcess):
    """An exporter that is attacked; *statuses* counts its answers, *pages* the looks at it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, flags=FLAGS)
        self.statuses: dict[str, Counter[int]] = {"body": Counter(), "request": Counter()}
        self.pages = self.most_series = 0
        self._cases = self._log_began = 0

    def start(self) -> None:
        """Start it; what its log says from here on is judged."""
        super().start()
        self._log_began = self.log.stat().st_size

    def logged(self) -> bytes:
        """Return what it has logged since it was ready."""
        return self.log.read_bytes()[self._log_began :]

    def resources(self) -> tuple[float, int]:
        """Return resident MiB and open files, once all ranks are forgotten."""
        time.sleep(RETENTION_SECONDS + 1.1)  # The live page samples once a second.
        process = psutil.Process(self.pid)
        return process.memory_info().rss / 2**20, process.num_fds()

    def suffer(self, kind: str, attack: Callable[[], list[int]]) -> None:
        """Fail if *attack* gets a forbidden answer or does harm.

        After a failure the exporter is restarted, so that the next case meets an unharmed one.
        """
        try:
            statuses = attack()
            self.statuses[kind].update(statuses)
            assert not [status for status in statuses if status >= 500]
            assert kind != "body" or PUSH_STATUSES.issuperset(statuses)
            self.check_alive()
            assert b"Traceback" not in self.logged()
            assert len(self.logged()) <= MOST_LOG_BYTES
            self._cases += 1
            if self._cases % 100 == 0:
                self.check_service()
        except Exception:
            self.stop()
            self.start()
            raise

    def check_service(self) -> None:
        """Fail unless a proper push is taken and the pages can be read."""
        number = next(NUMBERS)
        assert post(self, valid("watched", 0, number)) == 200
        self.pages += 1
        page = scrape(self.address, "application/openmetrics-text;version=1.0.0").decode()
        families = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
        samples = [sample for family in families for sample in family.samples]
        series = Counter((each.name, *sorted(each.labels.items())) for each in samples)
        self.most_series = max(self.most_series, len(series))
        assert series.most_common(1)[0][1] == 1
        assert len(series) <= MOST_SERIES
        assert all(math.isfinite(sample.value) for sample in samples)
        steps = [each for each in samples if each.name == "rankskew_steps_total"]
        assert number in {each.value for each in steps if each.labels["job_id"] == "watched"}
        live = get(f"{self.url}/api/v1/live", LONGEST_SECONDS)
        json.loads(live, parse_constant=pytest.fail)  # NaN is no JSON.

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

        def read() -> None:
            while part := connection.recv(2**18):
                received.extend(part)

        with connection, suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)  # It may close on what it reads.
            if ending == "reset":
                option = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            if ending == "wait":
                connection.settimeout(LOOK_SECONDS)
                with suppress(TimeoutError):
                    read()
                connection.settimeout(LONGEST_SECONDS)
            if ending in ("wait", "half"):
                with suppress(OSError):  # It may have closed.
                    connection.shutdown(socket.SHUT_WR)
                read()
        assert received.startswith(b"HTTP/1.1 ") or not received
        return [int(status) for status in STATUS.findall(received)]


def attack(victim: Victim, pushes: int, writes: int) -> None:
    """Send so many hostile snapshots, and so many hostile requests to its two listeners."""

    def push(body: bytes) -> None:
        victim.suffer("body", lambda: [post(victim, newest(body))])

    def write(data: st.DataObject, door: str, ending: str) -> None:
        sent = newest(data.draw(requests(door)))
        victim.suffer("request", lambda: victim.write(door, sent, ending))

    each = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    doors = st.sampled_from(sorted(PATHS))
    endings = st.sampled_from(("wait", "half", "close", "reset"))
    for case, number in (
        (given(bodies())(push), pushes * 3 // 4),
        (given(spoiled(valid("hostile-0")))(push), pushes // 4),
        (given(st.data(), doors, endings)(write), writes),
    ):
        settings(each, max_examples=number)(case)()
    victim.check_service()


def test_hostile_input_does_no_harm(tmp_path: Path) -> None:
    """Each case, on either listener, is answered below 500 and leaves nothing behind."""
    with Victim(tmp_path) as victim:
        # By then the live page's minute is full, and the allocator's pools have their size.
        attack(victim, BODIES // 2, REQUESTS // 2)
        looks = [victim.resources()]
        for _ in range(10):
            attack(victim, BODIES // 20, REQUESTS // 20)
            looks.append(victim.resources())
        # A leak grows in each part; the pools once, by what is larger than all before.
        *grown, _ = sorted(after - before for (before, _), (after, _) in pairwise(looks))
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
            row("growth of resident memory, one jump aside, MiB", sum(grown), MOST_GROWTH_MIB),
            # The NVML child comes and goes by itself.
            row("growth of open files", looks[-1][1] - looks[0][1], 3),
        ]
    hold("hostile", rows)


# ---- Slow clients --------------------------------------------------------------------------------

CLIENTS: Final = int(full_or_short(500, 100))
CROWD_ADDRESS, OTHER_ADDRESS = "127.0.0.1", "127.0.0.2"
NOBODY_UID: Final = 65534


async def slow_client(number: int, address: Any, request: bytes) -> None:
    """Come again and again; a third each say nothing, a byte a second, or read no answer."""
    loop = asyncio.get_running_loop()
    while True:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with suppress(OSError), socket.socket(family) as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if family == socket.AF_INET:
                connection.bind((CROWD_ADDRESS, 0))
            await loop.sock_connect(connection, address)
            match number % 3:
                case 0:
                    await loop.sock_recv(connection, 1)  # Until the other side closes.
                case 1:
                    for byte in request:
                        await loop.sock_sendall(connection, bytes([byte]))
                        await asyncio.sleep(1)
                case 2:  # As often as one may ask at once.
                    await loop.sock_sendall(connection, request * MOST_PIPELINED)
                    await asyncio.sleep(10)
        await asyncio.sleep(1)


def be_slow(web: str, ingest: str, uid: int | None) -> None:
    """Be CLIENTS slow clients of each listener; as user *uid* where that is given."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    host, _, port = web.rpartition(":")
    body = valid("slow")
    push = POST % (SNAPSHOT_PATH.encode(), len(body), body)

    async def crowd() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(slow_client(number, (host, int(port)), GET % b"/metrics"))
                group.create_task(slow_client(number, ingest, push))

    asyncio.run(crowd())


def unheard(page: bytes) -> int:
    """Return how many of the ranks that push are not on *page*, or are silent."""
    heard = page.count(b'rankskew_steps_total{job_id="%b"' % RANK.job_id.encode())
    silent = page.count(b'rankskew_rank_silent_seconds{job_id="%b"' % RANK.job_id.encode())
    return RANKS - heard + silent


def newcomer_is_taken(exporter: ExporterProcess) -> bool:
    """Return whether a rank of this user that connects now can push."""
    with suppress(OSError, http.client.HTTPException):
        return post(exporter, valid("newcomer", 0, next(NUMBERS))) == 200
    return False


def watched(exporter: ExporterProcess, what: str, source: str, most: int | None) -> list[Row]:
    """Scrape once a second from *source*; return how it went, *most* failures being allowed."""
    time.sleep(5)  # By then all have come, and been thrown out or not.
    seconds = int(full_or_short(60, 8))
    times: list[float] = []
    silent = refused = 0
    for _ in range(seconds):
        time.sleep(1)
        began = time.perf_counter()
        with suppress(OSError):
            silent = max(silent, unheard(scrape(exporter.address, source=source)))
            times.append(1e3 * (time.perf_counter() - began))
        refused += not newcomer_is_taken(exporter)
    return [
        row(f"{what}: scrapes", seconds),
        row(f"{what}: of these failed", seconds - len(times), most),
        row(f"{what}: time of a scrape, longest ms", max(times, default=0.0)),
        row(f"{what}: ranks unheard", silent, 0),
        row(f"{what}: new ranks refused", refused, most),
    ]


def test_crowd_of_slow_clients_is_not_noticed(tmp_path: Path) -> None:
    """No scrape from elsewhere fails, and each rank of another user is heard.

    Clients at the crowd's address, and new ranks of its user, may be refused.
    """
    uid = NOBODY_UID if os.geteuid() == 0 else None
    tmp_path.chmod(0o755)  # The crowd is another user's, if this is root.
    with ExporterProcess(tmp_path) as exporter, pushing(exporter):
        wait_for(lambda: None if unheard(scrape(exporter.address)) else True, 20)
        slow = (be_slow, exporter.address, str(exporter.socket))
        with beside(*slow, uid):
            what = "beside slow clients of another address and user"
            rows = watched(exporter, what, OTHER_ADDRESS, 0 if uid else None)
        with beside(*slow, None):
            rows += watched(exporter, "with their address and user", CROWD_ADDRESS, None)
    hold("slow_clients", rows)
