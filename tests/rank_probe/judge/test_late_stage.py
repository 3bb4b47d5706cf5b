"""A rank knows whether it is late: from its own verdict, else from its exporter."""

from typing import Any

import pytest

from rank_probe.judge.late_stage import late_stage
from rank_probe.judge.verdict import LATE_KINDS, MILD, UNSYNCED
from tests.exporter.snapshots import late, verdict


@pytest.mark.parametrize("kind", LATE_KINDS)
def test_judge_names_the_rank_and_its_stage(kind: str) -> None:
    """Only the named rank is late, if it may page, whatever the exporter of one node says."""
    said = verdict(late=(late(kind=kind),))

    assert late_stage(said, 2, {}) == (None if kind in (MILD, UNSYNCED) else "data")
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
