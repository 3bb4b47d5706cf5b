"""The queries, answered by Prometheus' own engine on what the rules make of a simulated job."""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet_simulator.faults import parse
from fleet_simulator.fleet import Fleet as SimulatedFleet
from fleet_simulator.fleet import fleet_app
from fleet_simulator.plan import equal_jobs
from rankskew.client import fetch
from rankskew.client.prometheus import Prometheus, selector
from rankskew.top.from_prometheus import read_fleet
from rankskew.top.model import JobStatus
from tests.alerts.promtool import answer as promtool_answer
from tests.exporter.asgi import ask
from tests.exporter.clock import Clock
from tests.exporter.running import PATIENCE_SECONDS
from tests.rankskew.client.servers import Answer, json_answer, serving

SCRAPE_SECONDS: Final = 15.0
SCRAPES: Final = 17


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """promtool evaluates all rules for each query, which takes seconds on a busy machine."""
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", PATIENCE_SECONDS)


def scraped(directory: Path, *faults: str) -> list[dict[str, str]]:
    """Return what two simulated nodes expose in four minutes, as promtool takes it."""
    clock = Clock(0.0)  # promtool's time begins there too.
    plans = equal_jobs(2, 4, 1, [parse(fault) for fault in faults])
    fleet = SimulatedFleet(plans, directory, clock)
    values: dict[str, list[str]] = {}
    for scrape in range(SCRAPES):
        for node in fleet.nodes:
            for series, value in exposed(fleet, node):
                values.setdefault(series, ["_"] * SCRAPES)[scrape] = value
        clock.seconds += SCRAPE_SECONDS
    return [{"series": series, "values": " ".join(each)} for series, each in values.items()]


def exposed(fleet: SimulatedFleet, node: str) -> list[tuple[str, str]]:
    page = ask(fleet_app(fleet, "a fleet"), "GET", f"/node/{node}/metrics", host="sim")
    assert page is not None
    where = {"instance": f"{node}:9917", "job": "rankskew", "cluster": "simulated"}
    return [
        (f"{sample.name}{{{selector(**sample.labels, **where)}}}", str(sample.value))
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    ]


def read(directory: Path, *faults: str) -> JobStatus:
    """Return the one job with *faults*, with its ranks, as Prometheus would answer."""
    series = scraped(directory, *faults)
    now = (SCRAPES - 1) * SCRAPE_SECONDS

    def answer(path: str, form: dict[str, str]) -> Answer:
        folder = Path(mkdtemp(dir=directory))  # Several queries may come at a time.
        result: list[dict[str, Any]] = [
            {"metric": labels, "value": [now, str(value)]}
            for labels, value in promtool_answer(folder, series, form["query"], now)
        ]
        return json_answer({"status": "success", "data": {"result": result}})

    with serving(answer) as url:
        fleet = read_fleet(Prometheus(url))
    assert not fleet.troubles
    assert fleet.focus is not None
    return fleet.focus


def test_late_rank_is_found(tmp_path: Path) -> None:
    """Rank, stage, cause, cost and what the ranks do are those that were simulated."""
    job = read(tmp_path, "loader:node=1,gpu=2")

    assert (job.state, job.culprit) == ("straggler", (6, "data"))
    assert job.cause == "loader (workers at their limit)"
    assert (job.world_size, job.ranks_seen) == (8, 8)
    assert job.gpus_lost == pytest.approx(2, abs=0.3)
    assert job.cost_per_hour is None  # Nobody has set a price.
    assert job.sentence.startswith("Rank 6 is slow loading data; 1.6")
    assert [rank.rank for rank in job.ranks] == [6, 0, 1, 2, 3, 4, 5, 7]
    late, peer = job.ranks[:2]
    assert (late.node, late.gpu, late.local_rank) == ("sim-01:9917", "2", "2")
    assert late.pid is not None
    assert (late.own_seconds or 0.0) > (peer.own_seconds or 0.0) + 0.1
    assert (late.wait_seconds or 0.0) < (peer.wait_seconds or 0.0)


def test_stuck_rank_is_found(tmp_path: Path) -> None:
    """While a job hangs there are no rates, but its ranks are shown with what they are in."""
    job = read(tmp_path, "hang:node=1,gpu=1")

    assert (job.state, job.culprit, job.gpus_lost) == ("hung", (5, "data"), 8.0)
    assert "rank 5 on sim-01:9917 is stuck in data" in job.sentence
    assert [rank.rank for rank in job.ranks] == [5, 0, 1, 2, 3, 4, 6, 7]
    assert [rank.stage for rank in job.ranks[:2]] == ["data", "sync"]
    assert job.ranks[0].stage_seconds is None
