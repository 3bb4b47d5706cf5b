"""In a very large fleet most pages are copies, and nobody can tell by their series."""

import asyncio
import gzip
from pathlib import Path

import pytest

from exporter.scrape.exposition import wanted
from fleet_simulator import fleet
from fleet_simulator.faults import parse
from fleet_simulator.fleet import FRESH_SECONDS, Fleet, fleet_app
from fleet_simulator.plan import equal_jobs
from tests.exporter.asgi import ask
from tests.exporter.clock import Clock


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "NODES_WITH_READINGS", 4)
    monkeypatch.setattr(fleet, "ORIGINALS", 2)


def large(directory: Path, clock: Clock, *faults: str) -> Fleet:
    """Six nodes of two GPUs in one job."""
    return Fleet(equal_jobs(6, 2, 1, [parse(fault) for fault in faults]), directory, clock)


def page(fleet: Fleet, node: str, query: str = "") -> str:
    answer = ask(fleet_app(fleet, "a fleet"), "GET", f"/node/{node}/metrics{query}", host="sim")
    assert answer is not None
    return answer.text


def series(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in (line.rpartition(" ") for line in lines)}


def own(fleet: Fleet, node: str) -> dict[str, str]:
    """What the node itself would say."""
    fleet.nodes[node].advance(fleet.now())
    body, _ = asyncio.run(fleet.nodes[node].exposition.page(wanted([], {})))
    return series(body.decode())


def test_copy_has_the_series_of_its_node(tmp_path: Path) -> None:
    """Its names are its own, down to the process IDs; its readings are those of the original."""
    clock = Clock()
    found = large(tmp_path, clock)
    clock.seconds += 30.0

    copied = series(page(found, "sim-03"))

    assert copied.keys() == own(found, "sim-03").keys()
    steps = 'rankskew_busy_seconds_total{{job_id="sim",peer_group="all",rank="{}"}}'
    assert copied[steps.format(6)] == series(page(found, "sim-01"))[steps.format(2)]
    assert copied[steps.format(7)] == series(page(found, "sim-01"))[steps.format(3)]


def test_first_node_originals_and_faults_speak_for_themselves(tmp_path: Path) -> None:
    """What is special about a node must not be lost or repeated elsewhere.

    In a fleet of usual size every node has readings of its own.
    """
    found = large(tmp_path / "large", Clock(), "thermal:node=4,gpu=1")
    usual = Fleet(equal_jobs(4, 2, 1, []), tmp_path / "usual", Clock())

    assert [node for node in found.nodes if node in found.copies] == ["sim-03", "sim-05"]
    assert [node for node in usual.nodes if node in usual.copies] == []


def test_copy_is_as_new_as_its_original(tmp_path: Path) -> None:
    """Rates over a minute would be wrong by as much as a page is old."""
    clock = Clock()
    found = large(tmp_path, clock)
    heartbeat = 'rankskew_heartbeat_timestamp_seconds{job_id="sim",peer_group="all",rank="6"}'
    first = float(series(page(found, "sim-03"))[heartbeat])
    clock.seconds += FRESH_SECONDS / 2
    same = float(series(page(found, "sim-03"))[heartbeat])
    clock.seconds += FRESH_SECONDS / 2

    assert same == first
    assert float(series(page(found, "sim-03"))[heartbeat]) == first + FRESH_SECONDS


def test_copy_is_compressed_if_asked(tmp_path: Path) -> None:
    found = large(tmp_path, Clock())
    app = fleet_app(found, "a fleet")
    zipped = ask(app, "GET", "/node/sim-03/metrics", host="sim", accept_encoding="gzip")

    assert zipped is not None
    assert zipped.headers["content-encoding"] == "gzip"
    assert series(gzip.decompress(zipped.body).decode()) == series(page(found, "sim-03"))
