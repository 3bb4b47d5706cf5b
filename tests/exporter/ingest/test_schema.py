"""What a probe sends is taken as it is, from an older and from a newer release too."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from exporter.ingest.schema import SnapshotBody, limits, parse
from exporter.ingest.values import LARGEST_COUNT
from rank_probe.judge.verdict import Together, from_json
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.ingest.posting import LINE, MINIMAL, STATE, body
from tests.exporter.snapshots import CHANGE, DEFAULT, LATE, VERDICT, snapshot, verdict

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ingest"
PEERS = {"sm_clock_hertz": [1.9e9, 1.95e9, 1.98e9], "gpu_temperature_celsius": [-1.0, 0.0, 61.0]}
RANK_INFO = {"local_rank": "0", "clock": "cuda", "dp": "", "source": "torchrun"}


def travelled(**changes: Any) -> dict[str, Any]:
    """Return the default verdict with *changes* as JSON has it: a tuple is a list there."""
    said: dict[str, Any] = json.loads(json.dumps(verdict(**changes)))
    return said


@pytest.mark.parametrize(
    "sent",
    [
        snapshot(job_id="x" * 128, peer_group="stufe-é 日本"),
        snapshot(last_step_timestamp_seconds=1_060.0, finished=True),
        snapshot(rank_info=RANK_INFO, runtime_info={"torch": "2.13.0", "cuda": ""}),
        snapshot(stage_seconds={}, busy_seconds=0.0, steps=LARGEST_COUNT),
        snapshot(stage_host_seconds={"data": 13.0}, dropped_steps=4, level="detail"),
        snapshot(samples=1, tokens=2, padding_tokens=0, gc_pause_seconds=0.5),
        snapshot(cuda_memory_allocated_bytes=1, cuda_memory_reserved_bytes=2**40),
        snapshot(cuda_alloc_retries=0),
        snapshot(wait_caused_seconds={"data": 0.5}, join_coverage=1.0),
        snapshot(joined_seconds=0.0, group_wait_seconds=1.5, join_coverage=0.0),
        snapshot(verdict=travelled(changes=(CHANGE,)), verdict_age_seconds=0.0),
        snapshot(verdict=travelled(ranks={}, reason="warming_up", slowdown=None, late=())),
        snapshot(block_steps=64, block_seconds={"data": 0.125, "sync": 0.0}),
        snapshot(late_lines=[LINE | {"share": 1.0}] * 5),
        snapshot(thread_states=[STATE] * 8, loader="Corpus.__getitem__ (corpus.py:30)"),
        snapshot(thread_states=[STATE | {"place": ""}, STATE | {"place": "/data (nfs)"}]),
        snapshot(peer_figures=PEERS),
        snapshot(missing_names=["torch.serialization:_save"]),
        snapshot(peer_figures={name: [1.0, 2.0, 3.0] for name in FIGURES}),
    ],
)
def test_what_the_probe_sends_arrives_unchanged(sent: Snapshot) -> None:
    assert parse(sent.to_json()) == (sent, 0)


def test_fields_that_are_not_sent_have_the_probes_defaults() -> None:
    """An older probe, which does not know them, says nothing by that; what is empty is not sent."""
    assert parse(json.dumps(MINIMAL).encode()) == (Snapshot(**MINIMAL), 0)
    sent = json.loads(snapshot().to_json())
    assert not {"thread_states", "peer_figures", "loader"} & sent.keys()
    assert "late_lines" in sent


def test_every_value_is_limited() -> None:
    """No text, number, list or object of a snapshot can be as large as its sender likes."""
    rules = TypeAdapter(SnapshotBody).json_schema()
    parts = [rules["properties"], *(each["properties"] for each in rules["$defs"].values())]

    assert [rule for fields in parts for rule in fields.values() if not is_limited(rule)] == []
    assert not is_limited({"type": "array", "items": {"type": "boolean"}})
    assert not is_limited({"type": "object", "additionalProperties": {"type": "boolean"}})
    assert not is_limited({"type": "number", "maximum": 1})


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


def test_field_that_nobody_limits_is_not_taken() -> None:
    """A new text of the probe, or a new kind of list, is noticed as soon as this is imported."""

    @dataclasses.dataclass
    class Newer:
        mood: str

    with pytest.raises(KeyError):
        limits(Newer)
    assert limits(Newer, mood=bool) == {"mood": bool}


NEWER_LATE = [dataclasses.asdict(LATE) | {"excuse": "rain"}]


@pytest.mark.parametrize(
    ("newer", "taken", "unknown"),
    [
        ({"mood": "good", "moods": [{}], "joins": None}, {}, 3),
        ({"rank_info": {"colour": 1} | DEFAULT.rank_info}, {}, 1),
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


def test_what_every_release_of_this_schema_must_take_is_taken() -> None:
    """The body that the first release of schema 1 sent; do not rewrite it.

    Fields that were added since have their defaults.
    """
    released = (FIXTURES / "snapshot_schema_1.json").read_bytes()
    taken, unknown_fields = parse(released)
    fields = json.loads(released)

    for late in fields["verdict"]["late"]:
        late |= {"every_steps": 0, "pause_seconds": 0.0, "has_risen": False, "is_duty": False}
    for change in fields["verdict"]["changes"]:
        change |= {"step_ratio": 1.0, "gpus": 0.0, "slower": 0, "slower_ranks": []}
        change |= {"slower_spans": [], "peers": 0, "in_common": ""}
    fields["verdict"]["together"] = []
    assert unknown_fields == 0
    assert {name: json.loads(taken.to_json())[name] for name in fields} == fields


def test_verdict_is_the_judges() -> None:
    """Also which ranks are slower or late together, and what they have in common."""
    changed = dataclasses.replace(
        CHANGE,
        slower=5,
        slower_ranks=(0, 1),
        slower_spans=((0, 4),),
        peers=8,
        in_common="rack r12",
    )
    together = Together("data", 3, 60.0, ((0, 1), (3, 3)), "node n1")
    said = dataclasses.replace(VERDICT, changes=(changed,), together=(together,))
    arrived = parse(snapshot(verdict=said.to_json()).to_json())[0].verdict

    assert arrived is not None
    assert from_json(arrived) == said
