"""Hostile snapshots: what a broken or malicious process could post in place of a valid one.

Most keep to ranks of their own and are wrong in one to three places: the more is wrong, the less of
the exporter's code sees it.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, Final

from benchmarks.hostile.case import Case, spoiled
from benchmarks.scrape.load import RANK
from rank_probe.judge.verdict import LATE_KINDS, LOST_KINDS, Change, Verdict
from rank_probe.wire.snapshot import RANK_INFO_LABELS, RUNTIME_INFO_LABELS
from rank_probe.wire.stages import STAGES
from tests.exporter.snapshots import LATE

JOBS: Final = 4
RANKS: Final = RANK.world_size

VERDICT: Final = Verdict(
    step=1_200,
    ranks={"all": RANKS},
    step_seconds=0.5,
    slowdown=1.44,
    gpus_lost=dict.fromkeys(LOST_KINDS, 0.25),
    rotating={"data": 0.25},
    late=tuple(replace(LATE, rank=rank, kind=kind) for rank, kind in enumerate(LATE_KINDS)),
    changes=(Change(peer_group="all", stage="forward", ratio=2.0, since_seconds=300.0),),
)
FULL: Final = replace(
    RANK,
    rank_info=dict.fromkeys(RANK_INFO_LABELS, "x"),
    runtime_info=dict.fromkeys(RUNTIME_INFO_LABELS, "x"),
    stage_host_seconds=dict.fromkeys(STAGES, 1.5),
    samples=64,
    tokens=4096,
    padding_tokens=17,
    gc_pause_seconds=0.25,
    cuda_memory_allocated_bytes=2**30,
    cuda_memory_reserved_bytes=2**31,
    cuda_alloc_retries=1,
    wait_caused_seconds={"data": 1.5},
    group_wait_seconds=0.5,
    joined_seconds=100.0,
    join_coverage=1.0,
    verdict=VERDICT.to_json(),
    verdict_age_seconds=0.5,
    block_steps=64,
    block_seconds=dict.fromkeys(STAGES, 0.125),
)


class Json(bytes):
    """A value as it goes out, JSON or not."""


class Object(list[tuple[Any, Any]]):
    """A JSON object that may have a key twice."""


# Refused nearly everywhere.
WRONG: Final = tuple(
    Json(text)
    for text in (
        *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"-1", b"-0.5", b"-5e-324"),
        *(b"9007199254740993", b"1e16", b"1" + b"0" * 400, b"9" * 5_000, b"0x10", b"01", b"1_0"),
        *(b"true", b"null", b"[]", b"{}", b"[[]]", b'"1"', b'"NaN"', b"undefined", b"'x'", b""),
        *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\n"', b'"\\u202e"', b'"\\x"'),
        *(b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\n"', b'"'),
        *(b'"' + b"x" * 129 + b'"', b'"' + b"y" * 50_000 + b'"', b'"' + b"\xf0\x9f\x98\x80" * 129),
        *(b"[" * 20_000, b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
        b"{" + b",".join(b'"k%d":1' % n for n in range(3_000)) + b"}",
        b"[" + b",".join([b"1e15"] * 3_000) + b"]",
    )
)
# Taken where the type fits.
ODD: Final = {
    float: (0.0, -0.0, 5e-324, 2.2250738585072011e-308, 1e-300, 1e15, 1e14, 0.1, 1.0, 1e-9),
    int: (0, 1, 2, 63, 2**31, 2**32, 2**53 - 1, 2**53),
    str: ("", '"', "\\", 'a"b\\c{}', '{x="y"} 1', "é", "\U0001f600", "x" * 128, "#", "<b>&", " "),
    bool: (True, False),
}
# To change these makes a rank of another process or job, whose place is bounded.
IDENTITY: Final = {"job_id", "rank", "attempt", "sequence", "started_timestamp_seconds"}
KEEP_IDENTITY: Final = 0.9


def body(seed: int, number: int) -> Case:
    """Return hostile snapshot *number* of those that *seed* makes."""
    random = Random(f"{seed} body {number}")
    snapshot = _valid(number)
    for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3, 8))):
        random.choices(*MUTATIONS)[0](random, snapshot)
    data = _encode(snapshot)
    if random.random() < 0.15:
        data = spoiled(random, data)
    elif random.random() < 0.05:
        data = random.choice(WHOLE)(data)
    return Case(f"body:{number}", "body", (data,))


def valid(job_id: str, number: int) -> bytes:
    """Return a snapshot that is to be accepted, newer than those with a lower *number*."""
    return replace(
        FULL,
        job_id=job_id,
        rank=number // JOBS % RANKS,
        sequence=number + 1,
        steps=10 * number,
    ).to_json()


def _valid(number: int) -> Object:
    text = valid(f"hostile-{number % JOBS}", number)
    snapshot: Object = json.loads(text, object_pairs_hook=Object)
    return snapshot


def _encode(value: Any) -> bytes:
    if isinstance(value, Json):
        return value
    if isinstance(value, Object):
        members = (b"%b:%b" % (_encode(key), _encode(each)) for key, each in value)
        return b"{%b}" % b",".join(members)
    if isinstance(value, list):
        return b"[%b]" % b",".join(map(_encode, value))
    return json.dumps(value).encode()


def _places(value: Any, is_top: bool = True) -> Iterator[tuple[Any, int]]:
    """Yield each container in *value* with each index in it, those of IDENTITY left out."""
    if not isinstance(value, list):
        return
    for index, each in enumerate(value):
        if is_top and each[0] in IDENTITY:
            continue
        yield value, index
        yield from _places(each[1] if isinstance(value, Object) else each, is_top=False)


def _place(random: Random, snapshot: Object) -> tuple[Any, int]:
    """Return a container and an index in it; a field of the snapshot itself half of the time."""
    if random.random() > KEEP_IDENTITY:
        return snapshot, random.randrange(len(snapshot))
    places = list(_places(snapshot)) or [(snapshot, 0)]
    top = [place for place in places if place[0] is snapshot]
    return random.choice(top if top and random.random() < 0.5 else places)


def _set(container: Any, index: int, value: Any) -> None:
    if isinstance(container, Object):
        value = (container[index][0], value)
    container[index] = value


def _odd(random: Random, snapshot: Object) -> None:
    """Replace a value by an extreme one of its type."""
    container, index = _place(random, snapshot)
    if not container:
        return
    value = container[index][1] if isinstance(container, Object) else container[index]
    _set(container, index, random.choice(ODD.get(type(value), (None,))))


def _wrong(random: Random, snapshot: Object) -> None:
    container, index = _place(random, snapshot)
    if container:
        _set(container, index, random.choice(WRONG))


def _drop(random: Random, snapshot: Object) -> None:
    container, index = _place(random, snapshot)
    del container[index : index + 1]


def _twice(random: Random, snapshot: Object) -> None:
    """Give an object a key twice, or a list an element many times."""
    container, index = _place(random, snapshot)
    container[index:index] = container[index : index + 1] * random.choice((1, 1, 2, 70))


def _rename(random: Random, snapshot: Object) -> None:
    container, index = _place(random, snapshot)
    if container and isinstance(container, Object):
        name = random.choice((*WRONG, *ODD[str], *STAGES, *LATE_KINDS, "all", "0"))
        container[index] = (name, container[index][1])


def _unknown(random: Random, snapshot: Object) -> None:
    """Add what a newer probe might send, or nobody would."""
    container, _ = _place(random, snapshot)
    if isinstance(container, Object):
        name = random.choice((*ODD[str], "__class__", "__dict__", "self", "schema", "a" * 5_000))
        extra = [(f"{name}{n}", random.choice(WRONG)) for n in range(random.choice((1, 1, 300)))]
        container.extend([(name, 1.5), *extra] if random.random() < 0.5 else [(name, 1.5)])


def _shuffle(random: Random, snapshot: Object) -> None:
    random.shuffle(snapshot)


# The functions and how often each is taken.
MUTATIONS: Final = (
    (_odd, _wrong, _drop, _twice, _rename, _unknown, _shuffle),
    (8, 4, 2, 2, 1, 2, 1),
)
# What can be wrong with the whole body.
WHOLE: Final = (
    lambda data: b"",
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.decode(errors="replace").encode("utf-16"),
    lambda data: data.decode(errors="replace").encode("utf-32"),
    lambda data: data + data,
    lambda data: b"[" + data + b"]",
    lambda data: b" " * 70_000 + data,
    lambda data: data[:-1] + b" " * 60_000 + data[-1:],
    lambda data: data.replace(b'"', b"'"),
    lambda data: data + b"\0",
)
