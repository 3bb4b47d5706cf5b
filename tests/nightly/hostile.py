"""Hostile snapshots and requests: what a broken or malicious process could send, for Hypothesis."""

import json
import re
from dataclasses import replace
from itertools import count
from typing import Final

from hypothesis import strategies as st

from devstack.load import RANK
from exporter.operator.orders import CONTROL_PATH, GPUS_PATH
from rank_probe.judge.verdict import LATE_KINDS
from rank_probe.wire.snapshot import (
    DRY_RUN_PATH,
    RANK_INFO_LABELS,
    RUNTIME_INFO_LABELS,
    SNAPSHOT_PATH,
)
from rank_probe.wire.stages import STAGES
from tests.exporter.snapshots import CHANGE, late, verdict

JOBS: Final = 4
RANKS: Final = RANK.world_size
# The number of what Hypothesis makes, as it must make the same again; as it goes out, each has one
# more than the last: an older one is ignored.
OLDEST: Final = 10**9
NUMBERS: Final = count(OLDEST + 1)
# A snapshot in which nearly every field has a value.
WHOLE: Final = replace(
    RANK,
    rank_info=dict.fromkeys(RANK_INFO_LABELS, "x"),
    runtime_info=dict.fromkeys(RUNTIME_INFO_LABELS, "x"),
    stage_host_seconds=dict.fromkeys(STAGES, 1.5),
    samples=64,
    tokens=4096,
    gc_pause_seconds=0.25,
    cuda_memory_allocated_bytes=2**30,
    wait_caused_seconds={"data": 1.5},
    group_wait_seconds=0.5,
    joined_seconds=100.0,
    join_coverage=1.0,
    verdict=verdict(
        late=tuple(late(rank=rank, kind=kind) for rank, kind in enumerate(LATE_KINDS)),
        changes=(CHANGE,),
    ),
    verdict_age_seconds=0.5,
    block_steps=64,
    block_seconds=dict.fromkeys(STAGES, 0.125),
)


def valid(job_id: str, rank: int = 0, number: int = OLDEST) -> bytes:
    """Return a snapshot that is to be accepted, newer than those with a lower *number*."""
    return replace(WHOLE, job_id=job_id, rank=rank, sequence=number, steps=number).to_json()


# Refused nearly everywhere.
WRONG: Final = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"-0.5", b"-5e-324"),
    *(b"9007199254740993", b"1e16", b"1" + b"0" * 400, b"9" * 5_000, b"0x10", b"01", b"1_0"),
    *(b"true", b"null", b"[]", b"{}", b"[[]]", b'"1"', b'"NaN"', b"undefined", b"'x'", b""),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\n"', b'"\\u202e"', b'"\\x"'),
    *(b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\n"', b'"'),
    *(b'"' + b"x" * 129 + b'"', b'"' + b"y" * 50_000 + b'"', b'"' + "😀".encode() * 129 + b'"'),
    *(b"[" * 20_000, b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
    b"{" + b",".join(b'"k%d":1' % number for number in range(3_000)) + b"}",
    b"[" + b",".join([b"1e15"] * 3_000) + b"]",
)
# Taken where the type fits.
NUMERALS: Final = (
    *(b"0.0", b"-0.0", b"5e-324", b"2.2250738585072011e-308", b"1e15", b"1e14", b"0.1", b"1e-9"),
    *(b"0", b"1", b"2", b"63", b"2147483648", b"4294967296", b"9007199254740991"),
)
TEXTS: Final = ("", '"', "\\", 'a"b\\c{}', '{x="y"} 1', "é", "😀", "x" * 128, "#", "<b>&", " ")
NAMES: Final = (*STAGES, *LATE_KINDS, "all", "0", "__class__", "self", "schema", "a" * 5_000)
QUOTED: Final = tuple(json.dumps(text).encode() for text in (*TEXTS, *NAMES))
TOKEN: Final = re.compile(rb'"[^"]*"|[{}\[\]:,]|[^"{}\[\]:,]+')
# To change these makes a rank of another process or job, whose place is bounded.
IDENTITY: Final = {
    b'"%b"' % name
    for name in (b"job_id", b"rank", b"attempt", b"sequence", b"started_timestamp_seconds")
}


def newest(data: bytes) -> bytes:
    """Return *data* with the number of its snapshots above all before."""
    return data.replace(b"%d" % OLDEST, b"%d" % next(NUMBERS))


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """Return *data* with some bytes replaced, inserted, deleted or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.sampled_from((begin, begin + 1, begin + 10, len(data))))
        data = data[:begin] + draw(st.binary(max_size=40)) + data[end:]
    return data


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a snapshot, wrong in up to three places.

    The more is wrong, the less of the exporter's code sees it.
    """
    job, rank = draw(st.integers(1, JOBS)), draw(st.integers(0, RANKS - 1))
    tokens = TOKEN.findall(valid(f"hostile-{job}", rank))
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 1, 1, 2, 3)))):
        colons = [at for at, token in enumerate(tokens) if token == b":"]
        colon = draw(st.sampled_from([at for at in colons if tokens[at - 1] not in IDENTITY]))
        key, value = colon - 1, colon + 1
        odd = QUOTED if tokens[value].startswith(b'"') else NUMERALS
        match draw(st.sampled_from(("odd", "odd", "odd", "wrong", "drop", "twice", "name", "new"))):
            case "odd" if tokens[value] not in (b"{", b"["):
                tokens[value] = draw(st.sampled_from(odd))
            case "wrong":
                tokens[value] = draw(st.sampled_from(WRONG))
            case "drop":
                del tokens[key : value + 2]
            case "twice":
                tokens[key:key] = tokens[key : value + 2] * draw(st.sampled_from((1, 2, 70)))
            case "name":
                tokens[key] = draw(st.sampled_from(QUOTED))
            case _:
                names = [b'"new%d"' % number for number in range(draw(st.sampled_from((1, 300))))]
                tokens[key:key] = [b"%b:%b," % (name, draw(st.sampled_from(odd))) for name in names]
    return b"".join(tokens)


@st.composite
def no_snapshots(draw: st.DrawFn) -> bytes:
    """Return what is hardly JSON: a snapshot with damage of any kind."""
    body = valid("hostile-0")
    whole = (
        *(b"", b"\xef\xbb\xbf" + body, body + body, body.decode().encode("utf-16")),
        *(b" " * 70_000 + body, body.replace(b'"', b"'"), b"[%b]" % body),
    )
    return draw(st.sampled_from(whole) | spoiled(body))


PATHS: Final = {
    "web": (b"/metrics", b"/", b"/api/v1/live", b"/-/healthy", b"/-/ready", b"/openapi.json"),
    "ingest": tuple(
        each.encode() for each in (SNAPSHOT_PATH, DRY_RUN_PATH, CONTROL_PATH, GPUS_PATH)
    ),
}
METHODS: Final = (
    *(b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"get", b"G T"),
    *(b"", b"\0", b"GET\t", b"M-SEARCH", b"X" * 5_000, b"\xff\xfe"),
)
TARGETS: Final = (
    *(b"*", b"", b"//", b"/../../etc/passwd", b"/%00", b"/%", b"/%zz", b"/%ff%fe", b"/metrics/"),
    *(b"http://x/metrics", b"http://[::1/metrics", b"x:443", b"/metrics?", b"/#", b"/\xc3\xa9"),
    *(b"/metrics?collect[]=", b"/metrics?collect[]=%ff", b"/metrics?collect%5B%5D=ranks"),
    *(b"/metrics?" + b"collect[]=ranks&" * 500, b"/" + b"a" * 70_000, b"/ /", b"/metrics\0"),
)
VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"", b"X")
TRANSFERS: Final = (
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked, chunked", b"TE: trailers"),
    *(b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: gzip"),
    *(b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding : chunked"),
)
SCRAPE_TIMEOUT: Final = b"X-Prometheus-Scrape-Timeout-Seconds: "
HEADERS: Final = (
    *(b"Host: a\r\nHost: b", b"Host:", b"Host: \xff", b"Host : x", b": x", b"NoColon", b"\0: \0"),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade\r\nUpgrade: h2c"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x", b"HTTP2-Settings: A"),
    *(b"Expect: 100-continue", b"Expect: x", b"Origin: http://evil", b"Range: bytes=0-1"),
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: +5"),
    *(b"Content-Length: 5, 5", b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: 0x5"),
    *(b"Content-Length: 99999999999999999999999", b"Content-Length: \xb2", b"Content-Length:"),
    *TRANSFERS,
    *(b"X: a\r\n b", b" X: folded first", b"X: a\nY: b", b"X: a\rY: b", b"X: \0"),
    *(b"X: " + b"y" * 20_000, b"Y" * 20_000 + b": x", b"\r\n".join([b"Z: 1"] * 2_000)),
    *(b"Accept: application/openmetrics-text;version=1.0.0", b"Accept: ;;;,,,=", b"Accept: \xe9"),
    *(b"Accept-Encoding: gzip", b"Accept-Encoding: gzip;q=x", b"Accept-Encoding: gzip;q=0, *"),
    *(b"Authorization: Basic x", b"Authorization: Bearer \xff", b"Authorization: Basic AAAAAAAAA"),
    *(SCRAPE_TIMEOUT + each for each in (b"1e-320", b"nan", b"-1", b"1e999", b"\xd9\xa1")),
)
CHUNKS: Final = (
    *(b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello", b"5\r\nhelloX\r\n", b"-1\r\n", b"\r\n\r\n"),
    *(b"0x5\r\nhello\r\n", b"fffffffffffffffff\r\n", b"5\nhello\n", b"0\r\nTrailer: x\r\n\r\n"),
    *(b"5;ext=" + b"e" * 9_000 + b"\r\nhello\r\n", b"0\r\n" + b"T: x\r\n" * 3_000 + b"\r\n"),
    *(b"1\r\na\r\n" * 2_000, 2 * (b"FFFF\r\n" + b"x" * 0xFFFF + b"\r\n") + b"0\r\n\r\n"),
)
SHAPES: Final = ("parts", "parts", "chunked", "smuggled", "pipelined", "nearly", "binary")
POST: Final = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


@st.composite
def requests(draw: st.DrawFn, door: str) -> bytes:
    """Return bytes that are nearly, or not at all, HTTP/1.1, for the listener *door*."""

    def pick(*parts: bytes) -> bytes:
        return draw(st.sampled_from(parts))

    path = pick(*PATHS[door])
    body = valid("request")
    proper = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path
    if door == "ingest":
        proper = POST % (path, len(body), body)
    post = b"POST %b HTTP/1.1\r\nHost: x\r\n" % path
    match draw(st.sampled_from(SHAPES)):
        case "parts":  # Each may be wrong.
            method, target = pick(b"GET", b"POST", *METHODS), pick(path, *TARGETS)
            lines = [b"%b %b %b" % (method, target, pick(*VERSIONS)), b"Host: x"]
            lines += draw(st.lists(st.sampled_from(HEADERS), max_size=8))
            end = pick(b"\r\n\r\n", b"\r\n\r\n", b"\n\n")
            return b"\r\n".join(lines) + end + pick(b"", b"hello", b"{}", *CHUNKS)
        case "chunked":
            chunks = draw(st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=3))
            return post + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)
        case "smuggled":  # Two lengths disagree on where the next request begins.
            length = b"Content-Length: %d" % draw(st.sampled_from((0, 4, 5, len(proper))))
            lengths = draw(st.permutations([length, pick(*TRANSFERS)]))
            return post + b"\r\n".join(lengths) + b"\r\n\r\n0\r\n\r\n" + proper
        case "pipelined":
            return proper * draw(st.sampled_from((1, 2, 5, 30)))
        case "nearly":
            return draw(spoiled(proper))
        case _:
            hello = pick(b"", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            return hello + draw(st.binary(min_size=1, max_size=5_000))
