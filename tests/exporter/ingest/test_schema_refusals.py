"""What is no valid snapshot is refused in one sentence, however hostile it is."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.ingest.schema import RESULTS, Refused, parse
from rank_probe.judge.verdict import Change, Together
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.ingest.posting import LINE, MINIMAL, STATE, body
from tests.exporter.snapshots import CHANGE, DEFAULT, LATE, late, verdict


def refusal(content: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(content)
    return caught.value


@pytest.mark.parametrize("name", sorted(MINIMAL))
def test_missing_field_is_named(name: str) -> None:
    fields = dataclasses.asdict(DEFAULT)
    del fields[name]

    answer = refusal(json.dumps(fields).encode())
    assert answer.result == "invalid"
    assert str(answer).startswith(f"Field {name} is missing; install the same release")


def lateness(**changes: Any) -> dict[str, Any]:
    """Return the field with the verdict on one late rank that has *changes*."""
    return {"verdict": verdict(late=[late(**changes)])}


def slower(**changes: Any) -> Change:
    """Return the default change with *changes*."""
    return dataclasses.replace(CHANGE, **changes)


def late_set(**changes: Any) -> Together:
    """Return a set of late ranks with *changes*."""
    return dataclasses.replace(Together("data", 2, 60.0, ((0, 1),), "rack r12"), **changes)


def line(**changes: Any) -> dict[str, Any]:
    """Return the field with one line of code that has *changes*."""
    return {"late_lines": [LINE | changes]}


def state(**changes: Any) -> dict[str, Any]:
    """Return the field with one state of the thread that has *changes*."""
    return {"thread_states": [STATE | changes]}


def peers(said: Any) -> dict[str, Any]:
    """Return the field with the figures of the peers for one name."""
    return {"peer_figures": {"gpu_power_watts": said}}


NOT_PRINTED = "has characters that cannot be printed"
TOO_LONG = "is wrong: string should have at most 128 characters"
TOO_SHORT = "is wrong: string should have at least 1 character"
NEGATIVE = "is wrong: input should be greater than or equal to 0"
TOO_LARGE = "is wrong: input should be less than or equal to"
NOT_FINITE = "is wrong: input should be a finite number"
NO_OBJECT = "is wrong: input should be an object"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": 2}, "This exporter reads schema 1 only; install the same release"),
        ({"rank": 4}, "The snapshot says rank 4, which is outside a world of 4; check RANK"),
        ({"rank": -1}, f"Field rank {NEGATIVE}"),
        ({"rank": "0"}, "Field rank is wrong: input should be a valid integer"),
        ({"rank": True}, "Field rank is wrong: input should be a valid integer"),
        (
            {"world_size": 0},
            "Field world_size is wrong: input should be greater than or equal to 1",
        ),
        ({"job_id": ""}, f"Field job_id {TOO_SHORT}"),
        ({"job_id": "x" * 129}, f"Field job_id {TOO_LONG}"),
        ({"job_id": "a\nb"}, f"Field job_id {NOT_PRINTED}"),
        ({"job_id": "a\u202eb"}, f"Field job_id {NOT_PRINTED}"),
        ({"peer_group": ""}, f"Field peer_group {TOO_SHORT}"),
        ({"stage": "lunch"}, "Field stage is not a stage; use one of optimizer, other"),
        ({"stage_seconds": {"lunch": 1}}, "Field stage_seconds.lunch is not a stage"),
        ({"stage_seconds": {"data": -1}}, f"Field stage_seconds.data {NEGATIVE}"),
        ({"stage_seconds": {"data": math.nan}}, f"Field stage_seconds.data {NOT_FINITE}"),
        ({"busy_seconds": math.inf}, f"Field busy_seconds {NOT_FINITE}"),
        ({"busy_seconds": 1e300}, f"Field busy_seconds {TOO_LARGE}"),
        ({"busy_seconds": None}, "Field busy_seconds is wrong: input should be a valid number"),
        ({"busy_seconds": 10**400}, f"Field busy_seconds {NOT_FINITE}"),
        ({"steps": 10**400}, f"Field steps {TOO_LARGE}"),
        ({"steps": 1.5}, "Field steps is wrong: input should be a valid integer"),
        ({"finished": 1}, "Field finished is wrong: input should be a valid boolean"),
        ({"rank_info": {"dp": 1}}, "Field rank_info.dp is wrong: input should be a valid string"),
        ({"runtime_info": {"torch": "x" * 129}}, f"Field runtime_info.torch {TOO_LONG}"),
        ({"runtime_info": []}, f"Field runtime_info {NO_OBJECT}"),
        ({"level": "loud"}, "Field level is not a level; use one of off, stages, detail"),
        ({"wait_caused_seconds": {"data": -1}}, f"Field wait_caused_seconds.data {NEGATIVE}"),
        ({"wait_caused_seconds": {"lunch": 1}}, "Field wait_caused_seconds.lunch is not a stage"),
        ({"join_coverage": 1.5}, f"Field join_coverage {TOO_LARGE}"),
        ({"verdict_age_seconds": -1}, f"Field verdict_age_seconds {NEGATIVE}"),
        ({"loader": "f" * 129}, f"Field loader {TOO_LONG}"),
        ({"loader": "f\u202e"}, f"Field loader {NOT_PRINTED}"),
        ({"loader": None}, "Field loader is wrong: input should be a valid string"),
        ({"late_lines": {}}, "Field late_lines is wrong: input should be a valid array"),
        ({"late_lines": [LINE] * 6}, "Field late_lines is wrong: list should have at most 5"),
        ({"late_lines": ["f"]}, f"Field late_lines.0 {NO_OBJECT}"),
        ({"late_lines": [{}]}, "Field late_lines.0.stage is missing; install the same release"),
        (line(stage="lunch"), "Field late_lines.0.stage is not a stage; use one of"),
        (line(share=1.5), f"Field late_lines.0.share {TOO_LARGE}"),
        (line(share=math.nan), f"Field late_lines.0.share {NOT_FINITE}"),
        (line(share="0.5"), "Field late_lines.0.share is wrong: input should be a valid number"),
        (line(place=["f"]), "Field late_lines.0.place is wrong: input should be a valid string"),
        (line(place=""), f"Field late_lines.0.place {TOO_SHORT}"),
        (line(place="f" * 129), f"Field late_lines.0.place {TOO_LONG}"),
        (line(place="f\x1b[31m"), f"Field late_lines.0.place {NOT_PRINTED}"),
        (line(place="f\nrank 3"), f"Field late_lines.0.place {NOT_PRINTED}"),
        ({"thread_states": [STATE] * 9}, "Field thread_states is wrong: list should have at most"),
        (state(state="bored"), "Field thread_states.0.state is not a state of a thread; use one"),
        (state(share=1.01), f"Field thread_states.0.share {TOO_LARGE}"),
        (state(place="f" * 129), f"Field thread_states.0.place {TOO_LONG}"),
        (state(place="f\nrank 3"), f"Field thread_states.0.place {NOT_PRINTED}"),
        (peers([1.0, 2.0]), "Field peer_figures.gpu_power_watts is wrong: list should have at le"),
        (peers([1.0] * 4), "Field peer_figures.gpu_power_watts is wrong: list should have at mo"),
        (peers([1.0, 2.0, math.nan]), f"Field peer_figures.gpu_power_watts.2 {NOT_FINITE}"),
        (peers([1.0, 2.0, 1e300]), f"Field peer_figures.gpu_power_watts.2 {TOO_LARGE}"),
        (peers(1.0), "Field peer_figures.gpu_power_watts is wrong: input should be a valid array"),
        ({"peer_figures": []}, f"Field peer_figures {NO_OBJECT}"),
        (lateness(rank=-1), f"Field verdict.late.0.rank {NEGATIVE}"),
        (lateness(stage="lunch"), "Field verdict.late.0.stage is not a stage; use"),
        (lateness(kind="lazy"), "Field verdict.late.0.kind is not a way to be late"),
        (lateness(ratio=-0.1), f"Field verdict.late.0.ratio {NEGATIVE}"),
        (lateness(gpus={"data": math.inf}), f"Field verdict.late.0.gpus.data {NOT_FINITE}"),
        (lateness(gpus={"lunch": 1}), "Field verdict.late.0.gpus.lunch is not a st"),
        *(
            ({"verdict": verdict(**changes)}, f"Field verdict.{rest}")
            for changes, rest in (
                ({"late": [LATE] * 33}, "late is wrong: list should have at most 32"),
                ({"changes": [CHANGE] * 9}, "changes is wrong: list should have at most"),
                ({"changes": [slower(in_common="a" * 129)]}, f"changes.0.in_common {TOO_LONG}"),
                ({"changes": [slower(in_common="a\n")]}, f"changes.0.in_common {NOT_PRINTED}"),
                ({"changes": [slower(slower_spans=((1,),))]}, "changes.0.slower_spans.0 is wrong"),
                ({"changes": [slower(slower_spans=((0, 1),) * 33)]}, "changes.0.slower_spans is"),
                ({"together": [late_set()] * 5}, "together is wrong: list should have at most 4"),
                (
                    {"together": [late_set(spans=((-1, 1),))]},
                    "together.0.spans.0.0 is wrong",
                ),
                (
                    {"together": [late_set(in_common="\x1b")]},
                    "together.0.in_common has chara",
                ),
                ({"ranks": {f"pp{n}": 1 for n in range(65)}}, "ranks is wrong: dict"),
                ({"ranks": {"": 1}}, f"ranks. {TOO_SHORT}"),
                ({"reason": "rain"}, "reason is not a reason why nobody can be judged"),
                ({"gpus_lost": {"rain": 1.0}}, "gpus_lost.rain is not what GPUs are lost to"),
                ({"rotating": {"data": -1.0}}, f"rotating.data {NEGATIVE}"),
                ({"slowdown": math.nan}, f"slowdown {NOT_FINITE}"),
                ({"step_seconds": 1e300}, f"step_seconds {TOO_LARGE}"),
            )
        ),
        ({"verdict": {"step": 1}}, "Field verdict.ranks is missing; install the same release"),
        ({"verdict": []}, f"Field verdict {NO_OBJECT}"),
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
    answer = refusal(content)

    assert answer.result == result
    assert str(answer).startswith(sentence)


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


def test_hostile_field_name_comes_back_short_and_escaped() -> None:
    """What the caller invents cannot write control characters or pages into an answer."""
    answer = str(refusal(body(stage_seconds={"\x1b[31m\n" * 100: 1})))

    assert answer.isprintable()
    assert len(answer) < 200
