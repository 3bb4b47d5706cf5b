"""A pushed snapshot is taken exactly when it is valid, and refused in one sentence otherwise."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.ingest import LARGEST_COUNT, RESULTS, Refused, SnapshotBody, parse
from rank_probe.snapshot import Snapshot
from tests.exporter.snapshots import DEFAULT, snapshot

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
    ],
)
def test_what_the_probe_sends_arrives_unchanged(sent: Snapshot) -> None:
    """A snapshot survives its way through JSON and validation."""
    assert parse(sent.to_json()) == sent


def test_body_and_snapshot_have_the_same_fields_and_defaults() -> None:
    """A field added to the probe's snapshot and not here is found before a user finds it."""
    sent = [field.name for field in dataclasses.fields(Snapshot)]
    taken = [field.name for field in dataclasses.fields(SnapshotBody)]

    assert sent == taken
    assert parse(json.dumps(minimal()).encode()) == Snapshot(**minimal())


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
        ({"new_field": 1}, "Field new_field is not known here; install the same release"),
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
        ({"rank_info": {"colour": "red"}}, "Field rank_info has unknown keys; use only local_r"),
        ({"rank_info": {"dp": 1}}, "Field rank_info.dp is wrong: input should be a valid string"),
        ({"runtime_info": {"torch": "x" * 129}}, "Field runtime_info.torch is wrong: string sho"),
        ({"level": "loud"}, "Field level is not a level; use one of off, stages, detail"),
        ({"lifecycle_seconds": {"birth": 1}}, "Field lifecycle_seconds.birth is not an event of"),
        ({"paced_steps": {"lunch": 1}}, "Field paced_steps.lunch is not a stage"),
        ({"paced_steps": {"data": 0.5}}, "Field paced_steps.data is wrong: input should be a v"),
        ({"wait_caused_seconds": {"data": -1.0}}, "Field wait_caused_seconds.data is wrong"),
        ({"join_coverage": 1.5}, "Field join_coverage is wrong: input should be less than or eq"),
        ({"stage_host_seconds": {"lunch": 1}}, "Field stage_host_seconds.lunch is not a stage"),
        ({"tokens": -1}, "Field tokens is wrong: input should be greater than or equal to 0"),
        ({"runtime_info": []}, "Field runtime_info is wrong: input should be an object"),
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
        (b"", "malformed", "The body is not JSON; send the snapshot as one JSON object."),
        (b'{"job_id":', "malformed", "The body is not JSON; send"),
        (b"[" * 60_000, "malformed", "The body is not JSON; send"),
        (body(job_id="\ud800"), "malformed", "The body is not JSON; send"),
        (b"[]", "invalid", "The snapshot is wrong: input should be an object."),
        (b"null", "invalid", "The snapshot is wrong: input should be an object."),
    ],
)
def test_body_that_is_no_snapshot_is_refused(content: bytes, result: str, sentence: str) -> None:
    """What is not even a JSON object is refused before any field is looked at."""
    answer = refusal(content)

    assert answer.result == result
    assert str(answer).startswith(sentence)


def test_hostile_field_name_comes_back_short_and_escaped() -> None:
    """What the caller invents cannot write control characters or pages into an answer."""
    answer = str(refusal(body(**{"\x1b[31m\n" * 100: 1})))

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
    """Whatever JSON stands in a field, the answer is a snapshot or one printable sentence."""
    answer = taken_or_refused(body(**{name: value}))

    if isinstance(answer, Snapshot):
        assert parse(answer.to_json()) == answer
    else:
        assert answer.result in RESULTS
        assert str(answer).isprintable()
        assert str(answer).endswith(".")
        assert len(str(answer)) < 300


def taken_or_refused(content: bytes) -> Snapshot | Refused:
    try:
        return parse(content)
    except Refused as answer:
        return answer
