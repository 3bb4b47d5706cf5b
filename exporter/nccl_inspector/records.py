"""One line of NCCL Inspector: a collective that a process has finished.

The format is that of ext-profiler/inspector in NCCL 2.28 ("v4.0"); what later ones add is ignored.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Final

# NCCL's names, and ours; the label has no other value.
COLLECTIVES: Final = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "all_to_all",
}
GIGA: Final = 1e9
# Faster than any link: a figure above it is none.
MOST_BYTES_PER_SECOND: Final = 1e15


@dataclass(frozen=True, slots=True)
class Record:
    """A *collective* of the process *pid* on *host*: it took *seconds* at this bus bandwidth.

    The bandwidth is in nccl-tests' convention, so that it can be compared across collectives and
    numbers of ranks.
    """

    host: str
    pid: int
    collective: str
    seconds: float
    bytes_per_second: float


def parse(line: bytes) -> Record | None:
    """Return what *line* says; None for one that was cut off, or is about something else."""
    try:
        said = json.loads(line)
        where, what = said["metadata"], said["coll_perf"]
        collective = COLLECTIVES.get(what["coll"])
        seconds = _number(what["coll_exec_time_us"]) / 1e6
        speed = _number(what["coll_busbw_gbs"]) * GIGA
        host, pid = str(where["hostname"]), int(where["pid"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if collective is None or not (seconds > 0 and 0 <= speed <= MOST_BYTES_PER_SECOND):
        return None
    return Record(host, pid, collective, seconds, speed)


def _number(told: Any) -> float:
    number = float(told)
    if not math.isfinite(number):
        raise ValueError("no number")
    return number
