"""What one node knows about each job: its reporting ranks, the age of their reports, the verdict.

Only NodeJob.verdict() says who is late. Where no join covers the job, exporter.ranks.node_jobs adds
the node's own verdict to it.

Ages are differences on one clock, the exporter's or the rank's own, so a wrong wall clock does no
harm.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from exporter.ranks.store import HeldRank
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.judge.verdict import Change, Late, Together, Verdict, from_json
from rank_probe.wire.snapshot import LEVEL_OFF

# Who judges a job: rank 0, which compares all ranks through the join, or the exporter of each node.
JOIN, NODE = "join", "node"
# A verdict expires after this long and this many steps; slow steps give few verdicts.
STALE_SECONDS: Final = 60.0
STALE_STEPS: Final = 4.0


@dataclass(frozen=True, slots=True)
class AgedVerdict:
    """A verdict, how long ago it was made or read, and by which *judge*, JOIN or NODE."""

    verdict: Verdict
    age_seconds: float
    judge: str = JOIN

    @property
    def changes(self) -> list[Change]:
        """Return the changes that it names, as of now."""
        return [
            replace(each, since_seconds=each.since_seconds + self.age_seconds)
            for each in self.verdict.changes
        ]

    @property
    def together(self) -> list[Together]:
        """Return the sets of late ranks that it names, as of now."""
        return [
            replace(each, since_seconds=each.since_seconds + self.age_seconds)
            for each in self.verdict.together
        ]


@dataclass(frozen=True, slots=True)
class NodeJob:
    """The ranks of one job on this node at *now*, in seconds of the store's clock.

    *join* is the newest verdict of the join that a rank here repeats. *own* is the verdict of this
    node's judge, made only if the join's does not cover the job. Use verdict() instead of these.
    *starting_seconds* is for how long no rank here has finished a step; None once one has.
    *has_just_started* says that this was so within the last minutes.
    """

    job_id: str
    now: float
    beating: Sequence[HeldRank]
    silent: Sequence[HeldRank]
    finished: Sequence[HeldRank]
    thresholds: Thresholds = field(default_factory=Thresholds)
    join: AgedVerdict | None = None
    own: AgedVerdict | None = None
    starting_seconds: float | None = None
    has_just_started: bool = False

    def threshold(self, name: str) -> float:
        """Return the threshold of this *name* for the job."""
        return self.thresholds.value(name, self.job_id)

    @property
    def ranks(self) -> list[HeldRank]:
        """Return all of them, in no order."""
        return [*self.beating, *self.silent, *self.finished]

    @property
    def world_size(self) -> int | None:
        """Return how many ranks the job has, according to the process here that began last."""
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
        """Return how long ago any of the ranks that beat here last ended a step."""
        ages = [
            age for rank in self.beating if (age := step_age_seconds(rank, self.now)) is not None
        ]
        return min(ages, default=None)

    @property
    def join_coverage(self) -> float | None:
        """Return the lowest share of offered steps that were joined, over the ranks here.

        A rank that left the join has no verdict any more, and counts only if no other has one.
        """
        said = [rank.snapshot for rank in self.beating]
        said = [each for each in said if each.verdict is not None] or said
        ratios = [each.join_coverage for each in said]
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    @property
    def no_join(self) -> str:
        """Return why a rank here cannot compare its steps with the others'; empty if it can."""
        return next((why for rank in self.beating if (why := rank.snapshot.no_join)), "")

    @property
    def coverage(self) -> float | None:
        """Return the share of ranks that the join judged, times the share of steps joined."""
        aged, joined = self.verdict(), self.join_coverage
        if aged is None or aged.judge == NODE or joined is None:
            return None
        judged = sum(aged.verdict.ranks.values())
        whole = judged + aged.verdict.absent
        return judged / whole * joined if whole else None

    def verdict(self) -> AgedVerdict | None:
        """Return who is late: the join's verdict if it covers the job, else the node's own.

        If the node has none, the join's verdict on part of the job is better than nothing.
        """
        return self.join if self._is_covered() else self.own or self.join

    def is_partly_judged(self) -> bool:
        """Whether the join has compared too few of the steps, or of the ranks that train."""
        training = sum(rank.snapshot.steps > 0 for rank in self.beating)
        if self.coverage is None or not training:
            return False
        return self.coverage * len(self.beating) / training < self.threshold("join_coverage")

    def late(self) -> Iterator[tuple[HeldRank, Late]]:
        """Yield the ranks on this node that verdict() names, and how late they are by now."""
        aged = self.verdict()
        if aged is None:
            return
        here = {rank.snapshot.rank: rank for rank in self.beating}
        for each in aged.verdict.late:
            if each.rank in here:
                since = each.since_seconds + aged.age_seconds
                yield here[each.rank], replace(each, since_seconds=since)

    def needs_own_verdict(self) -> bool:
        """Whether this node must judge the job: its ranks report blocks, and no join covers it."""
        has_blocks = any(rank.snapshot.block_steps for rank in self.beating)
        return has_blocks and not self._is_covered()

    def _is_covered(self) -> bool:
        """Whether the join's verdict is recent and covers enough of the job's steps."""
        join, coverage = self.join, self.join_coverage
        if join is None or (coverage is not None and coverage < self.threshold("join_coverage")):
            return False
        step = join.verdict.step_seconds
        if step is None:  # Unknown during warm-up, which takes long with long steps.
            step = max(sum(rank.snapshot.block_seconds.values()) for rank in self.beating)
        return join.age_seconds <= STALE_SECONDS + STALE_STEPS * step


def _join_verdict(beating: Sequence[HeldRank], now: float) -> AgedVerdict | None:
    having_one = [rank for rank in beating if rank.snapshot.verdict is not None]
    if not having_one:
        return None
    verdicts = [
        (rank.snapshot.verdict or {}, verdict_age_seconds(rank, now))
        for rank in _of_one_owner(having_one)
    ]
    verdict, age = max(verdicts, key=lambda each: (each[0]["step"], -each[1]))
    return AgedVerdict(from_json(verdict), age)


def _of_one_owner(ranks: Sequence[HeldRank]) -> list[HeldRank]:
    """Return those of *ranks* (at least one) that belong to the first owner to report any.

    The pods of a job are separate owners that all report the same. Root in another container may
    claim to be one of them, but cannot have been the first.
    """
    first = min(ranks, key=lambda rank: rank.owned_seconds).owner
    return [rank for rank in ranks if rank.owner == first]


def node_jobs(
    held: Iterable[HeldRank], now: float, thresholds: Thresholds | None = None
) -> list[NodeJob]:
    """Return the jobs of the *held* ranks, which are ordered by job, at *now*."""
    return [
        _node_job(job_id, list(ranks), now, thresholds or Thresholds())
        for job_id, ranks in groupby(held, key=lambda rank: rank.snapshot.job_id)
    ]


def _node_job(
    job_id: str, ranks: Sequence[HeldRank], now: float, thresholds: Thresholds
) -> NodeJob:
    beating = [rank for rank in ranks if rank.is_beating(now)]
    return NodeJob(
        job_id,
        now,
        beating=beating,
        silent=[rank for rank in ranks if rank.is_silent(now)],
        finished=[rank for rank in ranks if rank.snapshot.finished],
        thresholds=thresholds,
        join=_join_verdict(beating, now),
    )


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
