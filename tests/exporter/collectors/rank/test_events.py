"""The last event of a rank is exposed as one series."""

from typing import Any

from exporter.collectors.rank.events import RankEventsCollector
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import expose, series
from tests.exporter.snapshots import snapshot

INIT = {"number": 1, "event": "init", "began_timestamp_seconds": 1_000.0, "seconds": 4.0}
SAVE = {"number": 2, "event": "checkpoint", "began_timestamp_seconds": 1_030.0, "seconds": None}


def shown(*events: dict[str, Any]) -> list[str]:
    store = RankStore(clock=lambda: 2_000.0)
    store.put(snapshot(lifecycle_events=list(events)))
    return series(expose(RankEventsCollector(store)))


def test_probe_that_tells_no_events_has_no_series() -> None:
    """An older probe is not shown with an event that it never had."""
    assert shown() == []


def test_last_change_is_exposed_alone() -> None:
    """A rank costs one series, whatever happened before."""
    who = 'job_id="llama",peer_group="all",rank="0"'
    name = "rankskew_rank_last_event_timestamp_seconds"

    assert shown(INIT) == [f'{name}{{event="init",{who},state="done"}} 1004.0']
    assert shown(INIT, SAVE) == [f'{name}{{event="checkpoint",{who},state="began"}} 1030.0']


def test_later_end_wins_over_a_later_beginning() -> None:
    """What ended last is the last event, though another began after it."""
    short = SAVE | {"seconds": 1.0}
    init = INIT | {"seconds": 60.0}

    assert 'event="init"' in shown(init, short)[0]
