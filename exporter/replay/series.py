"""A judged trace as Prometheus series: what the exporters would have exposed at each scrape.

A row is one finished step, counted when it ended. Between sampled steps nothing is interpolated:
the counters stand still. The verdict is the latest one.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final

from exporter.accounting.step import SYNC, busy_seconds
from exporter.errors import UsageError
from exporter.replay.judge import Judged
from exporter.replay.stretches import Stretch
from exporter.replay.times import Timeline
from exporter.replay.traces import Run
from rank_probe.snapshot import DEFAULT_LEVEL
from rank_probe.stages import PHASE_OF
from rank_probe.verdict import UNSYNCED, Verdict

# Five weeks at the usual interval. Every rank has tens of series with a value per scrape, in
# memory.
MOST_SCRAPES: Final = 200_000

Sample = tuple[str, float]


def scrape_times(line: Timeline, interval_seconds: float) -> list[float]:
    """Return the times of the scrapes, the first at the run's begin, the last after its end.

    Raises UsageError if these are more than MOST_SCRAPES.
    """
    intervals = line.seconds / interval_seconds
    if intervals > MOST_SCRAPES - 1:
        raise UsageError(
            f"the run lasts {line.seconds:.6g} s, which is more than {MOST_SCRAPES} scrapes; use a "
            "longer --scrape-interval or a smaller --time-scale, or is time_s not counted from the "
            "same moment on all ranks?"
        )
    return [number * interval_seconds for number in range(ceil(intervals) + 1)]


def input_series(
    run: Run, line: Timeline, judged: Sequence[Judged], scrapes: Sequence[float]
) -> Iterator[dict[str, str]]:
    """Yield the run's series in promtool's notation, with a value for each of *scrapes*."""
    spoken = [_spoken_at(judged, now) for now in scrapes]
    for rank in sorted(run.times):
        shown = _Shown(len(scrapes))
        history = _History(run, line, rank)
        for number, now in enumerate(scrapes):
            samples = list(history.at(now))
            if (spoke := spoken[number]) and rank in spoke.stretch.ranks:
                shown.put_all(number, _rank(run, len(spoke.stretch.ranks), now))
                shown.put_all(number, [*samples, *spoke.on_rank(rank)])
        yield from shown.series(
            job_id=run.job_id,
            peer_group=run.peer_groups[rank],
            rank=str(rank),
            instance=instance(run.nodes[rank]),
        )
    for node in sorted(set(run.nodes.values())):
        shown = _Shown(len(scrapes))
        for number, now in enumerate(scrapes):
            if spoke := spoken[number]:
                ranks = [rank for rank in spoke.stretch.ranks if run.nodes[rank] == node]
                if ranks:
                    shown.put_all(number, [*_node(run, line, ranks, spoke, now), *spoke.on_job()])
        yield from shown.series(job_id=run.job_id, instance=instance(node))


def instance(node: str) -> str:
    """Return the instance label for *node*, a node's rank or name; "" is the only node."""
    return f"node{node or 0}" if node.isdigit() or not node else node


class _Shown:
    """Samples of the series of one rank or node, in promtool's notation."""

    def __init__(self, scrapes: int) -> None:
        self._scrapes = scrapes
        self._values: dict[str, list[str]] = {}

    def put_all(self, number: int, samples: Sequence[Sample] | Iterator[Sample]) -> None:
        """Show *samples* at scrape *number*."""
        for metric, value in samples:
            values = self._values.setdefault(metric, [])
            if len(values) < number:
                values += ["stale" if values else "_"] * (number - len(values))
            values.append(f"{value:.12g}")

    def series(self, **identity: str) -> Iterator[dict[str, str]]:
        for metric, values in self._values.items():
            name, _, labels = metric.rstrip("}").partition("{")
            values += ["stale"] * (self._scrapes - len(values))
            both = f"{_labels(**identity)},{labels}" if labels else _labels(**identity)
            yield {"series": f"{name}{{{both}}}", "values": " ".join(values)}


class _Spoken:
    """The latest verdict on a stretch: *verdict*, from the time *at*; None: no verdict yet."""

    def __init__(self, stretch: Stretch, at: float, verdict: Verdict | None) -> None:
        self.stretch = stretch
        self._at = at
        self._verdict = verdict

    def on_rank(self, rank: int) -> Iterator[Sample]:
        """Yield the series of a late rank's exporter."""
        for late in self._verdict.late if self._verdict else ():
            if late.rank == rank:
                yield (
                    f"rankskew_late_ratio{{{_labels(kind=late.kind, stage=late.stage)}}}",
                    late.ratio,
                )
                yield "rankskew_late_since_timestamp_seconds", self._at - late.since_seconds
                for stage, gpus in late.gpus.items() if late.kind != UNSYNCED else ():
                    yield f"rankskew_late_gpus{{{_labels(stage=stage)}}}", gpus

    def on_job(self) -> Iterator[Sample]:
        """Yield the series of the job that every node exposes."""
        verdict = self._verdict
        if verdict is None:
            return
        for kind, gpus in verdict.gpus_lost.items():
            yield f"rankskew_job_gpus_lost{{{_labels(kind=kind)}}}", gpus
        for stage, gpus in verdict.rotating.items():
            yield f"rankskew_job_stage_gpus_lost{{{_labels(stage=stage)}}}", gpus
        for group, ranks in verdict.ranks.items():
            yield f"rankskew_job_ranks{{{_labels(peer_group=group)}}}", ranks
        if verdict.slowdown is not None:
            yield "rankskew_job_slowdown_ratio", verdict.slowdown
        if verdict.step_seconds is not None:
            yield "rankskew_job_step_seconds", verdict.step_seconds
        if verdict.reason is not None:
            yield f"rankskew_job_not_judgeable{{{_labels(reason=verdict.reason)}}}", 1
        yield "rankskew_job_coverage_ratio", len(self.stretch.steps) / self.stretch.recorded


def _spoken_at(judged: Sequence[Judged], now: float) -> _Spoken | None:
    """Return the latest verdict *now*; None if no rank is there."""
    begun = [one for one in judged if one.stretch.begin <= now]
    if not begun:
        return None
    one = begun[-1]
    done = bisect_right([at for at, _ in one.verdicts], now)
    return _Spoken(one.stretch, *(one.verdicts[done - 1] if done else (now, None)))


def _rank(run: Run, world_size: int, now: float) -> Iterator[Sample]:
    info = _labels(world_size=str(world_size), attempt=str(run.attempt), level=DEFAULT_LEVEL)
    yield f"rankskew_rank_info{{{info}}}", 1
    yield "rankskew_heartbeat_timestamp_seconds", now


def _node(
    run: Run, line: Timeline, ranks: Sequence[int], spoke: _Spoken, now: float
) -> Iterator[Sample]:
    """Yield the series of a node and its *ranks*, all of which beat."""
    for state, count in (("beating", len(ranks)), ("silent", 0), ("finished", 0)):
        yield f"rankskew_node_ranks{{{_labels(state=state)}}}", count
    yield "rankskew_node_world_size", len(spoke.stretch.ranks)
    yield "rankskew_node_run_seconds", max(now - line.begins[rank] for rank in ranks)
    ages = [age for rank in ranks if (age := _step_age(line, rank, now)) is not None]
    yield "rankskew_node_stepping_ranks", len(ages)
    if ages:
        yield "rankskew_node_last_step_age_seconds", min(ages)


def _step_age(line: Timeline, rank: int, now: float) -> float | None:
    ends = list(line.ends[rank].values())
    done = bisect_right(ends, now)
    return now - ends[done - 1] if done else None


class _History:
    """The cumulative state of one rank; ask for times that never decrease."""

    def __init__(self, run: Run, line: Timeline, rank: int) -> None:
        self._run, self._rank, self._scale = run, rank, line.scale
        self._steps = list(line.ends[rank])
        self._ends = list(line.ends[rank].values())
        self._done = 0
        self._stages: dict[str, float] = {}
        self._busy = 0.0

    def at(self, now: float) -> Iterator[Sample]:
        """Yield what the exporter exposes *now*, from the steps that have ended."""
        while self._done < len(self._ends) and self._ends[self._done] <= now:
            self._commit()
        yield "rankskew_steps_total", self._done
        if not self._done:
            return
        for stage, seconds in self._stages.items():
            labels = _labels(phase=PHASE_OF[stage], stage=stage)
            yield f"rankskew_stage_seconds_total{{{labels}}}", seconds
        yield "rankskew_busy_seconds_total", self._busy
        yield "rankskew_last_step_timestamp_seconds", self._ends[self._done - 1]

    def _commit(self) -> None:
        stages = self._run.steps[self._steps[self._done]][self._rank]
        for stage, seconds in stages.items():
            # A stage appears when it first occurs; a wait of 0 is a reading too.
            if seconds or stage in self._stages or stage == SYNC:
                self._stages[stage] = self._stages.get(stage, 0.0) + seconds * self._scale
        self._busy += busy_seconds(stages) * self._scale
        self._done += 1


def _labels(**values: str) -> str:
    """Return labels in PromQL notation; JSON has the same escapes."""
    return ",".join(
        f"{name}={json.dumps(text, ensure_ascii=False)}" for name, text in values.items()
    )
