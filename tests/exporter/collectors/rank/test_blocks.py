"""Where no judge speaks, each rank's last whole block of steps is there for the rules."""

from typing import Any

import pytest

from exporter.collectors.rank.blocks import RankBlocksCollector
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, series
from tests.exporter.running import promtool_check_metrics
from tests.exporter.snapshots import snapshot, verdict

BLOCK: dict[str, Any] = {
    "block_steps": 64,
    "block_seconds": {"data": 0.25, "forward": 0.5, "sync": 0.125},
}
JUDGED: dict[str, Any] = {
    "verdict": verdict(step_seconds=0.5),
    "verdict_age_seconds": 62.0,
    "join_coverage": 0.9,
}
SHOWN = [
    'rankskew_block_busy_seconds{job_id="llama",peer_group="all",rank="0"} 0.75',
    'rankskew_block_step_seconds{job_id="llama",peer_group="all",rank="0"} 0.875',
    'rankskew_block_stage_seconds{job_id="llama",peer_group="all",rank="0",stage="data"} 0.25',
    'rankskew_block_stage_seconds{job_id="llama",peer_group="all",rank="0",stage="forward"} 0.5',
]


def collector(*ranks: dict[str, Any], clock: Clock | None = None) -> RankBlocksCollector:
    store = RankStore(clock=clock or Clock())
    for number, changes in enumerate(ranks):
        store.put(snapshot(**({"rank": number} | changes)))
    return RankBlocksCollector(store)


def shown(*ranks: dict[str, Any]) -> list[str]:
    return series(expose(collector(*ranks)))


def test_node_without_ranks_exposes_none() -> None:
    """A node without training has no block."""
    assert shown() == []


def test_job_without_a_join_shows_its_blocks() -> None:
    """The time of a mean step is there whole, without the wait, and by stage."""
    assert shown(BLOCK) == SHOWN


def test_step_without_a_measured_wait_is_not_told() -> None:
    """If no wait was measured, a rank's own time is unknown."""
    assert shown(BLOCK | {"block_seconds": {"data": 0.75}}) == [
        SHOWN[0],
        SHOWN[2].replace("0.25", "0.75"),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"block_steps": 0, "block_seconds": {}}, {"level": "off"}, {"finished": True}],
)
def test_rank_without_a_block_of_now_shows_none(changes: dict[str, Any]) -> None:
    """Before the first whole block, while off and after the end there is nothing to compare."""
    assert shown(BLOCK | changes) == []


def test_silent_rank_shows_no_block() -> None:
    """The last block of a rank that is gone is not compared with any other."""
    clock = Clock()
    silent = collector(BLOCK, clock=clock)
    clock.seconds += 10.0

    assert series(expose(silent)) == []


def test_judged_job_shows_no_blocks() -> None:
    """Where the judge speaks the series are spared, also of the rank that did not read it yet."""
    assert shown(BLOCK | JUDGED, BLOCK) == []


@pytest.mark.parametrize(
    "doubt",
    [
        {"verdict": None},
        {"join_coverage": 0.89},
        {"verdict_age_seconds": 62.1},
        {"verdict_age_seconds": 64.0, "verdict": verdict(step_seconds=None), "join_coverage": None},
    ],
)
def test_verdict_that_does_not_cover_the_job_is_none(doubt: dict[str, Any]) -> None:
    """Old or partial verdicts bring the fallback back, on all ranks of the job."""
    assert shown(BLOCK | JUDGED | doubt) == SHOWN
    assert len(shown(BLOCK | JUDGED | doubt, BLOCK)) == 2 * len(SHOWN)


def test_slow_steps_make_a_verdict_last() -> None:
    """Steps of a minute give few verdicts; while warming up, the block shows how long they are."""
    old = BLOCK | JUDGED | {"verdict_age_seconds": 290.0}
    slow = {"block_seconds": {"forward": 55.0, "sync": 5.0}}

    assert shown(old | {"verdict": verdict(step_seconds=60.0)}) == []
    assert shown(old | slow | {"verdict": verdict(step_seconds=None)}) == []


def test_page_passes_promtool() -> None:
    """Names, types and help texts are as Prometheus wants them."""
    checked = promtool_check_metrics(expose(collector(BLOCK)))

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
