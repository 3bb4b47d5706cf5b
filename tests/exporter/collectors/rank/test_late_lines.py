"""A late rank's own exporter shows the line of code in which it spends its time."""

from typing import Any

import pytest

from exporter.collectors.rank.late_lines import LateLinesCollector
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.running import promtool_check_metrics
from tests.exporter.snapshots import snapshot

FIRST = {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.75}
SECOND = {"stage": "data", "place": "parse (corpus.py:70)", "share": 0.25}
SHOWN = (
    'rankskew_late_line_ratio{job_id="llama",peer_group="all",'
    'place="Corpus.__next__ (corpus.py:41)",rank="2",stage="data"} 0.75'
)


def node(after_seconds: float = 0.0, **changes: Any) -> LateLinesCollector:
    clock = Clock()
    store = RankStore(clock=clock)
    store.put(snapshot(rank=0))
    store.put(snapshot(**({"rank": 2, "late_lines": [FIRST, SECOND]} | changes)))
    clock.seconds += after_seconds
    return LateLinesCollector(store)


@pytest.mark.parametrize(
    ("collector", "lines"),
    [
        (node(), [SHOWN]),  # However many lines a rank reports, it has one series.
        (node(late_lines=[]), []),
        # What a rank did before it ended or became silent is not what it does.
        (node(finished=True), []),
        (node(after_seconds=10.0), []),
    ],
)
def test_first_line_of_a_rank_that_is_late_is_one_series(
    collector: LateLinesCollector, lines: list[str]
) -> None:
    assert shown(collector) == lines


def test_quotes_in_a_name_stay_in_the_label() -> None:
    """A function's name cannot end the label that holds it."""
    quoted = node(late_lines=[FIRST | {"place": 'f"} 1\\'}])

    assert shown(quoted) == [SHOWN.replace("Corpus.__next__ (corpus.py:41)", r"f\"} 1\\")]
    assert promtool_check_metrics(expose(quoted)).returncode == 0
