"""Which jobs a simulated fleet runs, on which nodes and with which faults."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exporter.errors import UsageError
from fleet_simulator.faults import BY_NAME, KINDS, PlantedFault, Scope, Silence

# The tour: one small job for each kind of fault.
TOUR_NODES: Final = 2
TOUR_GPUS: Final = 4
HEALTHY: Final = "healthy"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job on *nodes* nodes of the fleet, starting at *first_node*, with *gpus* ranks on each."""

    job_id: str
    first_node: int
    nodes: int
    gpus: int
    faults: tuple[PlantedFault, ...] = ()

    @property
    def ranks(self) -> int:
        """Return how many ranks it has."""
        return self.nodes * self.gpus

    def place(self, rank: int) -> tuple[int, int]:
        """Return the node of the fleet and the GPU on which *rank* runs."""
        return self.first_node + rank // self.gpus, rank % self.gpus


def node_name(node: int) -> str:
    """Return the name of a node of the fleet."""
    return f"sim-{node:02}"


def tour(gpus: int = TOUR_GPUS) -> list[JobPlan]:
    """Return a healthy job, and one for each kind of fault, named after it.

    The job without a join also has a late rank, to show what can be reported without a join.
    """
    plans = [JobPlan(HEALTHY, 0, TOUR_NODES, gpus)]
    for kind in KINDS:
        first = len(plans) * TOUR_NODES
        kinds = [kind, BY_NAME["loader"]] if kind.silence is Silence.UNJOINED else [kind]
        node, gpu = first + TOUR_NODES - 1, min(2, gpus - 1)
        faults = tuple(
            PlantedFault(each, node, gpu if each.scope is Scope.GPU else 0, each.begins_seconds)
            for each in kinds
        )
        plans.append(JobPlan(kind.name, first, TOUR_NODES, gpus, faults))
    return plans


def equal_jobs(nodes: int, gpus: int, jobs: int, faults: Sequence[PlantedFault]) -> list[JobPlan]:
    """Return *jobs* equal jobs on *nodes* nodes, each with the *faults* on its nodes.

    Raises UsageError if that is impossible.
    """
    if nodes % jobs:
        raise UsageError(f"{nodes} nodes cannot be divided among {jobs} jobs: choose a divisor")
    for fault in faults:
        if fault.node >= nodes or fault.gpu >= gpus:
            raise UsageError(
                f"{fault.kind.name}: there is no GPU {fault.gpu} on node {fault.node}; nodes are "
                f"0 to {nodes - 1} and GPUs 0 to {gpus - 1}"
            )
    each, digits = nodes // jobs, len(str(jobs - 1))
    return [
        JobPlan(
            "sim" if jobs == 1 else f"sim-{n:0{digits}}",
            n * each,
            each,
            gpus,
            tuple(fault for fault in faults if fault.node // each == n),
        )
        for n in range(jobs)
    ]
