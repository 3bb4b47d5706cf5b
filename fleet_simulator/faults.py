"""The faults that a simulated fleet can have: what each changes, where it is, and since when.

A fault has the effects that Rankskew must detect: on the ranks' steps, the GPUs and the host. The
simulator knows which rank is late; only the metrics show why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from exporter import durations
from exporter.errors import UsageError

# A fault begins this long before the simulation starts, unless its onset is set.
EARLIER_SECONDS: Final = 300.0
# Longer ago than any job began.
ALWAYS_SECONDS: Final = 86_400.0
# Leaves time to start Prometheus, which can only miss an exporter that it has scraped before.
SEEN_SECONDS: Final = 60.0


class Scope(StrEnum):
    """What a fault is placed on."""

    GPU = "gpu"
    NODE = "node"
    JOB = "job"


class Silence(StrEnum):
    """What keeps a job from finishing steps, or its ranks from being judged."""

    STUCK = "stuck"  # The rank stays in its stage; the others wait in sync.
    FROZEN = "frozen"  # The rank no longer reports; the others wait in sync.
    UNSEEN = "unseen"  # The ranks of the node have never reported.
    UNPROBED = "unprobed"  # The ranks run without the probe.
    UNTIMED = "untimed"  # No wait in collectives is measured.
    UNJOINED = "unjoined"  # The ranks do not compare their steps.
    OFF = "off"  # The operator has turned the probes off.
    STARTING = "starting"  # No rank has finished a step.
    FINISHED = "finished"  # All ranks have ended cleanly.
    DOWN = "down"  # The exporter of the node does not answer.


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault; rates are per second, on the rank, GPU or node that has the fault.

    *extra* is additional time per step, by stage, as a share of a rank's usual own time. One rank
    in turn takes it if the fault *rotates*, every rank if the scope is JOB, else the ranks where
    the fault is. With *every_steps* it comes all at once after so many steps, in one stage, and
    *extra* is the mean. *gpu* replaces fields of GpuSample. *gpu_counts*, *costs* and *host_counts*
    add to fields of GpuSample, fields of Cost and HOST_COUNTS in hardware.py. *cpu_clock* is the
    share of their clock that CPUs keep; *oom_kills* is a count. *state* is how a late rank's main
    thread spends the additional time, *worker_state* how its loader's workers do: each is one of
    THREAD_STATES, at *line*, or on *mount* while waiting for a disk.
    """

    name: str
    about: str
    scope: Scope = Scope.GPU
    extra: Mapping[str, float] = field(default_factory=dict)
    rotates: bool = False
    every_steps: int = 0
    silence: Silence | None = None
    stuck_in: str = "data"
    gpu: Mapping[str, Any] = field(default_factory=dict)
    gpu_counts: Mapping[str, Any] = field(default_factory=dict)
    foreign_process: bool = False
    costs: Mapping[str, float] = field(default_factory=dict)
    saturated_workers: int = 0
    quota_throttled: float = 0.0
    gc_share: float = 0.0
    more_tokens: float = 0.0
    host_counts: Mapping[str, float] = field(default_factory=dict)
    cpu_clock: float = 1.0
    oom_kills: int = 0
    port_gigabits: int | None = None
    line: str = ""
    state: str = "running"
    worker_state: str = ""
    mount: str = ""
    begins_seconds: float = -EARLIER_SECONDS

    @property
    def slows_all(self) -> bool:
        """Return whether all ranks of the job become slower, so that none of them is late."""
        return self.scope is Scope.JOB and bool(self.extra) and not self.rotates


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A fault in its place: *node* of the fleet and *gpu* of the node, both from 0.

    *begins_seconds* counts from the start of the simulation and may be negative.
    """

    kind: Kind
    node: int = 0
    gpu: int = 0
    begins_seconds: float = -EARLIER_SECONDS

    def has(self, node: int, gpu: int) -> bool:
        """Return whether the fault affects *gpu* of *node*, and the rank on that GPU."""
        if self.kind.scope is Scope.JOB:
            return True
        return node == self.node and (self.kind.scope is Scope.NODE or gpu == self.gpu)


def _always(name: str, about: str, scope: Scope, silence: Silence, **more: Any) -> Kind:
    """Return a kind of fault that the job has had since it began."""
    return Kind(name, about, scope, silence=silence, begins_seconds=-ALWAYS_SECONDS, **more)


# fmt: off
HOT: Final = MappingProxyType({
    "sm_clock_megahertz": 1_410, "gpu_temperature_celsius": 87, "memory_temperature_celsius": 95,
    "throttle_reasons": 0x20, "power_milliwatts": 430_000,
})
IDLE: Final = MappingProxyType({"gpu_busy_percent": 61.0, "sm_active_percent": 47.0})
# A new kind is a row here; the tour has a job for each.
KINDS: Final = (
    # Faults that make ranks late: each adds time to their steps.
    Kind("loader", "the DataLoader workers of a rank are too slow", extra={"data": 0.35}, gpu=IDLE,
         saturated_workers=2, line="TokenDataset.__getitem__ (corpus.py:41)", state="pipe",
         worker_state="running"),
    Kind("storage", "a rank reads its samples from storage, its peers from memory",
         extra={"data": 0.3}, gpu=IDLE, costs={"read_bytes": 240e6, "major_faults": 40.0},
         line="MemmapCorpus.read (corpus.py:88)", state="disk"),
    Kind("thermal", "a GPU is too hot and lowers its clock",
         extra={"forward": 0.1, "backward": 0.2, "optimizer": 0.02}, gpu=HOT,
         gpu_counts={"throttle_seconds": {"sw_thermal_slowdown": 0.8}}, state="gpu"),
    Kind("pcie", "a GPU's PCIe link has 4 of its 16 lanes", extra={"h2d": 0.15},
         gpu={"pcie_link_width": 4, "pcie_receive_bytes_per_second": 0.9e9},
         gpu_counts={"pcie_replays": 2.0}, state="gpu"),
    Kind("aer", "packets on a GPU's PCIe link are damaged and sent again", extra={"h2d": 0.15},
         gpu_counts={"pcie_errors": 30.0, "pcie_replays": 30.0}, state="gpu"),
    Kind("weaklink", "an NVLink of a GPU retransmits packets",
         extra={"forward": 0.08, "backward": 0.16},
         state="gpu",
         gpu_counts={"nvlink_errors": {"replay": 12.0}, "nvlink_link_errors": {"11": 12.0}}),
    Kind("pstate", "a GPU stays in a performance state with a slower memory",
         extra={"forward": 0.08, "backward": 0.16, "optimizer": 0.03},
         gpu={"performance_state": 2, "memory_clock_megahertz": 1_593}, state="gpu"),
    Kind("decoder", "a rank decodes its images on the GPU, and the decoder is too slow",
         extra={"data": 0.3}, gpu=MappingProxyType({**IDLE, "decoder_busy_percent": 98.0}),
         state="gpu"),
    Kind("foreign", "a foreign process runs on a GPU", extra={"forward": 0.12, "backward": 0.18},
         foreign_process=True, state="gpu"),
    Kind("cpu", "a rank uses up the CPU quota of its cgroup",
         extra={"data": 0.12, "forward": 0.16}, quota_throttled=0.7),
    Kind("gc", "garbage collection pauses a rank", extra={"other": 0.2}, gc_share=0.2,
         line="Cache.put (metrics.py:17)"),
    Kind("batches", "a rank gets longer samples than its peers",
         extra={"forward": 0.1, "backward": 0.2}, more_tokens=0.3, state="gpu"),
    Kind("checkpoint", "a rank alone writes checkpoints", extra={"checkpoint": 0.25},
         line="save (checkpoint.py:112)", state="disk"),
    Kind("sleep", "the dataset of a rank sleeps", extra={"data": 0.3}, gpu=IDLE, state="sleep",
         line="Corpus.__getitem__ (corpus.py:41)"),
    Kind("lock", "a rank waits for a lock while it logs", extra={"other": 0.25}, gpu=IDLE,
         state="lock", line="Metrics.flush (metrics.py:52)"),
    Kind("worker", "the DataLoader workers of a rank wait for a server", extra={"data": 0.3},
         gpu=IDLE, state="pipe", worker_state="socket",
         line="RemoteCorpus.__getitem__ (remote.py:27)"),
    Kind("mount", "a rank reads its samples through a slow mount", extra={"data": 0.3}, gpu=IDLE,
         state="disk", mount="/mnt/corpus (fuse.sshfs)", line="MemmapCorpus.read (corpus.py:88)"),
    Kind("node", "other work takes the CPUs of a node, so all of its ranks are late", Scope.NODE,
         extra={"data": 0.06, "forward": 0.14},
         host_counts={"cpu_pressure_microseconds": 600_000.0}),
    Kind("network", "the network device of a node drops packets, so all of its ranks are late",
         Scope.NODE, extra={"data": 0.05, "forward": 0.15}, host_counts={"dropped_packets": 40.0},
         state="gpu"),
    Kind("disk", "a disk of a node is slow, so all of its ranks get their samples late",
         Scope.NODE, extra={"data": 0.25},
         host_counts={"disk_milliseconds": 700.0, "disk_busy_milliseconds": 850.0}, state="disk",
         mount="/data (ext4)"),
    Kind("nfs", "the NFS server answers a node slowly, so all of its ranks get their samples late",
         Scope.NODE, extra={"data": 0.25}, host_counts={"nfs_milliseconds": 3_000.0}, state="disk",
         mount="/data (nfs4)"),
    Kind("lustre", "Lustre answers a node slowly, so all of its ranks get their samples late",
         Scope.NODE, extra={"data": 0.25}, host_counts={"lustre_milliseconds": 3_000.0},
         state="disk", mount="/scratch (lustre)"),
    Kind("cpuheat", "heat throttles the CPUs of a node, so all of its ranks are late", Scope.NODE,
         extra={"data": 0.05, "forward": 0.15}, host_counts={"throttled_milliseconds": 600.0},
         cpu_clock=0.6),
    Kind("cpuclock",
         "a power profile lowers the clock of a node's CPUs, so all of its ranks are late",
         Scope.NODE, extra={"data": 0.05, "forward": 0.15}, cpu_clock=0.4),
    Kind("numa", "a NUMA node is full, so the ranks get memory of the other one", Scope.NODE,
         extra={"data": 0.04, "forward": 0.12}, host_counts={"numa_misses": 50_000.0}),
    Kind("congestion", "the InfiniBand ports of a node wait to send, so all of its ranks are late",
         Scope.NODE, extra={"data": 0.05, "forward": 0.15}, host_counts={"wait_ticks": 400e6},
         state="gpu"),
    Kind("retransmits", "TCP of a node sends lost segments again, so all of its ranks are late",
         Scope.NODE, extra={"data": 0.15, "forward": 0.05}, host_counts={"resent_segments": 60.0},
         state="socket"),
    Kind("slowport",
         "a port of a node has fallen back to a lower speed, so all of its ranks are late",
         Scope.NODE, extra={"data": 0.05, "forward": 0.15}, port_gigabits=100, state="gpu"),
    Kind("rotating", "a different rank is late in each step, as with uneven sequence lengths",
         Scope.JOB, extra={"forward": 0.15, "backward": 0.3}, rotates=True),
    Kind("pause", "about once a minute a rank stops for ten seconds, each time another one",
         Scope.JOB, extra={"data": 0.25}, rotates=True, every_steps=80),
    # Faults that make no rank late.
    Kind("hang", "a rank is stuck loading data; the others wait", silence=Silence.STUCK),
    Kind("frozen", "a rank's process is stopped; the others wait", silence=Silence.FROZEN),
    Kind("oom", "the kernel kills a rank's process because memory has run out; the others wait",
         silence=Silence.FROZEN, oom_kills=1, begins_seconds=SEEN_SECONDS),
    Kind("lost", "a GPU falls off the bus (XID 79); the others wait", silence=Silence.STUCK,
         stuck_in="backward", gpu={"up": False, "xid_events": 1, "xid_errors": {"79": 1}}),
    Kind("deadlock", "all ranks wait in a collective", Scope.JOB, silence=Silence.STUCK,
         stuck_in="sync"),
    Kind("killed", "all processes of the job have died", Scope.JOB, silence=Silence.FROZEN),
    Kind("memory", "a GPU's memory has uncorrected errors; no rank is late",
         gpu={"row_remap_pending": 1},
         gpu_counts={"ecc_uncorrected_errors": 0.1, "remapped_rows_uncorrected": 0.05}),
    Kind("nvlink", "NVLinks of a GPU are down; no rank is late",
         gpu={"nvlink_links_up": 12, "nvlink_link_states": {"4": 0, "5": 0}},
         gpu_counts={"nvlink_errors": {"crc": 0.5}}),
    Kind("filer",
         "the file server becomes slow for all nodes: the whole job does, and no rank is late",
         Scope.JOB, extra={"data": 0.12}, host_counts={"nfs_milliseconds": 3_000.0}),
    Kind("dry", "the loaders of all ranks run dry after every 16 steps; no rank is late",
         Scope.JOB, extra={"data": 0.5}, every_steps=16, gpu=IDLE),
    _always("missing", "the ranks of a node never report", Scope.NODE, Silence.UNSEEN),
    _always("nosync", "no wait in collectives is measured", Scope.JOB, Silence.UNTIMED),
    _always("nojoin", "the ranks do not compare their steps", Scope.JOB, Silence.UNJOINED),
    _always("off", "the operator has turned the probes off", Scope.JOB, Silence.OFF),
    _always("starting", "no rank has finished a step", Scope.JOB, Silence.STARTING),
    Kind("finished", "all ranks have ended", Scope.JOB, silence=Silence.FINISHED),
    _always("noprobe", "the ranks run without the probe", Scope.JOB, Silence.UNPROBED),
    _always("stuck", "a kernel hangs on each GPU of a job without the probe", Scope.JOB,
            Silence.UNPROBED, gpu={"gpu_busy_percent": 100.0, "sm_active_percent": 25.0,
                                   "tensor_active_percent": 0.0, "power_milliwatts": 150_000}),
    _always("unused", "no process runs on a GPU that a job without the probe holds", Scope.GPU,
            Silence.UNPROBED, gpu={"processes": (), "memory_used_bytes": 0, "gpu_busy_percent": 0.0,
                                   "sm_active_percent": 0.0, "power_milliwatts": 75_000}),
    Kind("down", "the exporter of a node stops answering", Scope.NODE, silence=Silence.DOWN,
         begins_seconds=SEEN_SECONDS),
)
# fmt: on
BY_NAME: Final = {kind.name: kind for kind in KINDS}


def parse(text: str) -> PlantedFault:
    """Return the fault that *text* describes, as in `thermal:node=7,gpu=3,after=30s`.

    Raises UsageError if *text* describes no fault.
    """
    name, _, places = text.partition(":")
    kind = BY_NAME.get(name)
    if kind is None:
        raise UsageError(f"there is no fault {name!r}; choose one of {', '.join(BY_NAME)}")
    options = dict(_option(text, part) for part in places.split(",") if part)
    after = options.pop("after", kind.begins_seconds)
    return PlantedFault(kind, int(options.pop("node", 0)), int(options.pop("gpu", 0)), after)


def _option(text: str, part: str) -> tuple[str, float]:
    name, _, value = part.partition("=")
    if name in ("node", "gpu") and value.isascii() and value.isdigit():
        return name, int(value)
    if name == "after":
        try:
            return name, durations.parse(value)
        except ValueError as error:
            raise UsageError(f"{text}: {error}") from error
    raise UsageError(f"{text}: expected KIND:node=I,gpu=J,after=30s, not {part!r}")
