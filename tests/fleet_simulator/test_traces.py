"""Each fault leaves the traces from which its cause is concluded, in its place and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

from fleet_simulator.fleet import Fleet
from fleet_simulator.plan import tour
from tests.exporter.clock import Clock
from tests.fleet_simulator.test_fleet import fleet, get, samples
from tests.fleet_simulator.test_ranks import LATE_RANK

NODE, GPU = "sim-01", "2"


def only(found: list[tuple[dict[str, str], float]], **wanted: str) -> float:
    """Return the value of the one sample that has the *wanted* labels."""
    (value,) = [value for labels, value in found if wanted.items() <= labels.items()]
    return value


@pytest.mark.parametrize(
    ("fault", "series", "labels", "times", "more"),
    [
        # On its GPU.
        ("foreign", "gpu_foreign_processes", {}, 1, 1),
        ("memory", "gpu_ecc_errors_total", {"type": "uncorrected"}, 1, 20),
        ("nvlink", "gpu_nvlink_errors_total", {"type": "crc"}, 1, 100),
        # A bad link has thousands of errors, that of its neighbour the few of its life.
        ("weaklink", "gpu_nvlink_link_errors_total", {}, 1, 3000),
        # On its rank.
        ("storage", "rank_read_bytes_total", {}, 10, 0),
        ("gc", "gc_pause_seconds_total", {}, 10, 0),
        # On its node; out of memory whichever of its GPUs the rank is on.
        ("slowport", "infiniband_rate_bytes_per_second", {"device": "mlx5_0"}, 0.25, 0),
        ("network", "node_network_receive_drops_total", {}, 1, 1000),
        ("cpuheat", "node_cpu_clock_hertz", {}, 0.6, 0),
        ("node", "node_pressure_waiting_seconds_total", {"resource": "cpu"}, 1, 100),
        ("oom", "node_oom_kills_total", {}, 1, 1),
    ],
)
def test_trace_is_in_its_place(
    tmp_path: Path, fault: str, series: str, labels: dict[str, str], times: float, more: float
) -> None:
    """It shows on the GPU, rank or node that has it, held against its neighbour.

    Of each way in which one is planted: that every trace leads to its cause is test_causes.py's.
    """
    onset = ",after=0s" if fault == "oom" else ""
    simulated = fleet(tmp_path, f"{fault}:node=1,gpu={GPU}{onset}")
    here, there = (samples(simulated, name)[f"rankskew_{series}"] for name in (NODE, "sim-00"))
    if series.startswith("gpu_"):
        odd, usual = only(here, gpu=GPU, **labels), only(here, gpu="1", **labels)
    elif series.startswith(("node_", "infiniband_")):
        odd, usual = only(here, **labels), only(there, **labels)
    else:
        odd, usual = only(here, rank=str(LATE_RANK)), only(here, rank="5")

    assert odd >= times * usual + more - 1e-6
    assert (odd < usual) == (times < 1)
    assert times >= 1 or odd == pytest.approx(times * usual)


def test_slow_file_server_is_so_on_every_node(tmp_path: Path) -> None:
    """What slows the whole job down shows on all of its nodes."""
    simulated = fleet(tmp_path, "filer")
    for name in ("sim-00", NODE):
        ((labels, seconds),) = samples(simulated, name)[
            "rankskew_node_mount_operation_seconds_total"
        ]
        assert labels["fstype"] == "nfs"
        assert seconds > 750
        verdict = live(simulated, name)["jobs"][0]["verdict"]
        ((change,), (cause,)) = verdict["changes"], verdict["change_causes"]
        assert (change["stage"], change["slower"]) == ("data", 0)
        assert (cause["cause"], cause["detail"]) == ("input", "nfs")
        assert cause["value"] > 20 * cause["peers_value"]


def test_job_that_becomes_slower_later_is_explained_too(tmp_path: Path) -> None:
    """From the time before its onset; half a minute after it, both are known."""
    clock = Clock()
    simulated = fleet(tmp_path, "filer:after=40s", clock=clock)
    told = {}
    for _ in range(0, 84, 2):
        clock.seconds += 2
        simulated.app(NODE)
        told[clock.seconds] = live(simulated)["jobs"][0]["verdict"]["change_causes"]
    said = list(told.values())

    assert (said[0], said[20]) == ([], [None])
    assert said[-1][0]["detail"] == "nfs"


REASONS = {"nosync": "no_sync", "off": "off"}


def live(simulated: Fleet, node: str = NODE) -> dict[str, Any]:
    document: dict[str, Any] = get(simulated, f"/node/{node}/api/v1/live").content
    return document


@pytest.mark.parametrize(
    ("job_id", "state"),
    [
        ("healthy", "healthy"),
        ("thermal", "straggler"),
        ("node", "slow_node"),
        ("rotating", "rotating"),
        ("filer", "healthy"),
        ("hang", "hung"),
        ("frozen", "hung"),
        ("lost", "hung"),
        ("deadlock", "hung"),
        ("killed", "ranks_missing"),
        ("memory", "healthy"),
        ("missing", "ranks_missing"),
        ("nosync", "not_judgeable"),
        ("nojoin", "straggler"),
        ("off", "not_judgeable"),
        ("starting", "starting"),
        ("finished", "finished"),
        ("noprobe", "no_probe"),
    ],
)
def test_live_page_of_the_tour_shows_the_state(tmp_path: Path, job_id: str, state: str) -> None:
    """Each state that one node can know is there to be seen, on the node that has the fault."""
    (plan,) = [plan for plan in tour() if plan.job_id == job_id]
    number = plan.faults[0].node if plan.faults else plan.first_node
    # Of the missing ranks the other node knows.
    number -= job_id == "missing"
    (job,) = live(Fleet([plan], tmp_path, lambda: 5_000.0), f"sim-{number:02}")["jobs"]

    assert (job["job_id"], job["verdict"]["state"]) == (job_id, state)
    if job_id in REASONS:  # Told apart by what is missing.
        assert job["verdict"]["reason"] == REASONS[job_id]
