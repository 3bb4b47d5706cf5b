"""What exporters, a Prometheus or a trace know of one job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporter.live.causes import LineView
from exporter.vocabulary.thresholds import defaults
from rankskew.diagnose.loss import ByRank
from rankskew.diagnose.model import Place
from rankskew.top.model import JobStatus


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A *job* with the *places* of the ranks that matter, and the *lines* of late ranks' code.

    *late_gpus* are lost to late ranks. *silent* are ranks that have not reported for so many
    seconds, *unprobed* those without the probe, *down* the places of exporters that do not answer.
    *rotating* is the loss of that kind by stage. *reasons* say why the job cannot be judged, the
    first explains the others. *judge* is `join` or `node`. *thresholds* are those of the job; the
    others are the defaults.
    """

    job: JobStatus
    places: Mapping[int, Place] = field(default_factory=dict)
    lines: Mapping[int, Sequence[LineView]] = field(default_factory=dict)
    late_gpus: ByRank = field(default_factory=dict)
    silent: Mapping[int, float] = field(default_factory=dict)
    unprobed: Sequence[int] = ()
    down: Sequence[Place] = ()
    rotating: Mapping[str, float] = field(default_factory=dict)
    reasons: Sequence[str] = ()
    age_seconds: float | None = None
    judge: str | None = None
    judged_ranks: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    gpu_hour_price: float | None = None

    @property
    def ranks(self) -> float:
        """Return how many ranks are judged, or else how many there are."""
        return self.judged_ranks or self.job.world_size or len(self.job.ranks) or 1.0

    def place(self, rank: int) -> Place:
        """Return where *rank* runs, as far as that is known."""
        return self.places.get(rank, Place())

    def threshold(self, name: str) -> float:
        """Return the job's threshold of that *name*."""
        return self.thresholds.get(name, defaults()[name].value)
