"""The nodes of a simulated fleet answer as exporters do."""

from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.scrape.levels import ALL, exposed_name
from fleet_simulator.faults import parse
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.hardware import MEMORY_KIB
from fleet_simulator.plan import equal_jobs, tour
from generators.metrics import families_by_collector
from tests.exporter.asgi import Answer, ask
from tests.exporter.clock import Clock

EVERYTHING = frozenset({ALL})
# Divided GPUs, pods, how often a rank pauses, and failing drivers are not simulated.
NOT_SIMULATED = {
    "rankskew_collector_last_success_timestamp_seconds",
    "rankskew_exporter_web_config_last_reload_success_timestamp_seconds",
    "rankskew_exporter_web_config_last_reload_successful",
    "rankskew_gpu_mig_info",
    "rankskew_gpu_mig_memory_total_bytes",
    "rankskew_gpu_mig_memory_used_bytes",
    "rankskew_gpu_mig_sm_active_ratio",
    "rankskew_group_wait_seconds_total",
    "rankskew_infiniband_congestion_events_total",
    "rankskew_late_pause_seconds",
    "rankskew_late_pause_steps",
    "rankskew_nvml_call_stuck_seconds",
    "rankskew_node_starved_ranks",
    "rankskew_nvml_error_info",
    "rankskew_rank_pod_info",
}


def fleet(directory: Path, *faults: str, clock: Clock | None = None) -> Fleet:
    plans = equal_jobs(2, 4, 1, [parse(fault) for fault in faults])
    return Fleet(plans, directory, clock or Clock(), EVERYTHING)


def get(fleet: Fleet, path: str) -> Answer:
    answer = ask(fleet_app(fleet, "a fleet"), "GET", path, host="sim:9919")
    assert answer is not None
    return answer


def samples(fleet: Fleet, node: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    text = get(fleet, f"/node/{node}/metrics").text
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_discovery_lists_each_node_with_its_own_page(tmp_path: Path) -> None:
    """Prometheus finds all nodes behind the address that it asked, told apart by instance."""
    groups: list[dict[str, Any]] = get(fleet(tmp_path), "/sd").content

    assert [group["targets"] for group in groups] == [["sim:9919"], ["sim:9919"]]
    assert [group["labels"] for group in groups] == [
        {
            "__metrics_path__": f"/node/sim-0{n}/metrics",
            "instance": f"sim-0{n}:9917",
            "cluster": "simulated",
        }
        for n in range(2)
    ]


def test_tour_exposes_what_real_exporters_do(tmp_path: Path) -> None:
    """Some node of the tour has each series that documentation lists, except a few."""
    clock = Clock()
    simulated = Fleet(tour(), tmp_path, clock, EVERYTHING)
    for node in simulated.nodes:
        samples(simulated, node)  # Work, and faults that last, are told from two scrapes on.
    clock.seconds += 50  # An exporter of the tour goes down after a minute.
    seen = {name for node in simulated.nodes for name in samples(simulated, node)}
    real = {exposed_name(f) for _, _, found in families_by_collector() for f in found}

    assert real - seen == NOT_SIMULATED


def test_simulated_node_leaves_psutil_as_it_was(tmp_path: Path) -> None:
    """psutil has one path per process, and other code in it may read the real one."""
    before = psutil.PROCFS_PATH
    found = samples(fleet(tmp_path), "sim-00")

    assert found["rankskew_node_memory_total_bytes"][0][1] == MEMORY_KIB * 1024
    assert before == psutil.PROCFS_PATH


def test_host_is_read_as_often_as_by_an_exporter(tmp_path: Path) -> None:
    """A collector in the background has the same reading for five seconds; GPUs are read anew."""
    clock = Clock()
    simulated = fleet(tmp_path, clock=clock)
    pages = []
    for seconds in (5, 3, 3):
        clock.seconds += seconds
        pages.append(samples(simulated, "sim-00"))
    disk, energy = (
        [page[name][0][1] for page in pages]
        for name in ("rankskew_node_disk_busy_seconds_total", "rankskew_gpu_energy_joules_total")
    )

    assert disk[0] == disk[1] < disk[2]
    assert energy[0] < energy[1] < energy[2]


def test_exporter_that_goes_down_answers_before(tmp_path: Path) -> None:
    """Prometheus sees the node first and misses it later."""
    clock = Clock()
    simulated = fleet(tmp_path, "down:node=1,after=30s", clock=clock)
    before = get(simulated, "/node/sim-01/metrics").status
    clock.seconds += 31

    assert before == 200
    assert get(simulated, "/node/sim-01/metrics").status == 503
    assert get(simulated, "/node/sim-00/metrics").status == 200


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/", 200, "sim-01"),
        ("/-/ready", 200, "ready"),
        ("/node/sim-01/", 200, "html"),
        ("/node/sim-01/api/v1/live", 200, "ank 6 is slow loading data"),
        ("/node/sim-77/metrics", 404, "There is no node 'sim-77'; / lists them.\n"),
    ],
)
def test_fleet_answers(tmp_path: Path, path: str, status: int, words: str) -> None:
    """The list of nodes, the readiness check, and each node's own live page work."""
    answer = get(fleet(tmp_path, "loader:node=1,gpu=2"), path)

    assert answer.status == status
    assert words in answer.text
