"""A late rank's own exporter shows the line of code in which it spends its time."""

from typing import Any

import pytest

from exporter.collectors.rank.late_lines import LateLinesCollector
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, series
from tests.exporter.running import promtool_check_metrics
from tests.exporter.snapshots import snapshot

FIRST = {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.75}
SECOND = {"stage": "data", "place": "parse (corpus.py:70)", "share": 0.25}
SHOWN = (
    'rankskew_late_line_ratio{job_id="llama",peer_group="all",'
    'place="Corpus.__next__ (corpus.py:41)",rank="2",stage="data"} 0.75'
)


def node(clock: Clock, **changes: Any) -> LateLinesCollector:
    store = RankStore(clock=clock)
    told = {"rank": 2, "late_lines": [FIRST, SECOND]}
    store.put(snapshot(rank=0))
    store.put(snapshot(**(told | changes)))
    return LateLinesCollector(store)


def test_first_line_is_one_series() -> None:
    """However many lines a rank reports, it has one series; a rank that is not late has none."""
    assert series(expose(node(Clock()))) == [SHOWN]
    assert series(expose(node(Clock(), late_lines=[]))) == []


@pytest.mark.parametrize("finished", [True, False])
def test_rank_that_no_longer_runs_has_no_line(finished: bool) -> None:
    """What a rank did before it ended or became silent is not what it does."""
    clock = Clock()
    collector = node(clock, finished=finished)
    clock.seconds += 0.0 if finished else 10.0

    assert series(expose(collector)) == []


def test_quotes_in_a_name_stay_in_the_label() -> None:
    """A function's name cannot end the label that holds it."""
    page = expose(node(Clock(), late_lines=[FIRST | {"place": 'f"} 1\\'}]))

    assert series(page) == [SHOWN.replace("Corpus.__next__ (corpus.py:41)", r"f\"} 1\\")]
    assert promtool_check_metrics(page).returncode == 0
