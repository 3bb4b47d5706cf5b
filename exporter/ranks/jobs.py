"""What one node knows about each job: its reporting ranks, the age of their reports, the verdict.

Ages are differences on one clock, the exporter's or the rank's own, so a wrong wall clock does no
harm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from exporter.ranks.store import HeldRank
from rank_probe.snapshot import LEVEL_OFF, Snapshot
from rank_probe.verdict import Late, Verdict, from_json

# Share of the offered steps that must have been joined for the verdict to cover the job.
COVERED_RATIO: Final = 0.9
# A verdict expires after this long and this many steps; slow steps give few verdicts.
STALE_SECONDS: Final = 60.0
STALE_STEPS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """A verdict and how long ago the rank that repeats it read it."""

    verdict: Verdict
    age_seconds: float


@dataclass(frozen=True, slots=True)
class NodeJob:
    """The ranks of one job on this node at *now*, in seconds of the store's clock."""

    job_id: str
    now: float
    beating: Sequence[HeldRank]
    silent: Sequence[HeldRank]
    finished: Sequence[HeldRank]

    @property
    def ranks(self) -> list[HeldRank]:
        """Return all of them, in no order."""
        return [*self.beating, *self.silent, *self.finished]

    @property
    def world_size(self) -> int | None:
        """Return how many ranks the job has, as the process here says that began last."""
        if not self.beating:
            return None
        return max(
            _of_one_owner(self.beating), key=lambda rank: rank.began_seconds
        ).snapshot.world_size

    @property
    def run_seconds(self) -> float | None:
        """Return how long ago the first process that beats here began."""
        return max((self.now - rank.began_seconds for rank in self.beating), default=None)

    @property
    def last_step_age_seconds(self) -> float | None:
        """Return how long ago a rank that beats here ended a step, whoever was the last to."""
        ages = [
            age for rank in self.beating if (age := step_age_seconds(rank, self.now)) is not None
        ]
        return min(ages, default=None)

    @property
    def join_coverage(self) -> float | None:
        """Return the least share of its offered steps that a rank here saw joined."""
        told = [rank.snapshot.join_coverage for rank in self.beating]
        return min((ratio for ratio in told if ratio is not None), default=None)

    def coverage(self, verdict: Verdict) -> float | None:
        """Return the share of the job's ranks that *verdict* is on, times that of joined steps."""
        judged, joined = sum(verdict.ranks.values()), self.join_coverage
        if joined is None or judged + verdict.absent == 0:
            return None
        return judged / (judged + verdict.absent) * joined

    def spoken(self) -> Spoken | None:
        """Return the newest verdict that a rank which beats here repeats, None where none does."""
        speakers = [rank for rank in self.beating if rank.snapshot.verdict is not None]
        if not speakers:
            return None
        said = [
            (rank.snapshot.verdict or {}, verdict_age_seconds(rank, self.now))
            for rank in _of_one_owner(speakers)
        ]
        verdict, age = max(said, key=lambda each: (each[0]["step"], -each[1]))
        return Spoken(from_json(verdict), age)

    def is_judged(self) -> bool:
        """Whether the verdict covers the job; if not, the fallback's series are exposed."""
        spoken = self.spoken()
        coverage = self.join_coverage
        if spoken is None or (coverage is not None and coverage < COVERED_RATIO):
            return False
        step = spoken.verdict.step_seconds
        if step is None:  # Unknown during warm-up, which takes long with long steps.
            step = max(sum(rank.snapshot.block_seconds.values()) for rank in self.beating)
        return spoken.age_seconds <= STALE_SECONDS + STALE_STEPS * step


def _of_one_owner(ranks: Sequence[HeldRank]) -> list[HeldRank]:
    """Return those of *ranks*, at least one, whose owner was the first to report one.

    The pods of a job are several owners, and all say the same. Root in another container may claim
    to be one of them, but cannot have been the first.
    """
    first = min(ranks, key=lambda rank: rank.owned_seconds).owner
    return [rank for rank in ranks if rank.owner == first]


def node_jobs(held: Iterable[HeldRank], now: float) -> list[NodeJob]:
    """Return the jobs of the *held* ranks, which are ordered by job, at *now*."""
    return [
        _node_job(job_id, list(ranks), now)
        for job_id, ranks in groupby(held, key=lambda rank: rank.snapshot.job_id)
    ]


def _node_job(job_id: str, ranks: Sequence[HeldRank], now: float) -> NodeJob:
    return NodeJob(
        job_id,
        now,
        beating=[rank for rank in ranks if rank.is_beating(now)],
        silent=[rank for rank in ranks if rank.is_silent(now)],
        finished=[rank for rank in ranks if rank.snapshot.finished],
    )


def own_lateness(snapshot: Snapshot) -> Late | None:
    """Return what the verdict in *snapshot* says of its own rank, None where that is not late."""
    late: Iterable[dict[str, Any]] = (snapshot.verdict or {}).get("late", ())
    return next((Late(**each) for each in late if each["rank"] == snapshot.rank), None)


def verdict_age_seconds(rank: HeldRank, now: float) -> float:
    """Return how long ago *rank* read its verdict."""
    return (rank.snapshot.verdict_age_seconds or 0.0) + now - rank.received_seconds


def step_age_seconds(rank: HeldRank, now: float) -> float | None:
    """Return how long ago *rank* ended a step; None before the first, and while its probe is off.

    A rank that is off does not know its steps: an old time would look like a hang.
    """
    snapshot = rank.snapshot
    stepped = snapshot.last_step_timestamp_seconds
    if stepped is None or snapshot.level == LEVEL_OFF:
        return None
    return max(0.0, snapshot.heartbeat_timestamp_seconds - stepped) + now - rank.received_seconds
