"""A verdict travels as JSON, through the store and the snapshots, and stays what it is."""

import json

import pytest

from rank_probe.judge.verdict import (
    LATE_KINDS,
    LOST_KINDS,
    REASONS,
    Change,
    Verdict,
    from_json,
)
from rank_probe.wire.stages import STAGES
from tests.alerts.jobs import Fault, Job
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
    for _, verdict in judged(JOBS[name]).verdicts:
        said = verdict.to_json()
        read = from_json(json.loads(json.dumps(said)))

        assert read.to_json() == said
        assert (read.step, read.ranks, read.reason) == (verdict.step, verdict.ranks, verdict.reason)
        assert read.gpus_lost == pytest.approx(verdict.gpus_lost, rel=1e-5)
        assert [late.rank for late in read.late] == [late.rank for late in verdict.late]
        assert verdict.reason is None or verdict.reason in REASONS
        assert set(verdict.gpus_lost) in (set(), set(LOST_KINDS))
        assert set(verdict.rotating) <= set(STAGES) - {"sync"}
        for late in verdict.late:
            assert late.kind in LATE_KINDS
            assert late.stage in STAGES
            assert set(late.gpus) <= set(STAGES) - {"sync"}


def test_fields_of_another_version_are_refused() -> None:
    """Ranks of one job run one version; who reads anything else learns of it."""
    said = Verdict(7, {"all": 2}, changes=(Change("all", "data", 2.0, 60.0),)).to_json()

    with pytest.raises(TypeError):
        from_json({**said, "mood": "good"})
    with pytest.raises(TypeError):
        from_json({**said, "changes": [{"peer_group": "all"}]})
