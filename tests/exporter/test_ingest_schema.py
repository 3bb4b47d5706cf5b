"""What a probe sends is taken as it is; what is no valid snapshot is refused in one sentence."""

import dataclasses
import json
import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from exporter.ingest.schema import Refused, SnapshotBody, limits, parse
from exporter.ingest.values import LARGEST_COUNT
from rank_probe.judge.verdict import Together
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.snapshots import CHANGE, DEFAULT, LATE, late, snapshot, verdict

LINE = {"stage": "data", "place": "Corpus.__next__ (data/corpus.py:41)", "share": 0.71}
STATE = {"stage": "data", "state": "sleep", "share": 0.71, "place": "read (corpus.py:41)"}
# The fields of a snapshot that have no default.
MINIMAL = {
    field.name: getattr(DEFAULT, field.name)
    for field in dataclasses.fields(DEFAULT)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
}
PEERS = {"sm_clock_hertz": [1.9e9, 1.95e9, 1.98e9], "gpu_temperature_celsius": [-1.0, 0.0, 61.0]}
RANK_INFO = {"local_rank": "0", "clock": "cuda", "dp": "", "source": "torchrun"}


def body(**changes: Any) -> bytes:
    """Return the default snapshot with *changes*, whatever they are."""
    return json.dumps(dataclasses.asdict(DEFAULT) | changes).encode()


def refusal(content: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(content)
    return caught.value


def travelled(**changes: Any) -> dict[str, Any]:
    """Return the default verdict with *changes* as JSON has it: a tuple is a list there."""
    said: dict[str, Any] = json.loads(json.dumps(verdict(**changes)))
    return said


SLOWER = dataclasses.replace(
    CHANGE, slower=5, slower_ranks=(0, 1), slower_spans=((0, 4),), peers=8, in_common="rack r12"
)
TOGETHER = Together("data", 3, 60.0, ((0, 1), (3, 3)), "node n1")


@pytest.mark.parametrize(
    "sent",
    [
        snapshot(
            job_id="x" * 128,
            peer_group="stufe-é 日本",
            level="detail",
            finished=True,
            rank_info=RANK_INFO,
            runtime_info={"torch": "2.13.0"},
            loader="Corpus.__getitem__ (corpus.py:30)",
            samples=1,
            padding_tokens=0,
            join_coverage=1.0,
            wait_caused_seconds={"data": 0.5},
            block_seconds={"data": 0.125, "sync": 0.0},
            verdict=travelled(changes=(SLOWER,), together=(TOGETHER,)),
            verdict_age_seconds=0.0,
            late_lines=[LINE | {"share": 1.0}] * 5,
            thread_states=[STATE | {"place": ""}] * 8,
            limitations=["A wait is not timed."],
            peer_figures={name: [1.0, 2.0, 3.0] for name in FIGURES},
        ),
        snapshot(stage_seconds={}, busy_seconds=0.0, steps=LARGEST_COUNT),
        snapshot(verdict=travelled(ranks={}, reason="warming_up", slowdown=None, late=())),
    ],
)
def test_what_the_probe_sends_arrives_unchanged(sent: Snapshot) -> None:
    assert parse(sent.to_json()) == (sent, 0)


def test_fields_that_are_not_sent_have_the_probes_defaults() -> None:
    """An older probe, which does not know them, says nothing by that; what is empty is not sent.

    A field that every release has is missed by name.
    """
    assert parse(json.dumps(MINIMAL).encode()) == (Snapshot(**MINIMAL), 0)
    sent = json.loads(snapshot().to_json())
    assert not {"thread_states", "peer_figures", "loader"} & sent.keys()
    assert "late_lines" in sent
    for name in MINIMAL:
        rest = {each: value for each, value in MINIMAL.items() if each != name}
        answer = refusal(json.dumps(rest).encode())
        assert answer.result == "invalid"
        assert str(answer).startswith(f"Field {name} is missing; install the same release")


def test_every_value_is_limited() -> None:
    """No text, number, list or object of a snapshot can be as large as its sender likes."""
    rules = TypeAdapter(SnapshotBody).json_schema()
    parts = [rules["properties"], *(each["properties"] for each in rules["$defs"].values())]

    assert [rule for fields in parts for rule in fields.values() if not is_limited(rule)] == []
    # A new text of the probe, or a new kind of list, is noticed as soon as this is imported.
    newer = dataclasses.make_dataclass("Newer", [("mood", str)])
    with pytest.raises(KeyError):
        limits(newer)
    assert limits(newer, mood=bool) == {"mood": bool}


def is_limited(rule: dict[str, Any]) -> bool:
    """Return whether *rule* of a JSON schema bounds what it takes; a $ref is looked at apart."""
    within = [*rule.get("anyOf", ()), *rule.get("properties", {}).values()]
    within += [rule[key] for key in ("items", "additionalProperties") if key in rule]
    bounds = {
        "string": ({"maxLength"}, {"enum"}),
        "integer": ({"minimum", "maximum"}, {"const"}),
        "number": ({"minimum", "maximum"},),
        "array": ({"maxItems"},),
        "object": ({"properties"}, {"propertyNames"}, {"maxProperties"}),
    }
    own = bounds.get(rule.get("type", ""), (set(),))
    return any(each <= rule.keys() for each in own) and all(map(is_limited, within))


NEWER_LATE = [dataclasses.asdict(LATE) | {"excuse": "rain"}]


@pytest.mark.parametrize(
    ("newer", "taken", "unknown"),
    [
        ({"mood": "good", "moods": [{}], "joins": None}, {}, 3),
        ({"verdict": verdict() | {"mood": 1, "late": NEWER_LATE}}, {"verdict": travelled()}, 0),
        ({"late_lines": [LINE | {"source": "x = 1"}]}, {"late_lines": [LINE]}, 0),
        ({"thread_states": [STATE | {"excuse": "rain"}]}, {"thread_states": [STATE]}, 0),
        ({"peer_figures": PEERS | {"mood": "good"}}, {"peer_figures": PEERS}, 1),
    ],
)
def test_newer_probe_is_not_refused(
    newer: dict[str, Any], taken: dict[str, Any], unknown: int
) -> None:
    """Unknown fields and names of a newer release are left out, and counted at the top."""
    assert parse(body(**newer)) == (snapshot(**taken), unknown)


def said(**changes: Any) -> dict[str, Any]:
    """Return the field with a verdict that has *changes*."""
    return {"verdict": verdict(**changes)}


NEGATIVE = "is wrong: input should be greater than or equal to"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": 2}, "This exporter reads schema 1 only; install the same release"),
        ({"rank": 4}, "The snapshot says rank 4, which is outside a world of 4; check RANK"),
        ({"rank": -1}, f"Field rank {NEGATIVE} 0"),
        ({"world_size": 0}, f"Field world_size {NEGATIVE} 1"),
        ({"job_id": ""}, "Field job_id is wrong: string should have at least 1 character"),
        ({"job_id": "x" * 129}, "Field job_id is wrong: string should have at most 128 character"),
        ({"job_id": "a\u202eb"}, "Field job_id has characters that cannot be printed"),
        ({"stage": "lunch"}, "Field stage is not a stage; use one of optimizer, other"),
        ({"stage_seconds": {"lunch": 1}}, "Field stage_seconds.lunch is not a stage"),
        (
            {"stage_seconds": {"data": math.nan}},
            "Field stage_seconds.data is wrong: input should be a finite number",
        ),
        ({"steps": 10**400}, "Field steps is wrong: input should be less than or equal to"),
        ({"finished": 1}, "Field finished is wrong: input should be a valid boolean"),
        ({"late_lines": [LINE] * 6}, "Field late_lines is wrong: list should have at most 5"),
        ({"late_lines": [{}]}, "Field late_lines.0.stage is missing; install the same release"),
        (said(late=[late(kind="lazy")]), "Field verdict.late.0.kind is not a way to be late"),
        (said(ranks={f"pp{n}": 1 for n in range(65)}), "Field verdict.ranks is wrong: dict"),
        ({"verdict": {"step": 1}}, "Field verdict.ranks is missing; install the same release"),
    ],
)
def test_invalid_field_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    """A wrong value is answered with the field, what is wrong with it and what would be right."""
    answer = refusal(body(**changes))

    assert answer.result == "invalid"
    assert str(answer).startswith(sentence)


def test_body_that_is_no_snapshot_is_refused() -> None:
    """What the caller invents cannot write control characters or pages into the answer."""
    for content, result, sentence in (
        (b"\xff\xfe", "malformed", "The body is not UTF-8; send the snapshot as UTF-8 JSON."),
        (b"[" * 60_000, "malformed", "The body is not JSON; send one JSON object."),
        (body(job_id="\ud800"), "malformed", "The body is not JSON; send one JSON object."),
        (b"[]", "invalid", "The snapshot must be a JSON object, sent as application/json."),
    ):
        answer = refusal(content)
        assert (answer.result, str(answer)) == (result, sentence)

    hostile = str(refusal(body(stage_seconds={"\x1b[31m\n" * 100: 1})))
    assert hostile.isprintable()
    assert len(hostile) < 200
