"""What a rank reports is exposed as the documented series, and no reading is no series."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.collectors.rank.ranks import RanksCollector
from exporter.ranks.store import RankStore
from exporter.scrape.sampling import Scrape
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.running import ROOT, promtool_check_metrics
from tests.exporter.snapshots import snapshot

GOLDEN = ROOT / "tests" / "fixtures" / "exporter" / "ranks.txt"

COMPLETE = snapshot(
    rank=3,
    peer_group="stage-1",
    attempt=2,
    last_step_timestamp_seconds=1_060.25,
    probe_errors=1,
    push_failures=2,
    stage_host_seconds={"data": 13.0, "h2d": 0.5, "sync": 4.5},
    dropped_steps=4,
    level="detail",
    stage_elapsed_seconds=12.5,
    wait_caused_seconds={"data": 1.25, "forward": 0.0},
    group_wait_seconds=0.5,
    joined_seconds=37.5,
    join_coverage=0.75,
    rank_info={"local_rank": "3", "node_rank": "0", "gpu_uuid": "GPU-3", "clock": "cuda"},
    runtime_info={"torch": "2.13.0", "python": "3.11.7", "backend": "nccl", "probe": "0.1.0"},
)
FINISHED = snapshot(rank=1, finished=True, stage="other", last_step_timestamp_seconds=1_059.0)


def collector(*snapshots: Snapshot) -> RanksCollector:
    store = RankStore(clock=lambda: 2_000.0)
    for held in snapshots:
        store.put(held)
    return RanksCollector(store)


def test_exposition_is_the_golden_one() -> None:
    """Three ranks (bare, complete, finished) are exposed exactly as the fixture shows them."""
    registry = CollectorRegistry()
    registry.register(collector(snapshot(), COMPLETE, FINISHED))

    assert generate_latest(registry).decode() == GOLDEN.read_text()


def test_exposition_is_valid_openmetrics() -> None:
    """A scraper that asks for OpenMetrics gets a page that parses, with the same samples."""
    registry = CollectorRegistry()
    registry.register(Scrape([collector(snapshot(), COMPLETE, FINISHED)]))
    page = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call] # upstream
    families = text_string_to_metric_families(page)  # type: ignore[no-untyped-call] # upstream

    samples = {sample.name for family in families for sample in family.samples}
    exposed = set(re.findall(r"^(rankskew_\w+)", GOLDEN.read_text(), re.MULTILINE))
    assert exposed <= samples


def lines(name: str, *snapshots: Snapshot) -> list[str]:
    """Return the labels, without job and group, and values of the series *name*."""
    found = shown(collector(*snapshots), f"rankskew_{name}{{")
    who = 'job_id="llama",peer_group="all",'
    return [line.removeprefix(f"rankskew_{name}").replace(who, "") for line in found]


@pytest.mark.parametrize(
    ("held", "absent"),
    [
        # No sync measured and no step done yet means no series, never 0.
        (
            snapshot(),
            "last_step_timestamp_seconds rank_finished "
            "group_wait_seconds_total join_coverage_ratio",
        ),
        # After a clean end none is left that an alert on silence could see age.
        (FINISHED, "heartbeat_timestamp_seconds stage_elapsed_seconds"),
        # A probe that is off keeps its heartbeat, and nothing that looks like a hang.
        (replace(COMPLETE, level="off"), "last_step_timestamp_seconds stage_elapsed_seconds"),
        # The stage of a rank that steps is another at each scrape: it shows once it lasts 10 s.
        (snapshot(stage_elapsed_seconds=9.9), "stage_elapsed_seconds"),
    ],
)
def test_what_would_mislead_is_absent(held: Snapshot, absent: str) -> None:
    page = expose(collector(held))

    assert [name for name in absent.split() if f"rankskew_{name}{{" in page] == []
    assert f'rankskew_steps_total{{job_id="llama",peer_group="{held.peer_group}"' in page
    assert ("rankskew_heartbeat_timestamp_seconds{" in page) is not held.finished


def test_stage_is_shown_once_it_lasts_or_while_the_job_stands() -> None:
    """The culprit of a hang may go from stage to stage, so that it is in none for 10 s."""
    name = "stage_elapsed_seconds"
    assert lines(name, snapshot(stage_elapsed_seconds=10.0)) == ['{rank="0",stage="forward"} 10.0']
    busy = snapshot(stage_elapsed_seconds=2.0, heartbeat_timestamp_seconds=1_060.0)
    stepped, stood = (replace(busy, last_step_timestamp_seconds=t) for t in (1_031.0, 1_030.0))

    assert lines(name, stepped) == []
    assert lines(name, stood) == ['{rank="0",stage="forward"} 2.0']


def test_rank_without_a_first_step_shows_how_long() -> None:
    """Who waits for a job to start, or who never steps, is known without all ranks' counters."""
    began = {"started_timestamp_seconds": 1_000.0, "heartbeat_timestamp_seconds": 1_060.0}
    none = snapshot(steps=0, **began)
    assert lines("rank_starting_seconds", none) == ['{rank="0"} 60.0']

    others = (snapshot(steps=1, **began), replace(none, finished=True), replace(none, level="off"))
    for other in others:
        assert lines("rank_starting_seconds", other) == []


def test_silence_is_told_by_the_exporters_clock() -> None:
    """A rank that reports is not silent, however wrong its node's clock; one that stops is."""
    clock = Clock()
    store = RankStore(clock=clock)
    for rank, behind in ((0, 0.0), (1, 90.0), (2, 0.0)):
        store.put(snapshot(rank=rank, heartbeat_timestamp_seconds=1_060.5 - behind))
    store.put(snapshot(rank=3, finished=True))
    clock.seconds += 11.0
    for rank, behind in ((0, 0.0), (1, 90.0)):
        then = 1_071.5 - behind
        store.put(snapshot(rank=rank, sequence=2, heartbeat_timestamp_seconds=then))

    assert shown(RanksCollector(store), "rankskew_rank_silent_seconds") == [
        'rankskew_rank_silent_seconds{job_id="llama",peer_group="all",rank="2"} 11.0'
    ]


def test_typed_fields_overrule_the_text_beside_them() -> None:
    """World size, attempt and level on rank_info are the snapshot's, whatever its text says."""
    text = {"world_size": "9", "attempt": "9", "level": "x"}
    page = expose(collector(snapshot(attempt=2, rank_info=text)))

    assert re.search(r'rankskew_rank_info{attempt="2",.*level="stages",.*world_size="4"}', page)


def test_hostile_label_values_are_escaped() -> None:
    """Quotes and backslashes in a job's name cannot break the page."""
    page = expose(collector(snapshot(job_id='a"b\\c')))

    assert 'job_id="a\\"b\\\\c"' in page
    assert promtool_check_metrics(page).returncode == 0


def write_golden(path: Path = GOLDEN) -> None:
    """Rewrite the fixture: python -m tests.exporter.collectors.rank.test_ranks."""
    registry = CollectorRegistry()
    registry.register(collector(snapshot(), COMPLETE, FINISHED))
    path.write_bytes(generate_latest(registry))


if __name__ == "__main__":
    write_golden()
