"""A trace as Prometheus would hold it: what the exporters would have shown at each scrape.

A row is one finished step, committed when it ended. Between sampled steps nothing is made up: the
counters stand still, and means per step are those of the steps that were sampled. The join's
counters are computed with exporter/skew.py over the steps that every rank has.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from exporter.accounting import Step
from exporter.errors import UsageError
from exporter.skew import SYNC, busy_seconds, charge
from exporter.traces import Run
from rank_probe.snapshot import DEFAULT_LEVEL
from rank_probe.stages import PHASE_OF, STAGES

# As the probe does it: the 2 % quantile of the waits of the last minute, the join's coverage too.
FLOOR_PARTS: Final = 50
RECENT_SECONDS: Final = 60.0
# Five weeks at the usual interval; every rank has tens of series of a value a scrape, in memory.
MOST_SCRAPES: Final = 200_000
# time_s is rounded in the files.
ROUNDING_SECONDS: Final = 0.01

_PACED: Final = "rankskew_paced_steps_total"
_JOINED: Final = "rankskew_joined_seconds_total"
_GROUP_WAIT: Final = "rankskew_group_wait_seconds_total"
_COVERAGE: Final = "rankskew_join_coverage_ratio"


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the steps of a run ended, in *scaled* seconds since its first step began.

    *ends* [rank] are in step order and never decrease, *begins* [rank] is the begin of its first
    step. *origin_seconds* is the time_s at which the run begins, unscaled.
    """

    scale: float
    origin_seconds: float
    begins: Mapping[int, float]
    ends: Mapping[int, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return max(max(ends.values()) for ends in self.ends.values())


def timeline(run: Run, scale: float) -> Timeline:
    """Place the steps of *run* in time, *scale* times slower than they were.

    The probe's time_s is the end of a step. A first step that is longer than its time_s cannot have
    ended then: in such a trace time_s is the begin of each step.
    """
    lengths = {
        rank: {step: sum(run.steps[step][rank].values()) for step in sorted(times)}
        for rank, times in run.times.items()
    }
    at_begin = any(
        length > run.times[rank][step] + ROUNDING_SECONDS
        for rank, steps in lengths.items()
        for step, length in list(steps.items())[:1]
    )
    ends: dict[int, dict[int, float]] = {}
    for rank, steps in lengths.items():
        ends[rank], before = {}, 0.0
        for step, length in steps.items():
            ends[rank][step] = before = max(before, run.times[rank][step] + at_begin * length)
    # A step begins for all of its ranks at once: clocks of nodes and roundings differ by little.
    begins = {
        rank: min(ends[peer][first] - lengths[peer][first] for peer in run.steps[first])
        for rank, steps in lengths.items()
        for first in list(steps)[:1]
    }
    origin = min(begins.values())
    return Timeline(
        scale,
        origin,
        {rank: (begin - origin) * scale for rank, begin in begins.items()},
        {
            rank: {step: (end - origin) * scale for step, end in of_rank.items()}
            for rank, of_rank in ends.items()
        },
    )


def has_sync(run: Run) -> bool:
    """Return whether anybody's wait was measured; zeros everywhere are none."""
    return any(stages.get(SYNC) for ranks in run.steps.values() for stages in ranks.values())


def whole_steps(run: Run) -> list[int]:
    """Return the steps that every rank has."""
    return [step for step in sorted(run.steps) if len(run.steps[step]) == len(run.times)]


def scrape_times(line: Timeline, interval_seconds: float) -> list[float]:
    """Return when the run is scraped, the first time at its begin, the last time after its end.

    UsageError where that is more than MOST_SCRAPES times.
    """
    intervals = line.seconds / interval_seconds
    if intervals > MOST_SCRAPES - 1:
        raise UsageError(
            f"the run lasts {line.seconds:.6g} s, which is more than {MOST_SCRAPES} scrapes; use a "
            "longer --scrape-interval or a smaller --time-scale, or is time_s not counted from the "
            "same moment on all ranks?"
        )
    return [number * interval_seconds for number in range(ceil(intervals) + 1)]


def input_series(run: Run, line: Timeline, scrapes: list[float]) -> Iterator[dict[str, str]]:
    """Yield the run's series in promtool's notation, a value for each of *scrapes*."""
    synced = has_sync(run)
    joined = _joined(run, line, scrapes) if synced else {}
    began = sorted(line.begins.values())
    for rank in sorted(run.times):
        identity = _labels(
            job_id=run.job_id,
            peer_group=run.peer_groups[rank],
            rank=str(rank),
            instance=instance(run.nodes[rank]),
        )
        shown = _Shown(len(scrapes))
        history = _History(run, line, rank, synced)
        for number, now in enumerate(scrapes):
            if now < line.begins[rank]:
                continue
            # Ranks that begin later are no missing ones.
            shown.put(number, "rankskew_world_size", sum(begin <= now for begin in began))
            info = _labels(
                world_size=str(len(began)), attempt=str(run.attempt), level=DEFAULT_LEVEL
            )
            shown.put(number, f"rankskew_rank_info{{{info}}}", 1)
            shown.put(number, "rankskew_rank_finished", 0)
            shown.put(number, "rankskew_heartbeat_timestamp_seconds", now)
            for metric, value in history.at(now):
                shown.put(number, metric, value)
            if joined:
                for metric, value in joined[rank][number].items():
                    shown.put(number, metric, value)
        yield from shown.series(identity)


def instance(node: str) -> str:
    """Return the instance label of a rank on *node*, a node's rank or name; "" is the only one."""
    return f"node{node or 0}" if node.isdigit() or not node else node


class _Shown:
    """The samples of one rank's series, as promtool writes them."""

    def __init__(self, scrapes: int) -> None:
        self._scrapes = scrapes
        self._values: dict[str, list[str]] = {}

    def put(self, number: int, metric: str, value: float) -> None:
        """Show *value* at scrape *number*."""
        values = self._values.setdefault(metric, [])
        if len(values) < number:
            values += ["stale" if values else "_"] * (number - len(values))
        values.append(f"{value:.12g}")

    def series(self, identity: str) -> Iterator[dict[str, str]]:
        for metric, values in self._values.items():
            name, _, labels = metric.rstrip("}").partition("{")
            values += ["stale"] * (self._scrapes - len(values))
            both = f"{identity},{labels}" if labels else identity
            yield {"series": f"{name}{{{both}}}", "values": " ".join(values)}


class _History:
    """The cumulative state of one rank, to be asked at times that never decrease."""

    def __init__(self, run: Run, line: Timeline, rank: int, synced: bool) -> None:
        self._run, self._rank, self._synced, self._scale = run, rank, synced, line.scale
        self._steps = list(line.ends[rank])
        self._ends = list(line.ends[rank].values())
        self._done = 0
        self._stages: dict[str, float] = {}
        self._busy = self._squared = 0.0
        self._waits: list[tuple[float, float]] = []

    def at(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield what the exporter shows at *now* of the steps that have ended by then."""
        while self._done < len(self._ends) and self._ends[self._done] <= now:
            self._commit()
        yield "rankskew_steps_total", self._done
        if not self._done:
            return
        for stage, seconds in self._stages.items():
            labels = _labels(phase=PHASE_OF[stage], stage=stage)
            yield f"rankskew_stage_seconds_total{{{labels}}}", seconds
        yield "rankskew_busy_seconds_total", self._busy
        yield "rankskew_busy_seconds_squared_total", self._squared
        yield "rankskew_last_step_timestamp_seconds", self._ends[self._done - 1]
        oldest = bisect_left(self._waits, (now - RECENT_SECONDS, 0.0))
        if waits := sorted(wait for _, wait in self._waits[oldest:]):
            yield "rankskew_sync_floor_seconds", waits[len(waits) // FLOOR_PARTS]

    def _commit(self) -> None:
        stages = self._run.steps[self._steps[self._done]][self._rank]
        for stage, seconds in stages.items():
            # A stage appears when it occurs first; of a wait that is measured 0 is a reading.
            if seconds or stage in self._stages or (stage == SYNC and self._synced):
                self._stages[stage] = self._stages.get(stage, 0.0) + seconds * self._scale
        busy = busy_seconds(stages) * self._scale
        self._busy += busy
        self._squared += busy**2
        if SYNC in stages and self._synced:
            self._waits.append((self._ends[self._done], stages[SYNC] * self._scale))
        self._done += 1


def _joined(run: Run, line: Timeline, scrapes: list[float]) -> dict[int, list[dict[str, float]]]:
    """Return what the join shows of each rank at each scrape; nothing before the first step."""
    shown: dict[int, list[dict[str, float]]] = {rank: [] for rank in run.times}
    join = _Join(run, line)
    for now in scrapes:
        of_ranks = join.at(now)
        for rank, values in shown.items():
            values.append(of_ranks.get(rank, {}))
    return shown if join.steps else {}


class _Join:
    """The join's counters of all ranks, to be asked at times that never decrease."""

    def __init__(self, run: Run, line: Timeline) -> None:
        self._run, self._scale = run, line.scale
        # A step is offered once the last of its ranks has ended it.
        self._offered = sorted(
            (max(line.ends[rank][step] for rank in ranks), step)
            for step, ranks in run.steps.items()
        )
        self._times = [time for time, _ in self._offered]
        self._whole = [_is_whole(run, step) for _, step in self._offered]
        self._done = 0
        self._coverage: float | None = None
        self._sums: dict[int, dict[str, float]] = {rank: {} for rank in run.times}
        self.steps = sum(self._whole)
        groups = set(run.peer_groups.values())
        for rank, sums in self._sums.items():
            sums.update(dict.fromkeys([_PACED, _JOINED, _GROUP_WAIT][: 1 + len(groups)], 0))
            mine = [run.steps[step][rank] for step in run.times[rank]]
            for stage in STAGES:
                if stage != SYNC and any(stages.get(stage) for stages in mine):
                    sums[_caused(stage)] = 0

    def at(self, now: float) -> dict[int, dict[str, float]]:
        """Return the series of each rank at *now*."""
        while self._done < len(self._times) and self._times[self._done] <= now:
            if self._whole[self._done]:
                self._take(self._run.steps[self._offered[self._done][1]])
            self._done += 1
        recent = self._whole[bisect_left(self._times, now - RECENT_SECONDS) : self._done]
        if recent:
            self._coverage = sum(recent) / len(recent)
        known = {} if self._coverage is None else {_COVERAGE: self._coverage}
        return {rank: {**sums, **known} for rank, sums in self._sums.items()}

    def _take(self, step: Step) -> None:
        found = charge(step, self._run.peer_groups)
        for rank, sums in self._sums.items():
            sums[_JOINED] += sum(step[rank].values()) * self._scale
            if _GROUP_WAIT in sums:
                sums[_GROUP_WAIT] += found.unequal[rank] * self._scale
        for (rank, stage), seconds in found.caused.items():
            if seconds:
                self._add(rank, _caused(stage), seconds * self._scale)
        self._add(found.pacer, _PACED, 1)

    def _add(self, rank: int, metric: str, more: float) -> None:
        self._sums[rank][metric] = self._sums[rank].get(metric, 0.0) + more


def _is_whole(run: Run, step: int) -> bool:
    ranks = run.steps[step]
    return len(ranks) == len(run.times) and all(SYNC in stages for stages in ranks.values())


def _caused(stage: str) -> str:
    return f"rankskew_wait_caused_seconds_total{{{_labels(stage=stage)}}}"


def _labels(**values: str) -> str:
    """Return labels as PromQL writes them; JSON escapes as it does."""
    return ",".join(
        f"{name}={json.dumps(text, ensure_ascii=False)}" for name, text in values.items()
    )
