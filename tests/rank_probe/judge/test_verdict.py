"""A verdict travels as JSON and stays what it is; a rank reads in it whether it is late."""

import json
from typing import Any

import pytest

from rank_probe.judge.verdict import (
    DUTY,
    LATE_KINDS,
    LOST_KINDS,
    MILD,
    PAUSES,
    REASONS,
    UNSYNCED,
    Change,
    Verdict,
    from_json,
    late_stage,
)
from rank_probe.wire.stages import STAGES
from tests.alerts.jobs import Fault, Job
from tests.exporter.snapshots import late, verdict
from tests.rank_probe.judged import judged

JOBS = {
    "late": Job(faults=(Fault(1, "data", 0.25),)),
    "pauses": Job(seconds=300, faults=(Fault(1, "checkpoint", 8, every=20),)),
    "slower": Job(seconds=300, slow_together_seconds=150),
    "no wait": Job(sync_measured=False, faults=(Fault(1, "data", 0.5),)),
    "alone": Job(ranks=1),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_verdict_survives_its_way_as_json(name: str) -> None:
    """What a rank reads back is what was said, to six digits, in words of the closed sets."""
    for _, made in judged(JOBS[name]).verdicts:
        said = made.to_json()
        read = from_json(json.loads(json.dumps(said)))

        assert read.to_json() == said
        assert (read.step, read.ranks, read.reason) == (made.step, made.ranks, made.reason)
        assert read.gpus_lost == pytest.approx(made.gpus_lost, rel=1e-5)
        assert [each.rank for each in read.late] == [each.rank for each in made.late]
        assert made.reason is None or made.reason in REASONS
        assert set(made.gpus_lost) in (set(), set(LOST_KINDS))
        assert set(made.rotating) <= set(STAGES) - {"sync"}
        for each in made.late:
            assert each.kind in LATE_KINDS
            assert each.stage in STAGES
            assert set(each.gpus) <= set(STAGES) - {"sync"}


def test_duty_travels_as_a_pause_with_a_mark() -> None:
    """An exporter of the release before knows no other words; it sees a rank that pauses."""
    job = Job(ranks=4, seed=1, seconds=300, faults=(Fault(0, "checkpoint", 2, every=20),))
    made = judged(job).last
    said = made.to_json()

    assert [each.kind for each in made.late] == [DUTY]
    assert [(each["kind"], each["is_duty"]) for each in said["late"]] == [(PAUSES, True)]
    assert [each.kind for each in from_json(said).late] == [DUTY]


def test_fields_of_another_version_are_refused() -> None:
    """Ranks of one job run one version; who reads anything else learns of it."""
    said = Verdict(7, {"all": 2}, changes=(Change("all", "data", 2.0, 60.0),)).to_json()

    with pytest.raises(TypeError):
        from_json({**said, "mood": "good"})
    with pytest.raises(TypeError):
        from_json({**said, "changes": [{"peer_group": "all"}]})


@pytest.mark.parametrize("kind", LATE_KINDS)
def test_judge_names_the_rank_and_its_stage(kind: str) -> None:
    """Only the named rank is late, if it may page, whatever the exporter of one node says."""
    said = verdict(late=(late(kind=kind),))

    assert late_stage(said, 2, {}) == (None if kind in (DUTY, MILD, UNSYNCED) else "data")
    assert late_stage(said, 3, {"late": "data"}) is None


@pytest.mark.parametrize(
    ("answer", "stage"),
    [
        ({}, None),
        ({"late": "backward"}, "backward"),
        ({"late": "sync"}, None),
        ({"late": "lunch"}, None),
        ({"late": ["data"]}, None),
        ({"late": None}, None),
    ],
)
def test_without_a_judge_the_exporter_says(answer: dict[str, Any], stage: str | None) -> None:
    """What an exporter of another release may say more is not a stage."""
    assert late_stage(None, 2, answer) == stage
