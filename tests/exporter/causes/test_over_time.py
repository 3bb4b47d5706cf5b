"""What all ranks of a node share explains why they take longer than before, and nothing else."""

import pytest

from exporter.causes.explain import OVER_TIME, explain_change
from exporter.causes.row import Certainty

NFS = {"node_mount_operation_seconds": "/data (nfs4)"}


@pytest.mark.parametrize(
    ("stage", "figure", "before", "now", "cause", "sentence"),
    [
        (
            *("data", "node_mount_operation_seconds", 0.001, 0.04, ("input", "nfs")),
            "an operation on a file system, `/data (nfs4)`, takes 40 ms, before 1",
        ),
        (
            *("data", "node_disk_busy_ratio", 0.3, 0.98, ("input", "disk")),
            "a disk, nvme0n1, is busy 98 % of the time, before 30 %",
        ),
        (
            *("checkpoint", "node_io_waiting_ratio", 0.1, 0.5, ("storage", "storage")),
            "tasks on the node wait for storage 50 % of the time, before 10 %",
        ),
        (
            *("sync", "node_tcp_retransmitted_ratio", 0.0001, 0.03, ("network", "retransmits")),
            "the node retransmits 3 % of its TCP segments, before 0.01 %",
        ),
        (
            *("sync", "node_network_link_bytes_per_second", 50e9, 25e9, ("network", "speed")),
            "a network port runs at 25 GB/s, before at 50",
        ),
        (
            *("backward", "node_cpu_clock_hertz", 3.1e9, 1.2e9, ("cpu", "frequency")),
            "busy CPUs run at 1.20 GHz, before at 3.10",
        ),
        (
            *("forward", "memory_clock_hertz", 2.6e9, 1.6e9, ("slow_device", "pstate")),
            "the GPUs' memory clock is 1.60 GHz, before 2.60",
        ),
    ],
)
def test_cause_and_its_sentence(
    stage: str, figure: str, before: float, now: float, cause: tuple[str, str], sentence: str
) -> None:
    """Both figures, of now and before, and what they are of."""
    facts = NFS | {"node_disk_busy_ratio": "nvme0n1"}
    found = explain_change(stage, 1.5, {figure: now}, {figure: before}, facts)

    assert found is not None
    assert ((found.cause, found.detail), found.sentence) == (cause, sentence)
    assert found.first_action == ""


@pytest.mark.parametrize(
    ("stage", "now", "before"),
    [
        pytest.param("data", {}, {}, id="nothing is known"),
        pytest.param("data", {"node_io_waiting_ratio": 0.9}, {}, id="no past"),
        pytest.param(
            *("data", {"node_io_waiting_ratio": 0.9}, {"node_io_waiting_ratio": 0.9}), id="as ever"
        ),
        pytest.param(
            *("sync", {"node_cpu_waiting_ratio": 0.9}, {"node_cpu_waiting_ratio": 0.1}),
            id="a wait for others is no work",
        ),
        pytest.param(
            *("data", {"sm_clock_hertz": 1e9}, {"sm_clock_hertz": 2e9}), id="not on the GPU"
        ),
        pytest.param(
            *("forward", {"sm_clock_hertz": 1.8e9}, {"sm_clock_hertz": 2e9}), id="a third of it"
        ),
    ],
)
def test_what_does_not_account_for_half_is_not_told(
    stage: str, now: dict[str, float], before: dict[str, float]
) -> None:
    assert explain_change(stage, 1.5, now, before, {}) is None


def test_rows_that_compare_a_node_with_its_past() -> None:
    """All that is of the node, and the GPUs' clocks; no sentence speaks of peers, who are late."""
    of_node = {row.figure for row in OVER_TIME if row.certainty is Certainty.NODE}

    assert not [row.says for row in OVER_TIME if "peers'" in row.says]
    assert len(of_node) == 13
