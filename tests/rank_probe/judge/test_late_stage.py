"""A rank knows whether it is late: from its own verdict, else from its exporter."""

from typing import Any

import pytest

from rank_probe.judge.late_stage import late_stage
from rank_probe.judge.verdict import LATE_KINDS, MILD, UNSYNCED
from tests.exporter.snapshots import late, verdict


def test_verdict_names_the_rank_and_its_stage() -> None:
    """Only the named rank is late."""
    assert late_stage(verdict(), 2, {}) == "data"
    assert late_stage(verdict(), 3, {}) is None


@pytest.mark.parametrize("kind", LATE_KINDS)
def test_rank_that_raises_no_page_is_not_late(kind: str) -> None:
    """Mildly late ranks are within the noise of a healthy job."""
    said = late_stage(verdict(late=(late(kind=kind),)), 2, {})

    assert (said is None) == (kind in (MILD, UNSYNCED))


def test_judge_overrules_the_exporter() -> None:
    """An exporter compares the ranks of one node only."""
    assert late_stage(verdict(late=()), 2, {"late": "data"}) is None


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
