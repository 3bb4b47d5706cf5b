"""How restarts and slow clients are judged, and one short run of each with a real exporter."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import restarts, slow_clients
from benchmarks.report import broken
from benchmarks.restarts import (
    Kill,
    Scraped,
    Steps,
    gaps,
    increases,
    recovery,
    rows,
)
from benchmarks.slow_clients import BESIDE, SAME, is_kept, unheard

PLAN = restarts.Plan(kills=1, ranks=2)
KILL = Kill(10.0, 14.0, {0: 0.1, 1: 0.2})
# Both ranks step by ten a second; the exporter is down from 10 to 14.
SCRAPES = tuple(
    Scraped(float(second), None if 10 <= second < 14 else {0: 10.0 * second, 1: 10.0 * second})
    for second in range(30)
)
COUNTED: Steps = {0: 290, 1: 290}


def judged(
    scrapes: tuple[Scraped, ...] = SCRAPES,
    counted: Steps = COUNTED,
    kill: Kill = KILL,
    left_behind: int = 0,
) -> bool:
    """Say whether a run with these observations keeps what is promised."""
    return not broken(rows(PLAN, scrapes, [kill], counted, 9, left_behind))


def replaced(second: int, steps: Steps | None) -> tuple[Scraped, ...]:
    """Return the scrapes with another one at *second*."""
    return (*SCRAPES[:second], Scraped(float(second), steps), *SCRAPES[second + 1 :])


def test_every_step_once_is_kept() -> None:
    """A gap while the exporter is down is no loss."""
    assert judged()


@pytest.mark.parametrize(
    "keeps",
    [
        lambda: judged(counted={0: 290, 1: 291}),
        lambda: judged(replaced(29, {0: 290, 1: 280})),
        lambda: judged(replaced(20, {0: 5, 1: 200})),
        lambda: judged(replaced(25, {0: 250})),
        lambda: judged(replaced(25, None)),
        lambda: judged(kill=Kill(10.0, 14.0, {0: 0.1})),
        lambda: judged(kill=Kill(10.0, 14.0, {0: 0.1, 1: 5.1})),
        lambda: judged(left_behind=1),
    ],
    ids=["lost", "behind", "fell", "one missing", "unanswered", "never back", "late", "left"],
)
def test_each_breach_is_noticed(keeps: Callable[[], bool]) -> None:
    """A step lost or doubled, a gap, a rank that is late or missing, a process left: each fails."""
    assert not keeps()


def test_fall_is_a_reset() -> None:
    """As in PromQL a counter that falls began anew at zero, which here is one too many."""
    scrapes = [Scraped(0, {0: 100}), Scraped(1, None), Scraped(2, {0: 30}), Scraped(3, {0: 50})]

    assert increases(scrapes) == ({0: 50}, 1)


def test_rank_may_be_late_for_a_moment() -> None:
    """A rank that is not back yet is a gap only once it had time."""
    assert gaps([Scraped(18.9, {0: 1})], [KILL], ranks=2) == 0
    assert gaps([Scraped(19.1, {0: 1})], [KILL], ranks=2) == 1


def test_recovery_counts_from_the_first_answer() -> None:
    """Until the exporter answers no rank can be back."""
    scrapes = [Scraped(5, None), Scraped(6, {}), Scraped(6.5, {0: 1}), Scraped(7, {0: 1, 1: 1})]

    assert recovery(3.0, scrapes) == Kill(3.0, 6, {0: 0.5, 1: 1})


@pytest.mark.e2e
def test_killed_exporter_counts_every_step_once(tmp_path: Path) -> None:
    """With a real exporter, killed once, eight ranks lose no step."""
    found = restarts.measure(tmp_path, restarts.Plan(seconds=10, kills=1, down_seconds=1, ranks=8))

    assert broken(found) == []


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
        rows = list(slow_clients.measure(Path(directory), slow_clients.Plan(100, 3.0, 5.0, 3.0)))

    assert is_kept(rows), rows
    assert rows[1]["most open files"] > rows[0]["most open files"] + 100
