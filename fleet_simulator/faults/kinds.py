"""The kinds of fault that a simulated fleet can have: one entry each."""

from types import MappingProxyType
from typing import Final

from fleet_simulator.faults.fault import Kind, Scope, Silence
from fleet_simulator.faults.late_faults import LATE_FAULTS

# Longer ago than any job began.
ALWAYS_SECONDS: Final = 86_400.0
# Prometheus must have seen an exporter before it can miss it, and whoever starts it takes a while.
SEEN_SECONDS: Final = 60.0

FELL_OFF: Final = MappingProxyType({"up": False, "xid_events": 1, "xid_errors": {"79": 1}})


def _always(name: str, about: str, scope: Scope, silence: Silence) -> Kind:
    """Return a kind that the job has had from its beginning on."""
    return Kind(name, about, scope, silence=silence, begins_seconds=-ALWAYS_SECONDS)


# A new kind is an entry here, or among those that make ranks late; the tour has a job for each.
KINDS: Final = (
    *LATE_FAULTS,
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
        "filer",
        "the file server becomes slow for all nodes: the whole job does, and no rank is late",
        Scope.JOB,
        extra={"data": 0.12},
        host_counts={"nfs_milliseconds": 3_000.0},
    ),
    _always("missing", "the ranks of a node never report", Scope.NODE, Silence.UNSEEN),
    _always("nosync", "no wait in collectives is measured", Scope.JOB, Silence.UNTIMED),
    _always("nojoin", "the ranks do not compare their steps", Scope.JOB, Silence.UNJOINED),
    _always("off", "the operator has turned the probes off", Scope.JOB, Silence.OFF),
    _always("starting", "no rank has finished a step", Scope.JOB, Silence.STARTING),
    Kind("finished", "all ranks have ended", Scope.JOB, silence=Silence.FINISHED),
    _always("noprobe", "the ranks run without the probe", Scope.JOB, Silence.UNPROBED),
    Kind(
        "down",
        "the exporter of a node stops answering",
        Scope.NODE,
        silence=Silence.DOWN,
        begins_seconds=SEEN_SECONDS,
    ),
)
BY_NAME: Final = {kind.name: kind for kind in KINDS}
