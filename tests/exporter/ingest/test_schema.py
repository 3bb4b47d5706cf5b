"""A pushed snapshot is taken exactly when it is valid, and refused in one sentence otherwise."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from exporter.ingest.schema import RESULTS, Refused, SnapshotBody, limits, parse
from exporter.ingest.values import LARGEST_COUNT
from rank_probe.judge.verdict import from_json
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.snapshots import CHANGE, DEFAULT, LATE, VERDICT, late, snapshot, verdict


def travelled(**changes: Any) -> dict[str, Any]:
    """Return the default verdict with *changes* as JSON has it: a tuple is a list there."""
    said: dict[str, Any] = json.loads(json.dumps(verdict(**changes)))
    return said


FIXTURES = Path(__file__).parents[2] / "fixtures" / "ingest"
LINE = {"stage": "data", "place": "Corpus.__next__ (data/corpus.py:41)", "share": 0.71}
STATE = {"stage": "data", "state": "sleep", "share": 0.71, "place": "read (corpus.py:41)"}
PEERS = {"sm_clock_hertz": [1.9e9, 1.95e9, 1.98e9], "gpu_temperature_celsius": [-1.0, 0.0, 61.0]}
RANK_INFO = {"local_rank": "0", "clock": "cuda", "dp": "", "source": "torchrun"}


def body(**changes: Any) -> bytes:
    return json.dumps(dataclasses.asdict(DEFAULT) | changes).encode()


def refusal(content: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(content)
    return caught.value


@pytest.mark.parametrize(
    "sent",
    [
        snapshot(),
        snapshot(job_id="x" * 128, peer_group="stufe-é 日本"),
        snapshot(sync_floor_seconds=0.001, last_step_timestamp_seconds=1_060.0, finished=True),
        snapshot(rank_info=RANK_INFO, runtime_info={"torch": "2.13.0", "cuda": ""}),
        snapshot(stage_seconds={}, busy_seconds=0.0, steps=LARGEST_COUNT),
        snapshot(stage_host_seconds={"data": 13.0}, dropped_steps=4, level="detail"),
        snapshot(samples=1, tokens=2, padding_tokens=0, gc_pause_seconds=0.5),
        snapshot(cuda_memory_allocated_bytes=1, cuda_memory_reserved_bytes=2**40),
        snapshot(cuda_memory_peak_bytes=3, cuda_alloc_retries=0, lifecycle_seconds={"init": 1.5}),
        snapshot(paced_steps={"data": 3}, wait_caused_seconds={"data": 0.5}, join_coverage=1.0),
        snapshot(joined_seconds=0.0, group_wait_seconds=1.5, join_coverage=0.0),
        snapshot(verdict=travelled(changes=(CHANGE,)), verdict_age_seconds=0.0),
        snapshot(verdict=travelled(ranks={}, reason="warming_up", slowdown=None, late=())),
        snapshot(block_steps=64, block_seconds={"data": 0.125, "sync": 0.0}),
        snapshot(late_lines=[LINE, LINE | {"stage": "forward", "share": 1.0}]),
        snapshot(late_lines=[LINE] * 5),
        snapshot(thread_states=[STATE] * 8, loader="Corpus.__getitem__ (corpus.py:30)"),
        snapshot(thread_states=[STATE | {"place": ""}, STATE | {"place": "/data (nfs)"}]),
        snapshot(peer_figures=PEERS),
        snapshot(peer_figures={name: [1.0, 2.0, 3.0] for name in FIGURES}),
    ],
)
def test_what_the_probe_sends_arrives_unchanged(sent: Snapshot) -> None:
    """A snapshot survives its way through JSON and validation."""
    assert parse(sent.to_json()) == (sent, 0)


def test_fields_that_are_not_sent_have_the_probes_defaults() -> None:
    """An older probe, which does not know them, says nothing by that."""
    assert parse(json.dumps(minimal()).encode()) == (Snapshot(**minimal()), 0)


def test_every_value_is_limited() -> None:
    """No text, number, list or object of a snapshot can be as large as its sender likes."""
    rules = TypeAdapter(SnapshotBody).json_schema()
    parts = [rules["properties"], *(each["properties"] for each in rules["$defs"].values())]

    assert [rule for fields in parts for rule in fields.values() if not is_limited(rule)] == []
    assert not is_limited({"type": "array", "items": {"type": "boolean"}})
    assert not is_limited({"type": "object", "additionalProperties": {"type": "boolean"}})


def is_limited(rule: dict[str, Any]) -> bool:
    """Return whether *rule* of a JSON schema bounds what it takes; a $ref is looked at apart."""
    within = [*rule.get("anyOf", ()), *rule.get("properties", {}).values()]
    within += [rule[key] for key in ("items", "additionalProperties") if key in rule]
    bounds = {
        "string": {"maxLength", "enum"},
        "integer": {"maximum", "const"},
        "number": {"maximum"},
        "array": {"maxItems"},
        "object": {"properties", "propertyNames", "maxProperties"},
    }
    own = bounds.get(rule.get("type", ""))
    return (own is None or bool(own & rule.keys())) and all(map(is_limited, within))


def test_field_that_nobody_limits_is_not_taken() -> None:
    """A new text of the probe, or a new kind of list, is noticed as soon as this is imported."""

    @dataclasses.dataclass
    class Newer:
        mood: str

    with pytest.raises(KeyError):
        limits(Newer)
    assert limits(Newer, mood=bool) == {"mood": bool}


def test_newer_probe_is_not_refused() -> None:
    """Unknown fields of a newer release are left out and counted, whatever they are."""
    newer = dataclasses.asdict(DEFAULT) | {"mood": "good", "moods": [{}], "joins": None}
    newer["rank_info"] = {"colour": 1} | DEFAULT.rank_info
    newer["lifecycle_seconds"] = {"birth": "early", "init": 1.0}

    taken = dataclasses.replace(DEFAULT, lifecycle_seconds={"init": 1.0})
    assert parse(json.dumps(newer).encode()) == (taken, 5)


def test_what_every_release_of_this_schema_must_take_is_taken() -> None:
    """The body that the first release of schema 1 sent; do not rewrite it.

    Fields that were added since have their defaults.
    """
    released = (FIXTURES / "snapshot_schema_1.json").read_bytes()
    taken, unknown_fields = parse(released)
    fields = json.loads(released)

    assert unknown_fields == 0
    assert {name: json.loads(taken.to_json())[name] for name in fields} == fields


def test_verdict_is_the_judges() -> None:
    """What arrives can be read as the verdict that was sent."""
    arrived = parse(snapshot(verdict=verdict(changes=(CHANGE,))).to_json())[0].verdict

    assert arrived is not None
    assert from_json(arrived) == dataclasses.replace(VERDICT, changes=(CHANGE,))


def test_newer_judge_is_not_refused() -> None:
    """Unknown fields of a newer judge are left out; its ranks are still seen."""
    newer = verdict() | {"mood": "good", "late": [dataclasses.asdict(LATE) | {"excuse": "rain"}]}

    assert parse(body(verdict=newer))[0].verdict == travelled()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (verdict(late=[late(rank=-1)]), "Field verdict.late.0.rank is wrong: input should be gr"),
        (verdict(late=[late(stage="lunch")]), "Field verdict.late.0.stage is not a stage; use"),
        (verdict(late=[late(kind="lazy")]), "Field verdict.late.0.kind is not a way to be late"),
        (verdict(late=[late(ratio=-0.1)]), "Field verdict.late.0.ratio is wrong: input should be"),
        (verdict(late=[late(gpus={"data": math.inf})]), "Field verdict.late.0.gpus.data is wrong"),
        (verdict(late=[late(gpus={"lunch": 1})]), "Field verdict.late.0.gpus.lunch is not a st"),
        (verdict(late=[LATE] * 33), "Field verdict.late is wrong: list should have at most 32"),
        (verdict(changes=[CHANGE] * 9), "Field verdict.changes is wrong: list should have at mos"),
        (verdict(ranks={f"pp{n}": 1 for n in range(65)}), "Field verdict.ranks is wrong: dict"),
        (verdict(ranks={"": 1}), "Field verdict.ranks. is wrong: string should have at least 1"),
        (verdict(reason="rain"), "Field verdict.reason is not a reason why nobody can be judged"),
        (verdict(gpus_lost={"rain": 1.0}), "Field verdict.gpus_lost.rain is not what GPUs are lo"),
        (verdict(rotating={"data": -1.0}), "Field verdict.rotating.data is wrong: input should"),
        (verdict(slowdown=math.nan), "Field verdict.slowdown is wrong: input should be a finite"),
        (verdict(step_seconds=1e300), "Field verdict.step_seconds is wrong: input should be le"),
        ({"step": 1}, "Field verdict.ranks is missing; install the same release of rankskew"),
        ([], "Field verdict is wrong: input should be an object"),
    ],
)
def test_invalid_verdict_is_refused_in_one_sentence(said: Any, sentence: str) -> None:
    """A verdict that no judge of ours can have given never becomes a series."""
    answer = refusal(body(verdict=said))

    assert answer.result == "invalid"
    assert str(answer).startswith(sentence)


def line(**changes: Any) -> dict[str, Any]:
    """Return the field with one line of code that has *changes*."""
    return {"late_lines": [LINE | changes]}


def test_newer_line_is_not_refused() -> None:
    """What a newer probe says more about a line is left out."""
    assert parse(body(late_lines=[LINE | {"source": "x = 1"}]))[0].late_lines == [LINE]


def state(**changes: Any) -> dict[str, Any]:
    """Return the field with one state of the thread that has *changes*."""
    return {"thread_states": [STATE | changes]}


def peers(said: Any) -> dict[str, Any]:
    """Return the field with the figures of the peers for one name."""
    return {"peer_figures": {"gpu_power_watts": said}}


def test_newer_figure_is_not_refused() -> None:
    """A name that this release does not know is left out and counted; a state's new field too."""
    newer = body(peer_figures=PEERS | {"mood": "good"}, **state(excuse="rain"))
    taken = dataclasses.replace(DEFAULT, peer_figures=PEERS, thread_states=[STATE])

    assert parse(newer) == (taken, 1)


def test_healthy_snapshot_says_nothing_of_lateness() -> None:
    """What is empty is left out of a push."""
    sent = json.loads(snapshot().to_json())

    assert not {"thread_states", "peer_figures", "loader"} & sent.keys()
    assert "late_lines" in sent


def minimal() -> dict[str, Any]:
    """Return the fields of a snapshot that have no default."""
    return {
        field.name: getattr(DEFAULT, field.name)
        for field in dataclasses.fields(Snapshot)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


@pytest.mark.parametrize("name", sorted(minimal()))
def test_missing_field_is_named(name: str) -> None:
    """A snapshot without one of its fields is refused, and the field is named."""
    fields = dataclasses.asdict(DEFAULT)
    del fields[name]

    answer = refusal(json.dumps(fields).encode())
    assert answer.result == "invalid"
    assert str(answer).startswith(f"Field {name} is missing; install the same release")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": 2}, "This exporter reads schema 1 only; install the same release"),
        ({"rank": 4}, "The snapshot says rank 4, which is outside a world of 4; check RANK"),
        ({"rank": -1}, "Field rank is wrong: input should be greater than or equal to 0"),
        ({"rank": "0"}, "Field rank is wrong: input should be a valid integer"),
        ({"rank": True}, "Field rank is wrong: input should be a valid integer"),
        (
            {"world_size": 0},
            "Field world_size is wrong: input should be greater than or equal to 1",
        ),
        ({"job_id": ""}, "Field job_id is wrong: string should have at least 1 character"),
        ({"job_id": "x" * 129}, "Field job_id is wrong: string should have at most 128 char"),
        ({"job_id": "a\nb"}, "Field job_id has characters that cannot be printed"),
        ({"job_id": "a\u202eb"}, "Field job_id has characters that cannot be printed"),
        ({"peer_group": ""}, "Field peer_group is wrong: string should have at least 1"),
        ({"stage": "lunch"}, "Field stage is not a stage; use one of optimizer, other"),
        ({"stage_seconds": {"lunch": 1}}, "Field stage_seconds.lunch is not a stage"),
        ({"stage_seconds": {"data": -1}}, "Field stage_seconds.data is wrong: input should be gr"),
        ({"stage_seconds": {"data": float("nan")}}, "Field stage_seconds.data is wrong: input sh"),
        ({"busy_seconds": float("inf")}, "Field busy_seconds is wrong: input should be a finite"),
        ({"busy_seconds": 1e300}, "Field busy_seconds is wrong: input should be less than or eq"),
        ({"busy_seconds": None}, "Field busy_seconds is wrong: input should be a valid number"),
        ({"busy_seconds": 10**400}, "Field busy_seconds is wrong: input should be a finite"),
        ({"steps": 10**400}, "Field steps is wrong: input should be less than or equal to"),
        ({"steps": 1.5}, "Field steps is wrong: input should be a valid integer"),
        ({"finished": 1}, "Field finished is wrong: input should be a valid boolean"),
        ({"rank_info": {"dp": 1}}, "Field rank_info.dp is wrong: input should be a valid string"),
        ({"runtime_info": {"torch": "x" * 129}}, "Field runtime_info.torch is wrong: string sho"),
        ({"level": "loud"}, "Field level is not a level; use one of off, stages, detail"),
        ({"lifecycle_seconds": {"init": -1}}, "Field lifecycle_seconds.init is wrong: input shou"),
        ({"paced_steps": {"lunch": 1}}, "Field paced_steps.lunch is not a stage"),
        ({"paced_steps": {"data": 0.5}}, "Field paced_steps.data is wrong: input should be a v"),
        ({"wait_caused_seconds": {"data": -1.0}}, "Field wait_caused_seconds.data is wrong"),
        ({"join_coverage": 1.5}, "Field join_coverage is wrong: input should be less than or eq"),
        ({"stage_host_seconds": {"lunch": 1}}, "Field stage_host_seconds.lunch is not a stage"),
        ({"tokens": -1}, "Field tokens is wrong: input should be greater than or equal to 0"),
        ({"verdict_age_seconds": -1}, "Field verdict_age_seconds is wrong: input should be gre"),
        ({"block_steps": -1}, "Field block_steps is wrong: input should be greater than or eq"),
        ({"block_seconds": {"lunch": 1}}, "Field block_seconds.lunch is not a stage"),
        ({"runtime_info": []}, "Field runtime_info is wrong: input should be an object"),
        ({"late_lines": {}}, "Field late_lines is wrong: input should be a valid array"),
        ({"late_lines": [LINE] * 6}, "Field late_lines is wrong: list should have at most 5"),
        ({"late_lines": ["f"]}, "Field late_lines.0 is wrong: input should be an object"),
        ({"late_lines": [{}]}, "Field late_lines.0.stage is missing; install the same release"),
        (line(stage="lunch"), "Field late_lines.0.stage is not a stage; use one of"),
        (line(share=1.5), "Field late_lines.0.share is wrong: input should be less than or eq"),
        (line(share=math.nan), "Field late_lines.0.share is wrong: input should be a finite"),
        (line(share="0.5"), "Field late_lines.0.share is wrong: input should be a valid number"),
        (line(place=""), "Field late_lines.0.place is wrong: string should have at least 1"),
        (line(place="f" * 129), "Field late_lines.0.place is wrong: string should have at most"),
        (line(place="f\x1b[31m"), "Field late_lines.0.place has characters that cannot be"),
        (line(place="f\nrank 3"), "Field late_lines.0.place has characters that cannot be"),
        (line(place="f\u202e"), "Field late_lines.0.place has characters that cannot be"),
        ({"thread_states": [STATE] * 9}, "Field thread_states is wrong: list should have at most"),
        ({"thread_states": [{}]}, "Field thread_states.0.stage is missing; install the same rel"),
        ({"thread_states": "x"}, "Field thread_states is wrong: input should be a valid array"),
        (state(stage="lunch"), "Field thread_states.0.stage is not a stage; use one of"),
        (state(state="bored"), "Field thread_states.0.state is not a state of a thread; use one"),
        (state(share=1.01), "Field thread_states.0.share is wrong: input should be less than or"),
        (state(share=math.nan), "Field thread_states.0.share is wrong: input should be a finite"),
        (state(place="f" * 129), "Field thread_states.0.place is wrong: string should have at m"),
        (state(place="f\nrank 3"), "Field thread_states.0.place has characters that cannot be"),
        (peers([1.0, 2.0]), "Field peer_figures.gpu_power_watts is wrong: list should have at le"),
        (peers([1.0] * 4), "Field peer_figures.gpu_power_watts is wrong: list should have at mo"),
        (peers([1.0, 2.0, math.nan]), "Field peer_figures.gpu_power_watts.2 is wrong: input shou"),
        (peers([1.0, 2.0, 1e300]), "Field peer_figures.gpu_power_watts.2 is wrong: input should"),
        (peers([1.0, 2.0, "3"]), "Field peer_figures.gpu_power_watts.2 is wrong: input should be"),
        (peers(1.0), "Field peer_figures.gpu_power_watts is wrong: input should be a valid array"),
        ({"peer_figures": []}, "Field peer_figures is wrong: input should be an object"),
        ({"loader": "f" * 129}, "Field loader is wrong: string should have at most 128"),
        ({"loader": "f\u202e"}, "Field loader has characters that cannot be printed"),
        ({"loader": None}, "Field loader is wrong: input should be a valid string"),
        (line(place=["f"]), "Field late_lines.0.place is wrong: input should be a valid string"),
    ],
)
def test_invalid_field_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    """A wrong value is answered with the field, what is wrong with it and what would be right."""
    answer = refusal(body(**changes))

    assert answer.result == "invalid"
    assert str(answer).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "result", "sentence"),
    [
        (b"\xff\xfe", "malformed", "The body is not UTF-8; send the snapshot as UTF-8 JSON."),
        (b"", "malformed", "The body is not JSON; send one JSON object."),
        (b'{"job_id":', "malformed", "The body is not JSON; send"),
        (b"[" * 60_000, "malformed", "The body is not JSON; send"),
        (body(job_id="\ud800"), "malformed", "The body is not JSON; send"),
        (b"[]", "invalid", "The snapshot must be a JSON object, sent as application/json."),
        (b"null", "invalid", "The snapshot must be a JSON object, sent as application/json."),
    ],
)
def test_body_that_is_no_snapshot_is_refused(content: bytes, result: str, sentence: str) -> None:
    """What is not even a JSON object is refused before any field is looked at."""
    answer = refusal(content)

    assert answer.result == result
    assert str(answer).startswith(sentence)


def test_hostile_field_name_comes_back_short_and_escaped() -> None:
    """What the caller invents cannot write control characters or pages into an answer."""
    answer = str(refusal(body(stage_seconds={"\x1b[31m\n" * 100: 1})))

    assert answer.isprintable()
    assert len(answer) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(deadline=None)  # The machine is shared; only the answer matters.
@given(st.sampled_from(sorted(dataclasses.asdict(DEFAULT))), JSON)
def test_any_value_is_taken_or_refused_in_one_sentence(name: str, value: Any) -> None:
    """Whatever JSON a field has, the answer is a snapshot or one printable sentence."""
    answer = taken_or_refused(body(**{name: value}))

    if isinstance(answer, Snapshot):
        assert parse(answer.to_json()) == (answer, 0)
    else:
        assert answer.result in RESULTS
        assert str(answer).isprintable()
        assert str(answer).endswith(".")
        assert len(str(answer)) < 300


def taken_or_refused(content: bytes) -> Snapshot | Refused:
    try:
        return parse(content)[0]
    except Refused as answer:
        return answer
