"""Hostile requests: bytes that are nearly, or not at all, HTTP/1.1, for either listener."""

from random import Random
from typing import Final

from benchmarks.hostile.bodies import valid
from benchmarks.hostile.case import Case, spoiled
from exporter.operator.orders import CONTROL_PATH, GPUS_PATH
from rank_probe.wire.snapshot import DRY_RUN_PATH, SNAPSHOT_PATH

PATHS: Final = {
    "web": (b"/metrics", b"/", b"/api/v1/live", b"/-/healthy", b"/-/ready", b"/openapi.json"),
    "ingest": tuple(
        path.encode() for path in (SNAPSHOT_PATH, DRY_RUN_PATH, CONTROL_PATH, GPUS_PATH)
    ),
}
METHODS: Final = (
    *(b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"get", b"G T"),
    *(b"", b"\0", b"GET\t", b"M-SEARCH", b"SOURCE", b"X" * 5_000, b"\xff\xfe"),
)
TARGETS: Final = (
    *(b"*", b"", b"//", b"/../../etc/passwd", b"/%00", b"/%", b"/%zz", b"/%ff%fe", b"/metrics/"),
    *(b"http://x/metrics", b"http://[::1/metrics", b"x:443", b"/metrics?", b"/#", b"/\xc3\xa9"),
    *(b"/metrics?collect[]=", b"/metrics?collect[]=%ff", b"/metrics?collect%5B%5D=ranks"),
    *(b"/metrics?" + b"collect[]=ranks&" * 500, b"/" + b"a" * 70_000, b"/metrics?%s%n", b"/ /"),
    *(b"/v1/snapshots?x", b"/v1/control/", b"/metrics;x", b"\\metrics", b"/metrics\0"),
)
VERSIONS: Final = (
    *(b"HTTP/1.1",) * 8,
    *(b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/9.9", b"http/1.1", b"HTTP/1.1 ", b"", b"X"),
)
TRANSFERS: Final = (
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked, chunked", b"TE: trailers"),
    *(b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: gzip"),
    *(b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding : chunked"),
)
HEADERS: Final = (
    *(b"Host: a\r\nHost: b", b"Host:", b"Host: \xff", b"Host : x", b": x", b"NoColon", b"\0: \0"),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade\r\nUpgrade: h2c"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x", b"HTTP2-Settings: A"),
    *(b"Expect: 100-continue", b"Expect: x", b"Origin: http://evil", b"Range: bytes=0-1"),
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: +5"),
    *(b"Content-Length: 5, 5", b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: 0x5"),
    *(b"Content-Length: 99999999999999999999999", b"Content-Length: \xb2", b"Content-Length:"),
    *TRANSFERS,
    *(b"X: a\r\n b", b"X: a\r\n\tb", b" X: folded first", b"X: a\nY: b", b"X: a\rY: b", b"X: \0"),
    *(b"X: " + b"y" * 20_000, b"Y" * 20_000 + b": x", b"\r\n".join([b"Z: 1"] * 2_000)),
    *(b"Accept: application/openmetrics-text;version=1.0.0", b"Accept: application/openmetrics"),
    *(
        b"Accept: text/plain;version=1.0.0;escaping=allow-utf-8",
        b"Accept: ;;;,,,=",
        b"Accept: \xe9",
    ),
    *(b"Accept-Encoding: gzip", b"Accept-Encoding: gzip;q=x", b"Accept-Encoding: gzip;q=0, *"),
    *(
        b"Authorization: Basic x",
        b"Authorization: Bearer \xff",
        b"Authorization: Basic " + b"A" * 9,
    ),
    *(b"X-Prometheus-Scrape-Timeout-Seconds: " + n for n in (b"1e-320", b"nan", b"-1", b"1e999")),
    *(b"X-Prometheus-Scrape-Timeout-Seconds: \xd9\xa1", b"Content-Type: text/plain; charset=\xff"),
)
CHUNKS: Final = (
    *(
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello",
        b"5\r\nhelloX\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
    ),
    *(
        b"fffffffffffffffff\r\n",
        b"5;ext=" + b"e" * 9_000 + b"\r\nhello\r\n",
        b"\r\n\r\n",
        b"5\nhello\n",
    ),
    *(b"0\r\nTrailer: x\r\n\r\n", b"0\r\n" + b"T: x\r\n" * 3_000 + b"\r\n", b"1\r\na\r\n" * 2_000),
    *(
        b"FFFF\r\n" + b"x" * 0xFFFF + b"\r\nFFFF\r\n" + b"x" * 0xFFFF + b"\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n",
    ),
)
# How the connection ends: wait a moment for answers, half close and read to the end, close at once,
# or a reset.
ENDINGS: Final = (*("wait",) * 12, *("half",) * 4, *("close",) * 3, "reset")
DOORS: Final = ("web", "ingest")


def request(seed: int, number: int) -> Case:
    """Return hostile request *number* of those that *seed* makes."""
    random = Random(f"{seed} request {number}")
    door = random.choice(DOORS)
    data = random.choice(SHAPES)(random, door)
    pieces = _pieces(random, data) if random.random() < 0.1 else (data,)
    return Case(f"request:{number}", door, pieces, random.choice(ENDINGS))


def _pieces(random: Random, data: bytes) -> tuple[bytes, ...]:
    """Cut *data* in a few pieces, which are sent a moment apart."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((1, 3, 10))))
    return tuple(data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True))


def _proper(random: Random, door: str) -> bytes:
    path = random.choice(PATHS[door])
    if door == "web":
        return b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path
    body = valid("request", random.randrange(1_000))
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body)) + body


def _soup(random: Random, door: str) -> bytes:
    """Return a request of which each part may be wrong."""
    usual = b"GET" if door == "web" else b"POST"
    method = random.choice(METHODS) if random.random() < 0.3 else usual
    target = random.choice(TARGETS if random.random() < 0.3 else PATHS[door])
    lines = [b"%b %b %b" % (method, target, random.choice(VERSIONS))]
    lines += [b"Host: x"] * (random.random() < 0.9)
    for header in random.choices(HEADERS, k=random.choice((0, 1, 1, 2, 3, 8))):
        lines.append(spoiled(random, header) if random.random() < 0.1 else header)
    body = random.choice((b"", b"", b"hello", b"{}", random.choice(CHUNKS)))
    return b"\r\n".join(lines) + random.choice((b"\r\n\r\n",) * 9 + (b"\n\n",)) + body


def _chunked(random: Random, door: str) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head % random.choice(PATHS[door]) + b"".join(
        random.choices(CHUNKS, k=random.choice((1, 2, 3)))
    )


def _smuggled(random: Random, door: str) -> bytes:
    """Return a request whose two lengths disagree on where the next one begins."""
    hidden = _proper(random, door)
    length = b"Content-Length: %d" % random.choice((0, 4, 5, len(hidden)))
    lengths = [length, random.choice(TRANSFERS)]
    random.shuffle(lengths)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\n" % random.choice(PATHS[door])
    return head + b"\r\n".join(lengths) + b"\r\n\r\n0\r\n\r\n" + hidden


def _pipelined(random: Random, door: str) -> bytes:
    several = [_proper(random, door) for _ in range(random.choice((2, 5, 30)))]
    if random.random() < 0.5:
        several.insert(random.randrange(len(several)), _soup(random, door))
    return b"".join(several)


def _nearly(random: Random, door: str) -> bytes:
    return spoiled(random, _proper(random, door))


def _binary(random: Random, door: str) -> bytes:
    hello = random.choice(
        (b"", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n")
    )
    return hello + random.randbytes(random.choice((1, 16, 300, 5_000)))


SHAPES: Final = (_soup, _soup, _soup, _chunked, _smuggled, _pipelined, _nearly, _nearly, _binary)
