"""Simulated jobs as Prometheus would hold them: pages of real exporters, as series for promtool."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.alerts.jobs import RESTART_PAUSE_SECONDS, Job, Step
from tests.exporter.snapshots import snapshot
from tests.rank_probe.judged import judged_steps, vectors

# Until a rank reads what rank 0 posted.
READ_SECONDS: Final = 1.0
# A process starts its probe so long before its first step.
LOADING_SECONDS: Final = 5.0
BLOCK_SECONDS: Final = 30.0
FEWEST_STEPS: Final = 16
# Of what a page shows, no rule reads these.
UNREAD: Final = ("rankskew_runtime_info", "rankskew_probe_")

Series = tuple[str, tuple[tuple[str, str], ...]]
Samples = Mapping[Series, float]


def input_series(job: Job, steps: list[Step], job_id: str) -> list[dict[str, str]]:
    """Return *job* as scraped every *job.scrape_seconds* from pushes up to a second old."""
    starts = starts_of(job, steps)
    series: list[dict[str, str]] = []
    for number, ranks in enumerate(job.nodes):
        node = Node(job, job_id, starts, ranks)
        shown: dict[str, list[str]] = {}
        for scrape in range(int(job.seconds // job.scrape_seconds) + 1):
            now = scrape * job.scrape_seconds
            page = node.page(now - job.phase(number)) if job.is_seen(number, now) else {}
            _note(shown, page, scrape, instance=f"{job_id} {number}:9917")
        series += ({"series": name, "values": " ".join(values)} for name, values in shown.items())
    return series


def _note(shown: dict[str, list[str]], page: Samples, scrape: int, instance: str) -> None:
    """Add the samples of one *scrape*; stale where there was one before and is none now."""
    samples = {_text(name, labels, instance): value for (name, labels), value in page.items()}
    for name in shown.keys() - samples.keys():
        shown[name].append("stale")
    for name, value in samples.items():
        # As often absent as the node was scraped before it appeared.
        shown.setdefault(name, ["_"] * scrape).append(f"{value:.9g}")


def _text(name: str, labels: tuple[tuple[str, str], ...], instance: str) -> str:
    both = ",".join(f'{key}="{value}"' for key, value in (*labels, ("instance", instance)))
    return f"{name}{{{both}}}"


def _explained(page: Samples) -> Iterator[tuple[Series, float]]:
    """Yield the cause of each late rank, as the exporter explains it where nothing is measured."""
    for name, labels in page:
        if name == "rankskew_late_ratio":
            who = tuple(each for each in labels if each[0] in ("job_id", "peer_group", "rank"))
            yield ("rankskew_late_cause_info", (*who, ("cause", "unknown"))), 1.0


@dataclass
class Start:
    """One start of a job: its *steps*, and what each rank *measured* of them, by rank and stage.

    Its processes live from *begin* to *end*. *said* are the verdicts as JSON, each with the time
    at which the ranks read it.
    """

    attempt: int
    begin: float
    end: float
    steps: list[Step]
    measured: list[Mapping[int, Mapping[str, float]]]
    said: list[tuple[float, dict[str, Any]]]


def starts_of(job: Job, steps: list[Step]) -> list[Start]:
    """Return the starts of *job*, judged if it is joined."""
    firsts = [at for at, step in enumerate(steps) if step.number == 1]
    starts = []
    for attempt, (first, after) in enumerate(zip(firsts, [*firsts[1:], None], strict=True)):
        mine = steps[first:after]
        began = steps[first - 1].end_seconds + RESTART_PAUSE_SECONDS if first else LOADING_SECONDS
        verdicts = judged_steps(job, mine).verdicts if job.join else []
        starts.append(
            Start(
                attempt,
                began - LOADING_SECONDS,
                mine[-1].end_seconds if after else float("inf"),
                mine,
                [vectors(job, step) for step in mine],
                [(at + READ_SECONDS, verdict.to_json()) for at, verdict in verdicts],
            )
        )
    return starts


class Node:
    """The exporter of the node with *ranks*, to which they push once a second."""

    def __init__(self, job: Job, job_id: str, starts: Sequence[Start], ranks: range) -> None:
        self._starts = starts
        self._draw = random.Random(job.seed + ranks.start)
        self._now = 0.0
        self._store = RankStore(clock=lambda: self._now)
        self._ranks = [Rank(job, job_id, rank) for rank in ranks if rank < job.ranks - job.missing]
        jobs = NodeJobs(self._store)
        self._collectors = (
            RanksCollector(self._store),
            JobsCollector(jobs),
            LateRanksCollector(jobs, clock=lambda: self._now),
        )

    def page(self, now: float) -> Samples:
        """Return what it shows *now*; call with a later time each time."""
        for rank in self._ranks:
            self._push(rank, now - self._draw.random())
        self._now = now
        page = {
            (sample.name, tuple(sample.labels.items())): sample.value
            for collector in self._collectors
            for metric in collector.collect()
            if not metric.name.startswith(UNREAD)
            for sample in metric.samples
        }
        return page | dict(_explained(page))

    def _push(self, rank: "Rank", now: float) -> None:
        """Push for *rank*; a process that has ended since the last scrape pushed at its end."""
        for start in self._starts[rank.start :]:
            if start.begin <= now:
                self._now = min(now, start.end)
                self._store.put(rank.snapshot(start, self._now))
                rank.start = start.attempt


class Rank:
    """What a rank's probe pushes: its state as of the last step that it finished."""

    def __init__(self, job: Job, job_id: str, rank: int) -> None:
        self._job = job
        self._job_id = job_id
        self._rank = rank
        self.start = 0

    def snapshot(self, start: Start, now: float) -> Snapshot:
        """Return the snapshot that the process of *start* pushes *now*."""
        done = bisect_right(start.steps, now, key=lambda step: step.end_seconds)
        mine = [each[self._rank] for each in start.measured[:done]]
        busy = [sum(each.values()) - each.get("sync", 0.0) for each in mine]
        return snapshot(
            job_id=self._job_id,
            peer_group=f"g{self._job.group(self._rank)}",
            rank=self._rank,
            world_size=self._job.ranks,
            attempt=start.attempt,
            started_timestamp_seconds=start.begin,
            sequence=int(1000 * now),
            heartbeat_timestamp_seconds=now,
            steps=done,
            stage_seconds=_sums(mine),
            busy_seconds=sum(busy),
            last_step_timestamp_seconds=start.steps[done - 1].end_seconds if done else None,
            **(self._verdict(start, now) if self._job.join else _block(mine)),
        )

    @staticmethod
    def _verdict(start: Start, now: float) -> dict[str, Any]:
        """Return the fields of the verdict that was read last."""
        read = bisect_right(start.said, now, key=lambda each: each[0])
        if not read:
            return {}
        at, verdict = start.said[read - 1]
        return {"verdict": verdict, "verdict_age_seconds": now - at, "join_coverage": 1.0}


def _block(mine: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the fields of the last whole block: half a minute or more, a power of two of steps."""
    size = FEWEST_STEPS
    while mine and size * sum(_sums(mine).values()) / len(mine) < BLOCK_SECONDS:
        size *= 2
    end = len(mine) // size * size
    if not end:
        return {}
    sums = _sums(mine[end - size : end])
    return {"block_steps": size, "block_seconds": {s: each / size for s, each in sums.items()}}


def _sums(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for step in steps:
        for stage, seconds in step.items():
            sums[stage] = sums.get(stage, 0.0) + seconds
    return sums
