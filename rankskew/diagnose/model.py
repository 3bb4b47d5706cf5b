"""The report of `rankskew diagnose`: what is wrong with a job, what shows it, and what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from exporter.live.causes import CauseView, LineView
from exporter.live.states import HEALTHY
from exporter.vocabulary.thresholds import defaults
from rankskew.top.model import JobStatus

# The outcomes of a report, and the exit status of each.
BALANCED, FOUND, CANNOT_TELL = "balanced", "found", "cannot_tell"
EXIT_STATUS: Final = {BALANCED: 0, FOUND: 1, CANNOT_TELL: 2}


class CannotTell(Exception):
    """There is too little data for a report; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the loss, in GPUs that do nothing but wait; its *parts* add up to *gpus*."""

    name: str
    gpus: float
    parts: tuple["Part", ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and what it disturbs: one of advice.DISTURBS."""

    do: str
    disturbs: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank or GPU is; what is not known is None. *node* is a host, without a port."""

    node: str | None = None
    gpu: str | None = None
    gpu_uuid: str | None = None
    pid: int | None = None


def host(instance: str | None) -> str | None:
    """Return the host in the address of an exporter: without the port."""
    name, colon, port = (instance or "").rpartition(":")
    return (name if colon and port.isdecimal() else instance) or None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong; *what* is the name of its advice: a cause, or a situation.

    *sentence* says it. *rank* is None for a set, a node or the job, and *ranks* are all of them.
    *ratio* is the own time of a late rank over its peers', less 1, *kind* one of LATE_KINDS. A late
    rank has a *cause*, as its exporter tells it. What is not known is None or empty.
    """

    what: str
    sentence: str
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    place: Place = Place()
    stage: str | None = None
    kind: str | None = None
    ratio: float | None = None
    gpus_lost: float | None = None
    since_seconds: float | None = None
    lines: tuple[LineView, ...] = ()
    cause: CauseView | None = None
    facts: tuple[str, ...] = ()
    first: str | None = None
    steps: tuple[Step, ...] = ()
    proof: str = ""
    links: tuple[str, ...] = ()
    tells: bool = True


@dataclass(frozen=True, slots=True)
class Event:
    """Something that began, in a sentence, so many seconds before the time of the report."""

    since_seconds: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of one job at *at_seconds*, Unix time.

    *findings* are the worst first; *more* says who else is late. *unjudged* says in sentences what
    could not be judged, and why.
    """

    source: str
    job_id: str
    state: str
    sentence: str
    at_seconds: float
    cluster: str = ""
    world_size: int | None = None
    loss: Part | None = None
    slowdown: float | None = None
    cost_per_hour: float | None = None
    findings: tuple[Finding, ...] = ()
    more: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    unjudged: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """Return FOUND if a finding tells something, else whether the job could be judged."""
        if any(finding.tells for finding in self.findings):
            return FOUND
        return CANNOT_TELL if self.findings or self.state != HEALTHY else BALANCED


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a report is made from: a *job*, and what `rankskew top` does not show of it.

    *lines* are those of late ranks' code, *nodes* those of ranks that have no row. *silent* are
    ranks that have not reported for so many seconds, *unprobed* those without the probe, *down* the
    exporters that do not answer. *rotating* is the loss of that kind by stage. *reasons* say why
    the job cannot be judged, the first explains the others. *judge* is `join` or `node`.
    *thresholds* are those of the job; the others are the defaults.
    """

    job: JobStatus
    nodes: Mapping[int, str] = field(default_factory=dict)
    lines: Mapping[int, Sequence[LineView]] = field(default_factory=dict)
    silent: Mapping[int, float] = field(default_factory=dict)
    unprobed: Sequence[int] = ()
    down: Sequence[str] = ()
    rotating: Mapping[str, float] = field(default_factory=dict)
    reasons: Sequence[str] = ()
    age_seconds: float | None = None
    judge: str | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return how many ranks the job has, as far as that is known."""
        return self.job.world_size or len(self.job.ranks) or 1

    def place(self, number: int) -> Place:
        """Return where a rank runs, as far as that is known."""
        for rank in self.job.ranks:
            if rank.rank == number:
                return Place(host(rank.node), rank.gpu, rank.gpu_uuid, rank.pid)
        return Place(host(self.nodes.get(number)))

    def threshold(self, name: str) -> float:
        """Return the job's threshold of that *name*."""
        return self.thresholds.get(name, defaults()[name].value)
