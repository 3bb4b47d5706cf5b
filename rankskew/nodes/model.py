"""What a Prometheus remembers of a node or a GPU: its incidents, and how much it was used."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankskew.report.times import DAY_SECONDS, HOUR_SECONDS, Span, merged

# Causes that a job takes along to whichever node it runs on.
OF_THE_JOB: Final = frozenset({"code", "extra_duties", "gc", "input", "uneven_batches"})
# Lateness that is back after less is the same incident.
GAP_SECONDS: Final = 6 * HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class LateHour:
    """GPU-seconds that were lost waiting for ranks of *job* on a node, in the hour before *end*."""

    job: str
    end: float
    gpu_seconds: float
    cause: str
    gpu_uuid: str


@dataclass(frozen=True, slots=True)
class NodeIncident:
    """A node was late in *job* from *begin* to *end*; *causes* and *gpus* have GPU-seconds."""

    job: str
    begin: float
    end: float
    causes: Mapping[str, float]
    gpus: Mapping[str, float]

    @property
    def gpu_seconds(self) -> float:
        """Return what was lost."""
        return sum(self.causes.values())

    @property
    def is_of_the_job(self) -> bool:
        """Whether most of it has a cause that the job takes along."""
        taken = sum(lost for cause, lost in self.causes.items() if cause in OF_THE_JOB)
        return 2 * taken > self.gpu_seconds


@dataclass(frozen=True, slots=True)
class JobRate:
    """What a GPU-hour of a job costs, in US$ and kWh, and whose it is; None and "" if not known."""

    dollars: float | None = None
    kilowatts: float | None = None
    team: str = ""


@dataclass(frozen=True, slots=True)
class NodePast:
    """The past of a node or a GPU, called *name*.

    *used* has the GPU-hours that jobs had it, by day (Unix seconds of its end); *jobs* counts them.
    *drivers* are the versions that a node had, each with when it was first and last seen. *serial*
    is a GPU's, empty for a node, for a GPU that is not there any more or that has none.
    """

    name: str
    cluster: str = ""
    incidents: Sequence[NodeIncident] = ()
    used: Mapping[float, float] = field(default_factory=dict)
    jobs: int = 0
    drivers: Sequence[tuple[str, Span]] = ()
    serial: str = ""

    @property
    def used_gpu_hours(self) -> float:
        """Return for how long jobs had it, times its GPUs."""
        return sum(self.used.values())

    @property
    def lost_gpu_hours(self) -> float:
        """Return what jobs lost waiting for it."""
        return sum(each.gpu_seconds for each in self.incidents) / HOUR_SECONDS

    @property
    def own(self) -> list[NodeIncident]:
        """Return the incidents that no job brought along."""
        return [each for each in self.incidents if not each.is_of_the_job]

    def causes(self) -> dict[str, float]:
        """Return GPU-hours by cause, the largest first."""
        return _hours(summed(each.causes for each in self.incidents))

    def gpus(self) -> dict[str, float]:
        """Return GPU-hours by the GPU that was waited for, the largest first."""
        return _hours(summed(each.gpus for each in self.incidents))

    def used_before(self, at: float) -> float:
        """Return the GPU-hours before *at*; a day's use is spread over it."""
        return sum(
            hours * min(1.0, max(0.0, (at - end) / DAY_SECONDS + 1))
            for end, hours in self.used.items()
        )


def incidents(hours: Iterable[LateHour]) -> list[NodeIncident]:
    """Return the incidents that *hours* of one node or GPU are of, in order."""
    by_job: dict[str, list[LateHour]] = defaultdict(list)
    for each in hours:
        by_job[each.job].append(each)
    found = []
    for job, those in by_job.items():
        for begin, end in merged(((e.end - HOUR_SECONDS, e.end) for e in those), GAP_SECONDS):
            causes: dict[str, float] = defaultdict(float)
            gpus: dict[str, float] = defaultdict(float)
            for each in those:
                if begin < each.end <= end:
                    causes[each.cause] += each.gpu_seconds
                    gpus[each.gpu_uuid] += each.gpu_seconds
            found.append(NodeIncident(job, begin, end, causes, gpus))
    return sorted(found, key=lambda each: (each.begin, each.job))


def summed(those: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of *those* by name."""
    sums: dict[str, float] = defaultdict(float)
    for each in those:
        for name, lost in each.items():
            sums[name] += lost
    return sums


def _hours(sums: Mapping[str, float]) -> dict[str, float]:
    """Return GPU-seconds as GPU-hours, the largest first, without what has no name."""
    found = {name: lost / HOUR_SECONDS for name, lost in sums.items() if name}
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))
