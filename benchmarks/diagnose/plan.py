"""What `rankskew diagnose` has to say of each planted fault."""

from dataclasses import dataclass
from typing import Final

from benchmarks.accuracy.plan import HEALTHY, Segment

FOUND, BALANCED, CANNOT_TELL = 1, 0, 2
# The only late rank of each job of the tour, and the ranks of its node.
LATE_RANK: Final = 6
LATE_NODE: Final = (4, 5, 6, 7)


@dataclass(frozen=True)
class Expected:
    """What is right: any of *what* and of its *details*, a part of the *first* action's words.

    *ranks* that are none of them are wrong; empty or None: does not apply. A trace has no data on
    hardware: there *unknown* is a right cause too, because nothing else can be known.
    """

    status: int
    what: tuple[str, ...] = ()
    detail: str | None = None
    ranks: tuple[int, ...] = ()
    stage: str | None = None
    first: str = ""


def _late(what: str, detail: str, stage: str, first: str) -> Expected:
    return Expected(FOUND, (what,), detail, (LATE_RANK,), stage, first)


def _slow_node(what: str, detail: str, stage: str, first: str) -> Expected:
    return Expected(FOUND, (what,), detail, LATE_NODE, stage, first)


# By the job of the tour, which is named after its fault.
TOUR: Final = {
    "healthy": Expected(BALANCED),
    "loader": _late("input", "workers", "data", "pgrep -P 20006"),
    "storage": _late("input", "reads", "data", "iostat"),
    "thermal": _late("slow_device", "clocks", "backward", "CLOCK,PERFORMANCE,TEMPERATURE"),
    "pcie": _late("slow_device", "pcie_link", "h2d", "Link Info"),
    "aer": _late("slow_device", "pcie_errors", "h2d", "grep -i replay"),
    "weaklink": _late("slow_device", "nvlink_errors", "backward", "nvidia-smi nvlink -e"),
    "pstate": _late("slow_device", "pstate", "backward", "PERFORMANCE,CLOCK"),
    "decoder": _late("input", "decoder", "data", "nvidia-smi dmon"),
    "foreign": _late("foreign_process", "", "backward", "find its owner with `nvidia-smi -i"),
    "cpu": _late("cpu", "throttled", "forward", "raise the CPU limit"),
    "gc": _late("gc", "", "other", "py-spy dump --pid 20006"),
    "batches": _late("uneven_batches", "", "backward", "how long its samples are"),
    "checkpoint": _late("extra_duties", "checkpoint", "checkpoint", "py-spy dump --pid 20006"),
    "sleep": _late("code", "sleep", "data", "py-spy dump --pid 20006"),
    "lock": _late("code", "lock", "other", "py-spy dump --pid 20006"),
    "worker": _late("input", "worker_socket", "data", "pgrep -P 20006"),
    "mount": _late("input", "mount", "data", "py-spy dump --pid 20006"),
    "node": _slow_node("cpu", "node", "forward", "top"),
    "network": _slow_node("network", "errors", "forward", "ip -s link"),
    "disk": _slow_node("input", "disk", "data", "iostat"),
    "nfs": _slow_node("input", "nfs", "data", "nfsiostat"),
    "lustre": _slow_node("input", "lustre", "data", "lctl get_param"),
    "cpuheat": _slow_node("cpu", "thermal", "forward", "turbostat"),
    "cpuclock": _slow_node("cpu", "frequency", "forward", "scaling_governor"),
    "numa": _slow_node("cpu", "numa_miss", "forward", "numastat"),
    "congestion": _slow_node("network", "congestion", "forward", "port_xmit_wait"),
    "retransmits": _slow_node("network", "retransmits", "data", "ss -tinp"),
    "slowport": _slow_node("network", "speed", "forward", "ibstat"),
    "rotating": Expected(FOUND, ("rotating",), stage="backward", first="work of the ranks"),
    "hang": _late("hung", "", "data", "py-spy dump --pid 20006"),
    "frozen": _late("hung", "", "frozen", "py-spy dump --pid 20006"),
    "oom": _late("hung", "", "frozen", "py-spy dump --pid 20006"),
    "lost": _late("hung", "", "backward", "py-spy dump --pid 20006"),
    "deadlock": Expected(FOUND, ("hung_together",), first="py-spy dump"),
    "killed": Expected(FOUND, ("ranks_silent",), first="dmesg"),
    "memory": Expected(FOUND, ("gpu_memory",), ranks=(LATE_RANK,), first="ECC,ROW_REMAPPER"),
    "nvlink": Expected(FOUND, ("nvlink_down",), ranks=(LATE_RANK,), first="nvlink -s"),
    "filer": Expected(FOUND, ("slower",), stage="data", first="look at what began"),
    "missing": Expected(FOUND, ("ranks_without_probe",), ranks=LATE_NODE, first="environ"),
    "nosync": Expected(CANNOT_TELL, ("no_sync",), first="mark the collective"),
    "nojoin": _late("input", "workers", "data", "pgrep -P 20006"),
    "off": Expected(CANNOT_TELL, ("off",), first="rankskew control"),
    "starting": Expected(FOUND, ("slow_start",), first="py-spy dump"),
    "finished": Expected(CANNOT_TELL, ("finished",), first="--at"),
    "noprobe": Expected(CANNOT_TELL, ("no_probe",), first="rank_probe"),
    "down": Expected(FOUND, ("exporter_down",), first="systemctl status rankskew-exporter"),
}

# A trace tells that a rank has a duty of its own; of the other stages it cannot tell the cause.
OF_STAGE: Final = {"checkpoint": ("extra_duties", "py-spy"), "eval": ("extra_duties", "py-spy")}


def of_segment(segment: Segment) -> Expected:
    """Return what is right of a recorded *segment*."""
    if segment.fault in HEALTHY:
        return Expected(BALANCED)
    if segment.kind == "rotating":
        return Expected(FOUND, ("rotating",), stage=segment.stage, first="work of the ranks")
    late = segment.late()
    what, first = OF_STAGE.get(late[0][1], ("unknown", "py-spy"))
    return Expected(FOUND, (what,), None, tuple(rank for rank, _ in late), late[0][1], first)
