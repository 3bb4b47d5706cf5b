"""What a fault in a simulated fleet is: its place, its onset and its effects.

The effects are those that Rankskew has to find: on the ranks' steps, the GPUs and the host. Which
rank is late is known here; why is only to be seen in the metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

# A fault began this long before the simulation, unless it is given another onset.
EARLIER_SECONDS: Final = 300.0


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
    """A kind of fault. Rates are per second, on the rank, GPU or node that has it.

    *extra* is further time per step, by stage, as a share of a rank's usual own time: of one rank
    in turn if it *rotates*, of all ranks of a JOB, else of the ranks in its place. *gpu* replaces
    fields of GpuSample, *gpu_counts* and *costs* add to fields of GpuSample and Cost, *pressure* is
    the share of time in which tasks of the node wait for a resource, *port_waits* the time for
    which each of its ports waits to send, in relation to the time that it sends. *host_counts* adds
    to what HOST_COUNTS in host_files.py names, *cpu_clock* is the share that CPUs keep of their
    clock, *oom_kills* is a number. *state* is in what the main thread of a late rank spends that
    further time, *worker_state* the same of its loader's workers: one of THREAD_STATES, at *line*,
    or on the *mount* if it waits for a disk.
    """

    name: str
    about: str
    scope: Scope = Scope.GPU
    extra: Mapping[str, float] = field(default_factory=dict)
    rotates: bool = False
    silence: Silence | None = None
    stuck_in: str = "data"
    gpu: Mapping[str, Any] = field(default_factory=dict)
    gpu_counts: Mapping[str, float] = field(default_factory=dict)
    throttled_for: str = ""
    foreign_process: bool = False
    costs: Mapping[str, float] = field(default_factory=dict)
    saturated_workers: int = 0
    quota_throttled: float = 0.0
    gc_share: float = 0.0
    more_tokens: float = 0.0
    pressure: Mapping[str, float] = field(default_factory=dict)
    dropped_packets: float = 0.0
    host_counts: Mapping[str, float] = field(default_factory=dict)
    cpu_clock: float = 1.0
    oom_kills: int = 0
    resent_segments: float = 0.0
    port_waits: float = 0.0
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
        """Return whether it affects *gpu* of *node*, and the rank on it."""
        if self.kind.scope is Scope.JOB:
            return True
        return node == self.node and (self.kind.scope is Scope.NODE or gpu == self.gpu)
