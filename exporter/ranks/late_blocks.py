"""Ranks of this node that are late by their blocks of steps, in jobs without a judge.

The definition is that of alerts/rules/fallback.yaml, as far as one node can know it: it compares a
rank with the ranks of its peer group on this node only. So a whole node that is late, and a rank
without a peer on its node, are only named by the rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median, quantiles
from typing import Final, NamedTuple

from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import RankKey, RankStore
from rank_probe.snapshot import LEVEL_OFF, Snapshot
from rank_probe.stages import STAGES, SYNC

# As in the rules: over its own group by so much, and by so many times the spread of the faster.
LATE_RATIO: Final = 1.08
SPREADS: Final = 5
ENOUGH_FOR_A_SPREAD: Final = 5
LATE_SECONDS: Final = 120.0
# A block takes half a minute or more, so it changes no faster.
LOOK_SECONDS: Final = 10.0


class Block(NamedTuple):
    """A rank's mean step: its *own* stages in seconds, their sum *busy*, and the whole *step*."""

    snapshot: Snapshot
    own: Mapping[str, float]
    busy: float
    step: float

    @property
    def busy_ratio(self) -> float:
        """The share of a step in which it does not wait."""
        return self.busy / self.step


class LateBlocks:
    """Says in which stage a rank has been late for two minutes. Call from the event loop only."""

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self._since: dict[RankKey, float] = {}
        self._stages: dict[RankKey, str] = {}
        self._looked: float | None = None

    def stage_of(self, snapshot: Snapshot) -> str | None:
        """Return the stage in which the rank of *snapshot* is late; None if it is not."""
        if not snapshot.block_steps:  # Nearly all: their jobs have a judge.
            return None
        now = self._store.now()
        if self._looked is None or now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(now)
        key = _key(snapshot)
        is_late = key in self._since and now - self._since[key] >= LATE_SECONDS
        return self._stages[key] if is_late else None

    def _look(self, now: float) -> None:
        jobs = node_jobs(self._store.ranks(), now)
        late: dict[RankKey, str] = {}
        for job in jobs:
            if not job.is_judged():
                late |= late_stages([rank.snapshot for rank in job.beating])
        self._since = {key: self._since.get(key, now) for key in late}
        # One stage for the whole incident: that of its beginning.
        self._stages = {key: self._stages.get(key, stage) for key, stage in late.items()}


def late_stages(snapshots: Sequence[Snapshot]) -> dict[RankKey, str]:
    """Return the late ones among these ranks of one job, each with the stage of most excess."""
    blocks = sorted(_blocks(snapshots), key=lambda block: block.snapshot.peer_group)
    if not blocks:
        return {}
    groups = [
        list(group) for _, group in groupby(blocks, key=lambda block: block.snapshot.peer_group)
    ]
    heaviest = max(_baseline(group) for group in groups)
    ratios = [block.busy_ratio for block in blocks]
    least_ratio = (max(ratios) + median(ratios)) / 2
    return {
        _key(block.snapshot): _stage(block, group)
        for group in groups
        for block in group
        if block.busy > max(_limit(group), heaviest) and block.busy_ratio >= least_ratio
    }


def _blocks(snapshots: Sequence[Snapshot]) -> Iterator[Block]:
    """Yield the blocks with a measured wait: without it, a late rank looks like its victims."""
    for snapshot in snapshots:
        seconds = snapshot.block_seconds
        own = {stage: each for stage, each in seconds.items() if stage != STAGES[SYNC]}
        step = sum(seconds.values())
        if STAGES[SYNC] in seconds and step > 0 and snapshot.level != LEVEL_OFF:
            yield Block(snapshot, own, sum(own.values()), step)


def _baseline(group: Sequence[Block]) -> float:
    """Return the usual busy time: it holds while most of the group is slow."""
    return _twelfth(4, [block.busy for block in group])


def _limit(group: Sequence[Block]) -> float:
    """Return the busy time from which a rank of *group* is late."""
    baseline = _baseline(group)
    limit = LATE_RATIO * baseline
    if len(group) < ENOUGH_FOR_A_SPREAD:
        return limit
    spread = baseline - _twelfth(1, [block.busy for block in group])
    return max(limit, baseline + SPREADS * spread)


def _stage(late: Block, group: Sequence[Block]) -> str:
    """Return the stage of *late* with the most excess over what most of its group need there."""

    def excess(stage: str) -> float:
        others = [block.own[stage] for block in group if stage in block.own]
        usual = _twelfth(4, others) if len(others) > len(group) / 2 else 0.0
        return late.own[stage] - usual

    return max(late.own, key=excess)


def _twelfth(number: int, values: Sequence[float]) -> float:
    """Return the quantile *number* / 12 as Prometheus does; of two values or one, the least."""
    return (
        min(values) if len(values) < 3 else quantiles(values, n=12, method="inclusive")[number - 1]
    )


def _key(snapshot: Snapshot) -> RankKey:
    return snapshot.job_id, snapshot.rank
