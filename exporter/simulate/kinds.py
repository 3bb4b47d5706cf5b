"""The kinds of fault that a simulated fleet can have: one entry each."""

from types import MappingProxyType
from typing import Final

from exporter.simulate.faults import Kind, Scope, Silence

# Longer ago than any job began.
ALWAYS_SECONDS: Final = 86_400.0
# Prometheus must have seen an exporter before it can miss it, and whoever starts it takes a while.
SEEN_SECONDS: Final = 60.0

HOT: Final = MappingProxyType(
    {
        "sm_clock_megahertz": 1_410,
        "gpu_temperature_celsius": 87,
        "memory_temperature_celsius": 95,
        "temperature_margin_celsius": 0,
        "throttle_reasons": 0x20,
        "power_milliwatts": 430_000,
    }
)
IDLE: Final = MappingProxyType({"gpu_busy_percent": 61.0, "sm_active_percent": 47.0})
FELL_OFF: Final = MappingProxyType({"up": False, "xid_events": 1, "xid_errors": {"79": 1}})

# A new kind is an entry here; the tour has a job for each.
KINDS: Final = (
    Kind(
        "loader",
        "the DataLoader workers of a rank are too slow",
        extra={"data": 0.35},
        gpu=IDLE,
        saturated_workers=2,
        line="TokenDataset.__getitem__ (corpus.py:41)",
    ),
    Kind(
        "storage",
        "a rank reads its samples from storage, its peers from memory",
        extra={"data": 0.3},
        gpu=IDLE,
        costs={"read_bytes": 240e6, "major_faults": 40.0},
        line="MemmapCorpus.read (corpus.py:88)",
    ),
    Kind(
        "thermal",
        "a GPU is too hot and lowers its clock",
        extra={"forward": 0.1, "backward": 0.2, "optimizer": 0.02},
        gpu=HOT,
        throttled_for="sw_thermal_slowdown",
    ),
    Kind(
        "pcie",
        "a GPU's PCIe link has 4 of its 16 lanes",
        extra={"h2d": 0.15},
        gpu={"pcie_link_width": 4, "pcie_receive_bytes_per_second": 0.9e9},
        gpu_counts={"pcie_replays": 2.0},
    ),
    Kind(
        "aer",
        "packets on a GPU's PCIe link are damaged and sent again",
        extra={"h2d": 0.15},
        gpu_counts={"pcie_errors": 30.0, "pcie_replays": 30.0},
    ),
    Kind(
        "weaklink",
        "an NVLink of a GPU retransmits packets",
        extra={"forward": 0.08, "backward": 0.16},
        gpu_counts={"nvlink_errors": 4.0, "nvlink_link_errors": 12.0},
    ),
    Kind(
        "pstate",
        "a GPU stays in a performance state with a slower memory",
        extra={"forward": 0.08, "backward": 0.16, "optimizer": 0.03},
        gpu={"performance_state": 2, "memory_clock_megahertz": 1_593},
    ),
    Kind(
        "decoder",
        "a rank decodes its images on the GPU, and the decoder is too slow",
        extra={"data": 0.3},
        gpu=MappingProxyType({**IDLE, "decoder_busy_percent": 98.0}),
    ),
    Kind(
        "foreign",
        "a foreign process runs on a GPU",
        extra={"forward": 0.12, "backward": 0.18},
        foreign_process=True,
    ),
    Kind(
        "cpu",
        "a rank uses up the CPU quota of its cgroup",
        extra={"data": 0.12, "forward": 0.16},
        quota_throttled=0.7,
    ),
    Kind(
        "gc",
        "garbage collection pauses a rank",
        extra={"other": 0.2},
        gc_share=0.2,
        line="Cache.put (metrics.py:17)",
    ),
    Kind(
        "batches",
        "a rank gets longer samples than its peers",
        extra={"forward": 0.1, "backward": 0.2},
        more_tokens=0.3,
    ),
    Kind(
        "checkpoint",
        "a rank alone writes checkpoints",
        extra={"checkpoint": 0.25},
        costs={"written_bytes": 300e6},
        line="save (checkpoint.py:112)",
    ),
    Kind(
        "node",
        "other work takes the CPUs of a node, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.06, "forward": 0.14},
        pressure={"cpu": 0.6},
    ),
    Kind(
        "network",
        "the network device of a node drops packets, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.05, "forward": 0.15},
        dropped_packets=40.0,
    ),
    Kind(
        "disk",
        "a disk of a node is slow, so all of its ranks get their samples late",
        Scope.NODE,
        extra={"data": 0.25},
        host_counts={"disk_milliseconds": 700.0, "disk_busy_milliseconds": 850.0},
    ),
    Kind(
        "nfs",
        "the NFS server answers a node slowly, so all of its ranks get their samples late",
        Scope.NODE,
        extra={"data": 0.25},
        host_counts={"nfs_milliseconds": 3_000.0},
    ),
    Kind(
        "lustre",
        "Lustre answers a node slowly, so all of its ranks get their samples late",
        Scope.NODE,
        extra={"data": 0.25},
        host_counts={"lustre_milliseconds": 3_000.0},
    ),
    Kind(
        "cpuheat",
        "heat throttles the CPUs of a node, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.05, "forward": 0.15},
        host_counts={"throttled_milliseconds": 600.0},
        cpu_clock=0.6,
    ),
    Kind(
        "cpuclock",
        "a power profile lowers the clock of a node's CPUs, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.05, "forward": 0.15},
        cpu_clock=0.4,
    ),
    Kind(
        "numa",
        "a NUMA node is full, so the ranks get memory of the other one",
        Scope.NODE,
        extra={"data": 0.04, "forward": 0.12},
        host_counts={"numa_misses": 50_000.0},
    ),
    Kind(
        "congestion",
        "the InfiniBand ports of a node wait to send, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.05, "forward": 0.15},
        port_waits=0.4,
    ),
    Kind(
        "retransmits",
        "TCP of a node sends lost segments again, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.15, "forward": 0.05},
        resent_segments=60.0,
    ),
    Kind(
        "slowport",
        "a port of a node has fallen back to a lower speed, so all of its ranks are late",
        Scope.NODE,
        extra={"data": 0.05, "forward": 0.15},
        port_gigabits=100,
    ),
    Kind(
        "rotating",
        "a different rank is late in each step, as with uneven sequence lengths",
        Scope.JOB,
        extra={"forward": 0.15, "backward": 0.3},
        rotates=True,
    ),
    Kind("hang", "a rank is stuck loading data; the others wait", silence=Silence.STUCK),
    Kind("frozen", "a rank's process is stopped; the others wait", silence=Silence.FROZEN),
    Kind(
        "oom",
        "the kernel kills a rank's process because memory has run out; the others wait",
        silence=Silence.FROZEN,
        oom_kills=1,
        begins_seconds=SEEN_SECONDS,
    ),
    Kind(
        "lost",
        "a GPU falls off the bus (XID 79); the others wait",
        silence=Silence.STUCK,
        stuck_in="backward",
        gpu=FELL_OFF,
    ),
    Kind(
        "deadlock",
        "all ranks wait in a collective",
        Scope.JOB,
        silence=Silence.STUCK,
        stuck_in="sync",
    ),
    Kind("killed", "all processes of the job have died", Scope.JOB, silence=Silence.FROZEN),
    Kind(
        "memory",
        "a GPU's memory has uncorrected errors; no rank is late",
        gpu={"row_remap_pending": 1},
        gpu_counts={"ecc_uncorrected_errors": 0.1, "remapped_rows_uncorrected": 0.05},
    ),
    Kind(
        "nvlink",
        "NVLinks of a GPU are down; no rank is late",
        gpu={"nvlink_links_up": 12, "nvlink_link_states": {"4": 0, "5": 0}},
        gpu_counts={"nvlink_errors": 0.5},
    ),
    Kind(
        "missing",
        "the ranks of a node never report",
        Scope.NODE,
        silence=Silence.UNSEEN,
        begins_seconds=-ALWAYS_SECONDS,
    ),
    Kind(
        "nosync",
        "no wait in collectives is measured",
        Scope.JOB,
        silence=Silence.UNTIMED,
        begins_seconds=-ALWAYS_SECONDS,
    ),
    Kind(
        "nojoin",
        "the ranks do not compare their steps",
        Scope.JOB,
        silence=Silence.UNJOINED,
        begins_seconds=-ALWAYS_SECONDS,
    ),
    Kind(
        "off",
        "the operator has turned the probes off",
        Scope.JOB,
        silence=Silence.OFF,
        begins_seconds=-ALWAYS_SECONDS,
    ),
    Kind(
        "starting",
        "no rank has finished a step",
        Scope.JOB,
        silence=Silence.STARTING,
        begins_seconds=-ALWAYS_SECONDS,
    ),
    Kind("finished", "all ranks have ended", Scope.JOB, silence=Silence.FINISHED),
    Kind(
        "noprobe",
        "the ranks run without the probe",
        Scope.JOB,
        silence=Silence.UNPROBED,
        begins_seconds=-ALWAYS_SECONDS,
    ),
    Kind(
        "down",
        "the exporter of a node stops answering",
        Scope.NODE,
        silence=Silence.DOWN,
        begins_seconds=SEEN_SECONDS,
    ),
)
BY_NAME: Final = {kind.name: kind for kind in KINDS}
