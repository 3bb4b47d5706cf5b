"""What is known of one job: how long it ran, what it lost and what happened to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.report.history import Grid
from exporter.report.losses import Loss
from exporter.report.shadow import Judged
from exporter.report.spans import Span
from exporter.report.times import HOUR_SECONDS

# A time in Unix seconds and a value.
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class JobReport:
    """What is known of a job; times in Unix seconds, *times* are those at which it was read.

    *alive* is when ranks reported; for *unseen_seconds* before it the job had run already.
    *gpus* and *lost* are the GPUs of the job and those lost, at the times at which they are known.
    *states* has seconds, *standstill* the share of the time of the rank that spent most in each
    stage. *price* is in US$ per GPU-hour, None if not recorded.
    *gauge_seconds* is the loss by the rules' gauges alone, to compare with *lost_seconds*.
    """

    job_id: str
    cluster: str
    times: Grid
    alive: Sequence[Span]
    is_running: bool
    unseen_seconds: float
    world_size: int
    gpus: Sequence[Point]
    lost: Sequence[Point]
    losses: Sequence[Loss]
    is_counted: bool
    gauge_seconds: float
    states: Mapping[str, float]
    standstill: Mapping[str, float]
    restarts: Sequence[float]
    price: float | None
    incidents: Sequence[Judged]

    @property
    def gpu_seconds(self) -> float:
        """Return the GPU-seconds that the job had."""
        return sum(gpus for _, gpus in self.gpus) * self.times.step_seconds

    @property
    def judged_seconds(self) -> float:
        """Return the GPU-seconds in which its loss is known."""
        known = {at for at, _ in self.lost}
        return sum(gpus for at, gpus in self.gpus if at in known) * self.times.step_seconds

    @property
    def lost_seconds(self) -> float:
        """Return the GPU-seconds that it lost: the sum of its losses."""
        return sum(loss.gpu_seconds for loss in self.losses)

    @property
    def efficiency(self) -> float | None:
        """Return the share of the GPUs, while the loss is known, that was not lost."""
        known = self.judged_seconds
        return max(0.0, 1 - self.lost_seconds / known) if known else None

    def dollars(self, gpu_seconds: float) -> float | None:
        """Return what *gpu_seconds* cost."""
        return None if self.price is None else gpu_seconds / HOUR_SECONDS * self.price
