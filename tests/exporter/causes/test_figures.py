"""A figure that its peers do not have tells the cause, in a sentence."""

import pytest

from exporter.causes.model import Evidence
from rank_probe.judge.verdict import NODE
from tests.exporter.causes.planted import evidence, found, lateness, named, peers, why

# A cause, the figures that it is known by, and the sentence.
TOLD = """
slow_device clocks sm_clock_hertz=1.41e9 gpu_temperature_celsius=87
    its SM clock is 1.41 GHz, its peers' 1.96: too hot, 87 °C
slow_device pstate memory_clock_hertz=1.593e9
    its GPU's memory clock is 1.59 GHz, its peers' 2.63 (performance state P2)
slow_device memory gpu_memory_faults=2
    its GPU's count of memory faults is 2, its peers' 0
slow_device pcie_link pcie_link_bytes_per_second=15.8e9
    its GPU's PCIe link runs at 15.8 GB/s, its peers' at 63.3
slow_device pcie_errors pcie_errors_per_second=30
    its GPU's PCIe link has an error rate of 30 a second, its peers' 0
slow_device nvlink nvlink_links_up=17
    its GPU has 17 NVLinks up, its peers' 18
slow_device nvlink_errors nvlink_errors_per_second=12
    its GPU's NVLinks have an error rate of 12 a second, its peers' 0
foreign_process - gpu_foreign_processes=1
    it shares its GPU with 1 foreign process (python, PID 31337 of alice), its peers with 0
cpu run_queue main_run_queue_ratio=0.34
    its main thread waits for a CPU 34 % of the time, its peers' 0.5 %
cpu throttled cpu_quota_throttled_ratio=0.9
    its CPU quota is used up in 90 % of its periods, its peers' in 0.2 %
cpu numa cpus_near_gpu_ratio=0
    0 % of its CPUs are on its GPU's NUMA node, 100 % of its peers'
cpu thermal node_cpu_throttled_ratio=0.6 node_cpu_clock_hertz=1.86e9
    its node's CPUs are throttled by heat 60 % of the time, its peers' 0 %
cpu frequency node_cpu_clock_hertz=1.24e9
    its node's busy CPUs run at 1.24 GHz, its peers' at 3.12
cpu steal node_steal_cpus=4
    the hypervisor steals 4 CPUs from its node, 0 from its peers'
cpu node node_cpu_waiting_ratio=0.61
    tasks on its node wait for a CPU 61 % of the time, its peers' 1 %
cpu numa_miss node_numa_misses_per_second=50000
    its node's NUMA miss rate is 50,000 a second, its peers' 0
network speed node_network_link_bytes_per_second=12.5e9
    a network port of its node, mlx5_0, runs at 12.5 GB/s, its peers' at 50.2
network errors node_network_errors_per_second=40
    its node's network, mlx5_0, has an error rate of 40 a second, its peers' 0
network retransmits node_tcp_retransmitted_ratio=0.029
    its node retransmits 2.9 % of its TCP segments, its peers' 0.01 %
network congestion node_network_waiting_ratio=0.41
    its node's network ports, mlx5_0, wait to send 41 % of the time, its peers' 1 %
gc - gc_ratio=0.2
    it spends 20 % of the time collecting garbage, its peers 0.2 %
uneven_batches - tokens_per_step=12288
    it processes 12,288 tokens a step, its peers 8,151
input reads read_bytes_per_second=241e6
    it reads 241 MB/s from storage, its peers 0.99
input reads major_faults_per_second=140
    its major page fault rate is 140 a second, its peers' 0.1
input reads io_waiting_ratio=0.41
    its processes wait for storage 41 % of the time, its peers' 1 %
input decoder gpu_decoder_ratio=0.98
    its GPU's decoder is busy 98 % of the time, its peers' 0 %
input workers saturated_workers=2
    2 of its loader's workers cannot keep up (running `decode (a.py:41)`), 0 of its peers'
input disk node_disk_busy_ratio=0.96
    a disk of its node, nvme0n1, is busy 96 % of the time, its peers' 11 %
input disk node_disk_read_seconds=0.05
    a read from a disk of its node, nvme0n1, takes 50 ms, on its peers' nodes 0.4
input nfs node_mount_operation_seconds=0.031
    an operation on a file system, `/data (nfs4)`, takes 31 ms, on its peers' nodes 0.8
input storage node_io_waiting_ratio=0.5
    tasks on its node wait for storage 50 % of the time, its peers' 1 %
""".strip().splitlines()
FACTS = {
    "sm_clock_hertz": "too hot",
    "memory_clock_hertz": "P2",
    "gpu_foreign_processes": "python, PID 31337 of alice",
    "saturated_workers": "decode (a.py:41)",
    "node_disk_busy_ratio": "nvme0n1",
    "node_disk_read_seconds": "nvme0n1",
    "node_mount_operation_seconds": "/data (nfs4)",
} | dict.fromkeys(
    (
        "node_network_link_bytes_per_second",
        "node_network_errors_per_second",
        "node_network_waiting_ratio",
    ),
    "mlx5_0",
)
EXTRA = {"input": {"data": 0.25}, "gc": {"other": 0.2}}
ON_GPU = {"forward": 0.1, "backward": 0.2}


def told(known_by: str, says: str) -> tuple[tuple[str, str], dict[str, float], str]:
    """Return a cause, the figures that tell it, and its sentence."""
    cause, detail, *figures = known_by.split()
    pairs = (each.split("=") for each in figures)
    return (cause, detail.strip("-")), {name: float(value) for name, value in pairs}, says.strip()


CASES = [told(*each) for each in zip(TOLD[::2], TOLD[1::2], strict=True)]


@pytest.mark.parametrize(("cause", "changes", "says"), CASES)
def test_figure_tells_the_cause(
    cause: tuple[str, str], changes: dict[str, float], says: str
) -> None:
    """Unless its peers have the same; a node's only if all its ranks are late, or it has one.

    Also if nobody measured the stages: the judge says in which of them it is late.
    """
    of_node = next(iter(changes)).startswith("node_")
    extra = EXTRA.get(cause[0], ON_GPU)
    said = found(extra, changes, facts=FACTS, of_node=of_node)

    assert (named(said), said.sentence) == (cause, says)
    assert said.value == changes[said.figure]
    assert found(extra, changes, usual=dict(changes), of_node=of_node).cause == "unknown"
    known = evidence(extra, changes, facts=FACTS)
    bare = {name: known.figures[name] for name in known.figures if "_seconds" not in name}
    unmeasured = Evidence({**bare, **changes}, facts=FACTS)
    assert named(why(lateness(extra, NODE), unmeasured, peers())) == cause
    if of_node:
        assert found(extra, changes, facts=FACTS).cause == "unknown"
        assert named(why(lateness(extra, is_alone=True), known, peers())) == cause


def test_clock_that_explains_little_is_a_guess() -> None:
    """5 % of the clock are no third of its time, and a foreign process is told before it."""
    cause = found(ON_GPU, {"sm_clock_hertz": 1.85e9})
    both = {"sm_clock_hertz": 1.85e9, "gpu_foreign_processes": 1.0}

    assert cause.cause == "unknown"
    assert [(each.cause, each.detail) for each in cause.others] == [("slow_device", "clocks")]
    assert 0.1 < cause.others[0].share < 0.25
    assert found(ON_GPU, both).cause == "foreign_process"
    assert named(found(ON_GPU, both | {"sm_clock_hertz": 1.41e9})) == ("slow_device", "clocks")


def test_throttling_counts_where_no_clock_is_read() -> None:
    """A throttled GPU that has the clock of its peers is not slow."""
    changes = {"gpu_throttled_ratio": 0.8}
    cause = found(ON_GPU, changes, usual={"sm_clock_hertz": None})

    assert named(cause) == ("slow_device", "clocks")
    assert cause.sentence == "its GPU is throttled 80 % of the time, its peers' 0.5 %"
    assert found(ON_GPU, changes).cause == "unknown"


def test_clocks_of_no_peers_tell_nothing() -> None:
    """What is the usual clock? Faults can be told: a healthy GPU has none."""
    nobody = dict.fromkeys(("sm_clock_hertz", "gpu_foreign_processes"))

    assert found(ON_GPU, {"sm_clock_hertz": 1.41e9}, usual=nobody).cause == "unknown"
    assert found(ON_GPU, {"gpu_foreign_processes": 1.0}, usual=nobody).cause == "foreign_process"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        # A GPU that saves power lowers both clocks.
        ({"sm_clock_hertz": 1.2e9, "memory_clock_hertz": 1.593e9}, ("slow_device", "pstate")),
        # A slow port explains what is counted on it.
        (
            {"node_network_link_bytes_per_second": 12.5e9, "node_network_waiting_ratio": 0.41},
            ("network", "speed"),
        ),
    ],
)
def test_what_explains_the_other_is_told(changes: dict[str, float], cause: tuple[str, str]) -> None:
    """Of two figures that account for as much."""
    assert named(found(ON_GPU, changes, of_node=True)) == cause


def test_network_is_why_a_thread_waits_for_a_socket() -> None:
    """Though other ranks of the node, which use none, keep up."""
    states = [("data", "socket", 0.9, "fetch (corpus.py:12)")]
    lost = {"node_tcp_retransmitted_ratio": 0.05}

    assert named(found({"data": 0.3}, lost, states=states)) == ("network", "retransmits")
    assert named(found({"data": 0.3}, {}, states=states)) == ("code", "socket")
