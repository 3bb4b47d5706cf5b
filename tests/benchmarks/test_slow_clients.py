"""Tests of how slow clients are judged, and one short run with a real exporter."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.slow_clients import BESIDE, SAME, Plan, is_kept, measure, unheard

FINE: dict[str, Any] = {"what": BESIDE, "failed": 0, "ranks unheard": 0}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"failed": 1}, False),
        ({"failed": 1, "what": SAME}, True),
        ({"ranks unheard": 1, "what": SAME}, False),
    ],
)
def test_failed_scrape_is_noticed(change: dict[str, Any], kept: bool) -> None:
    """Only a scraper that has the crowd's own address may fail; no rank may go unheard."""
    assert is_kept([FINE, FINE | change]) is kept


def test_missing_and_silent_ranks_are_unheard() -> None:
    """Of the eight ranks those count that are not on the page, and those that are silent on it."""
    steps = [b'rankskew_steps_total{job_id="bench",rank="%d"} 1' % rank for rank in range(7)]
    silent = b'rankskew_rank_silent_seconds{job_id="bench",rank="0"} 11'

    assert unheard(b"\n".join([*steps, silent])) == 2


@pytest.mark.e2e
def test_crowd_is_not_noticed() -> None:
    """Beside 100 slow clients on each listener of a real exporter no scrape fails."""
    # Not pytest's directory: the crowd, another user, could not get to the socket in it.
    with tempfile.TemporaryDirectory() as directory:
        rows = list(measure(Path(directory), Plan(100, 3.0, 5.0, 3.0)))

    assert is_kept(rows), rows
    assert rows[1]["most open files"] > rows[0]["most open files"] + 100
