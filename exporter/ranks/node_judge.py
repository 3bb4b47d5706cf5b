"""The node's judge: which of its ranks are late, in jobs that no join covers.

It compares the last block of steps of each rank with those of its peer group on this node. It does
not see a delay of less than 8 %, a pause, a node that is late as a whole, or a late rank that has
no peer here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean, median, quantiles
from typing import Final, NamedTuple

from exporter.ranks.jobs import NodeJob
from rank_probe.judge.stalls import DATA_SHARE
from rank_probe.judge.verdict import MOST_LATE, NO_SYNC, PERSISTENT, Late, Stall, Verdict, settled
from rank_probe.wire.snapshot import LEVEL_OFF, Snapshot
from rank_probe.wire.stages import DATA, H2D, STAGES, SYNC

# An incident begins when a rank exceeds its group by this ratio, and by this many times the spread
# of the faster ranks. It ends below half of that, so that a delay near the limit is one incident.
LATE_RATIO: Final = 0.08
SPREADS: Final = 5
ENOUGH_FOR_A_SPREAD: Final = 5
STAYS: Final = 0.5
# An incident enters the verdict after this long: a single slow block names nobody.
LATE_SECONDS: Final = 120.0
INPUT: Final = STAGES[DATA], STAGES[H2D]
# Shorter than any real step; a client may report anything.
LEAST_BLOCK_SECONDS: Final = 1e-6
# The largest share of a step, so that rounding cannot make it a whole step.
LARGEST_SHARE: Final = 0.999


class MeanStep(NamedTuple):
    """A rank's mean step: its *own* stages in seconds, their sum *busy*, and the whole *step*."""

    snapshot: Snapshot
    own: Mapping[str, float]
    busy: float
    step: float

    @property
    def busy_ratio(self) -> float:
        """The share of a step in which it does not wait."""
        return self.busy / self.step


class Outlier(NamedTuple):
    """A rank that stands out now.

    It takes *seconds* longer per step than the heaviest peer group; *ratio* is that divided by the
    heaviest group's time. *excess* is its time beyond that of its own group, by stage.
    *confidence* is its excess divided by the excess with which an incident begins.
    """

    snapshot: Snapshot
    seconds: float
    ratio: float
    excess: Mapping[str, float]
    confidence: float


class Onset(NamedTuple):
    """When a rank became late, and the *stage* that had the most excess at that time."""

    since: float
    stage: str

    def is_lasting(self, now: float) -> bool:
        """Say whether it has lasted long enough."""
        return now - self.since >= LATE_SECONDS


class NodeJudge:
    """Keeps the incidents of the jobs that it judges, each with one onset, one stage, one end."""

    def __init__(self) -> None:
        self._incidents: dict[str, dict[int, Onset]] = {}

    def forget_all_but(self, job_ids: set[str]) -> None:
        """Drop the incidents of all other jobs: they are gone, or a join covers them."""
        for job_id in self._incidents.keys() - job_ids:
            del self._incidents[job_id]

    def judge(self, job: NodeJob) -> Verdict | None:
        """Return the verdict on *job* now; None if no two peers here can be compared."""
        blocks = _blocks([rank.snapshot for rank in job.beating])
        synced = [block for block in blocks if STAGES[SYNC] in block.snapshot.block_seconds]
        if not synced:  # Without a measured wait, a late rank looks like its victims.
            return Verdict(_step(blocks), _ranks(blocks), reason=NO_SYNC) if blocks else None
        groups = _by_group(synced)
        if all(len(group) == 1 for group in groups):
            return None
        before = self._incidents.get(job.job_id, {})
        onsets: dict[int, Onset] = {}
        lasting: list[Outlier] = []
        for each in _found(groups):
            rank = each.snapshot.rank
            onset = before.get(rank) or Onset(job.now, _most(each.excess))
            is_lasting = onset.is_lasting(job.now)
            if each.confidence > (STAYS if is_lasting else 1.0):
                onsets[rank] = onset
                lasting += [each] if is_lasting else []
        self._incidents[job.job_id] = onsets
        return _verdict(job, synced, lasting, onsets)


def _blocks(snapshots: Sequence[Snapshot]) -> list[MeanStep]:
    return [
        MeanStep(snapshot, own, sum(own.values()), step)
        for snapshot in snapshots
        if (step := sum(snapshot.block_seconds.values())) > 0
        and snapshot.level != LEVEL_OFF
        and sum((own := _own(snapshot)).values()) >= LEAST_BLOCK_SECONDS
    ]


def _own(snapshot: Snapshot) -> dict[str, float]:
    return {stage: each for stage, each in snapshot.block_seconds.items() if stage != STAGES[SYNC]}


def _by_group(blocks: Sequence[MeanStep]) -> list[list[MeanStep]]:
    def name(block: MeanStep) -> str:
        return block.snapshot.peer_group

    return [list(group) for _, group in groupby(sorted(blocks, key=name), key=name)]


def _found(groups: Sequence[Sequence[MeanStep]]) -> Iterator[Outlier]:
    """Yield the ranks that are slower than every group and wait about as little as any rank."""
    heaviest = max(_baseline(group) for group in groups)
    ratios = [block.busy_ratio for group in groups for block in group]
    least_ratio = (max(ratios) + median(ratios)) / 2
    for group in groups:
        baseline, limit = _baseline(group), _limit(group)
        for block in group:
            over = block.busy - heaviest
            confidence = (block.busy - baseline) / limit
            if over > 0 and confidence > STAYS and block.busy_ratio >= least_ratio:
                excess = _excess(block, group)
                yield Outlier(block.snapshot, over, over / heaviest, excess, confidence)


def _baseline(group: Sequence[MeanStep]) -> float:
    """Return the group's usual busy time, which holds even while most of the group is slow."""
    return _quantile(4, [block.busy for block in group])


def _limit(group: Sequence[MeanStep]) -> float:
    """Return the excess over the baseline with which an incident begins."""
    baseline = _baseline(group)
    if len(group) < ENOUGH_FOR_A_SPREAD:
        return LATE_RATIO * baseline
    spread = baseline - _quantile(1, [block.busy for block in group])
    return max(LATE_RATIO * baseline, SPREADS * spread)


def _excess(late: MeanStep, group: Sequence[MeanStep]) -> dict[str, float]:
    """Return by stage how much longer *late* takes than its group usually does."""

    def usual(stage: str) -> float:
        others = [block.own[stage] for block in group if stage in block.own]
        return _quantile(4, others) if len(others) > len(group) / 2 else 0.0

    return {stage: max(seconds - usual(stage), 0.0) for stage, seconds in late.own.items()}


def _most(excess: Mapping[str, float]) -> str:
    return max(excess, key=lambda stage: excess[stage])


def _quantile(twelfths: int, values: Sequence[float]) -> float:
    """Return the quantile *twelfths* / 12 as Prometheus does; the least of fewer than three."""
    return (
        min(values)
        if len(values) < 3
        else quantiles(values, n=12, method="inclusive")[twelfths - 1]
    )


def _verdict(
    job: NodeJob,
    blocks: Sequence[MeanStep],
    lasting: Sequence[Outlier],
    onsets: Mapping[int, Onset],
) -> Verdict:
    step_seconds = fmean(block.step for block in blocks)
    # All others wait for the late ranks, which are about equally late, or they would wait as well.
    world = max(job.world_size or 0, len(job.beating))
    others = max(world / len(lasting) - 1, 0.0) if lasting else 0.0
    late = [
        _late(each, onsets[each.snapshot.rank], job.now, step_seconds, others) for each in lasting
    ]
    late = settled(late, lambda each: (each.gpus_lost,))
    share = median(
        sum(block.own.get(stage, 0.0) for stage in INPUT) / block.step for block in blocks
    )
    stalls = (Stall(INPUT[0], share),) if share > DATA_SHARE else ()
    named, shared = sum(each.gpus_lost for each in late), share * world if stalls else 0.0
    longest = max((each.seconds for each in lasting), default=0.0) / step_seconds
    return Verdict(
        _step(blocks),
        _ranks(blocks),
        step_seconds=step_seconds,
        slowdown=1 / (1 - min(longest, LARGEST_SHARE)),
        gpus_lost={"persistent": named, "shared": shared},
        late=tuple(late[:MOST_LATE]),
        stalls=stalls,
    )


def _late(found: Outlier, onset: Onset, now: float, step_seconds: float, others: float) -> Late:
    since = now - onset.since
    cost = found.seconds / step_seconds * others
    whole = sum(found.excess.values())
    return Late(
        rank=found.snapshot.rank,
        peer_group=found.snapshot.peer_group,
        stage=onset.stage,
        kind=PERSISTENT,
        ratio=found.ratio,
        gpus={stage: cost * each / whole for stage, each in found.excess.items() if each},
        since_seconds=since,
        steps=int(since / step_seconds),
        confidence=found.confidence,
    )


def _step(blocks: Sequence[MeanStep]) -> int:
    return max(block.snapshot.steps for block in blocks)


def _ranks(blocks: Sequence[MeanStep]) -> dict[str, int]:
    return dict(Counter(block.snapshot.peer_group for block in blocks))
