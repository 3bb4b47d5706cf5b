"""The work of a job's ranks on this node, aggregated so that no rule has to read every rank.

Input, batches, checkpoints and versions are alike for most ranks of a job. Alerts only need their
mean, their extremes or a number of ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.table import Row, families
from exporter.past import LOOK_SECONDS, Past
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot

GROUP: Final = ["job_id", "peer_group"]
# A rank that has not used its GPU yet does not know all of these.
RUNTIME: Final = ("torch", "cuda", "nccl", "python", "driver", "env_hash", "device_count")
WORK_SECONDS: Final = 600.0
CHECKPOINT_SECONDS: Final = 3600.0
# Tokens if a rank counts them, else samples, else steps: a long sample is more work than a short.
WORK: Final = ("tokens", "samples", "steps")
COUNTS: Final[dict[str, Callable[[Snapshot], float | None]]] = {
    "steps": lambda snapshot: snapshot.steps,
    "samples": lambda snapshot: snapshot.samples,
    "tokens": lambda snapshot: snapshot.tokens,
    "padding": lambda snapshot: snapshot.padding_tokens,
}

Group = tuple[str, str]
# Each reads a list with the work per step of each rank of a group.
WORKING: Final[tuple[Row[list[float]], ...]] = (
    Row(
        "rankskew_node_work_per_step_max",
        "Work per step of the rank on this node that has most of it, in tokens if the ranks "
        "count them, else in samples, else in steps; over the last ten minutes (probe).",
        max,
    ),
    Row(
        "rankskew_node_work_per_step_mean",
        "Work per step of the ranks on this node, as rankskew_node_work_per_step_max, but the "
        "mean of rankskew_node_working_ranks ranks (probe).",
        lambda work: sum(work) / len(work),
    ),
    Row(
        "rankskew_node_working_ranks",
        "Ranks on this node that have made a step in the last ten minutes (probe).",
        len,
    ),
)


class RankWorkCollector:
    """Expose every job with a reporting rank here; call from the event loop, where the store is.

    It remembers what it has seen, so it must be called about once a scrape.
    """

    name = "rank_work"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self._work = Past(WORK_SECONDS)
        self._checkpoints = Past(CHECKPOINT_SECONDS)
        self._seen_seconds = float("-inf")

    def collect(self) -> Iterator[Metric]:
        now = self._store.now()
        ranks = [held.snapshot for held in self._store.ranks() if held.is_beating(now)]
        if now - self._seen_seconds >= LOOK_SECONDS:
            self._seen_seconds = now
            self._see(ranks, now)
        yield from self._work_per_step(ranks)
        yield self._padding(ranks)
        yield self._checkpointing(ranks)
        yield _runtimes(ranks)

    def _see(self, ranks: Sequence[Snapshot], now: float) -> None:
        for rank in ranks:
            for name, count in COUNTS.items():
                if (value := count(rank)) is not None:
                    self._work.count((*_key(rank), name), value, now)
            written = rank.stage_seconds.get("checkpoint", 0.0)
            self._checkpoints.count(_key(rank), written, now)
        here = {_key(rank) for rank in ranks}
        self._work.keep({(*key, name) for key in here for name in COUNTS})
        self._checkpoints.keep(set(here))

    def _increase(self, rank: Snapshot, name: str) -> float:
        return self._work.increase((*_key(rank), name), COUNTS[name](rank) or 0.0)

    def _work_per_step(self, ranks: Iterable[Snapshot]) -> Iterator[Metric]:
        groups: dict[Group, list[Snapshot]] = defaultdict(list)
        for rank in ranks:
            if self._increase(rank, "steps") > 0:
                groups[rank.job_id, rank.peer_group].append(rank)
        work = {group: self._per_step(those) for group, those in sorted(groups.items())}
        yield from families(WORKING, GROUP, list(work.items()))

    def _per_step(self, ranks: Sequence[Snapshot]) -> list[float]:
        """Return the work of each per step, in what all of them count."""
        unit = next(name for name in WORK if all(COUNTS[name](rank) is not None for rank in ranks))
        return [self._increase(rank, unit) / self._increase(rank, "steps") for rank in ranks]

    def _padding(self, ranks: Iterable[Snapshot]) -> Metric:
        family = GaugeMetricFamily(
            "rankskew_node_padding_ratio",
            "Share of the tokens of the ranks on this node that is padding, 0 to 1, over the last "
            "ten minutes; absent if they do not count it (probe).",
            labels=["job_id"],
        )
        tokens: Counter[str] = Counter()
        padding: Counter[str] = Counter()
        for rank in ranks:
            if rank.padding_tokens is not None and rank.tokens is not None:
                tokens[rank.job_id] += int(self._increase(rank, "tokens"))
                padding[rank.job_id] += int(self._increase(rank, "padding"))
        for job_id, count in sorted(tokens.items()):
            if count > 0:
                family.add_metric([job_id], padding[job_id] / count)
        return family

    def _checkpointing(self, ranks: Iterable[Snapshot]) -> Metric:
        family = GaugeMetricFamily(
            "rankskew_node_checkpoint_ratio",
            "Share of the last hour that the rank on this node with most of it spent on "
            "checkpoints, 0 to 1; absent if no rank here has written one (probe).",
            labels=["job_id"],
        )
        most: dict[str, float] = {}
        for rank in ranks:
            if "checkpoint" in rank.stage_seconds:
                spent = self._checkpoints.increase(_key(rank), rank.stage_seconds["checkpoint"])
                most[rank.job_id] = max(most.get(rank.job_id, 0.0), spent)
        for job_id, seconds in sorted(most.items()):
            family.add_metric([job_id], seconds / CHECKPOINT_SECONDS)
        return family


def _runtimes(ranks: Iterable[Snapshot]) -> Metric:
    family = GaugeMetricFamily(
        "rankskew_node_runtime_ranks",
        "Reporting ranks on this node with these versions, settings and GPUs; without those that "
        "have not used a GPU yet (probe).",
        labels=["job_id", *RUNTIME],
    )
    kinds = Counter(
        (rank.job_id, *(rank.runtime_info.get(name, "") for name in RUNTIME))
        for rank in ranks
        if rank.runtime_info.get("device_count")
    )
    for labels, number in sorted(kinds.items()):
        family.add_metric(labels, number)
    return family


def _key(rank: Snapshot) -> tuple[str, int, int]:
    """Return what names one process of a rank: a new one counts from 0 again."""
    return rank.job_id, rank.rank, rank.pid
