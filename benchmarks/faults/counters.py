"""Every counter as Prometheus has stored it, beside who was killed and what ranks counted."""

import json
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from benchmarks.faults.kills import Killed
from benchmarks.faults.ranks.job import JOB_ID
from benchmarks.faults.ranks.records import Life
from devstack.parts import PrometheusProcess
from devstack.process import get

COUNTERS: Final = '{job="rankskew",__name__=~"rankskew_.+_total"}'
DURATION: Final = 'scrape_duration_seconds{job="rankskew"}'
STEPS: Final = "rankskew_steps_total"
# Of a rank's counters, those that the exporter counts itself: they may begin anew with it too.
COUNTED_BY_EXPORTER: Final = "rankskew_rank_"


@dataclass(frozen=True, slots=True)
class Stored:
    """All samples of one series: seconds of the wall clock, and value."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """Return the metric's name."""
        return self.labels["__name__"]

    @property
    def is_of_a_rank(self) -> bool:
        """Whether a rank counted it."""
        return "rank" in self.labels and not self.name.startswith(COUNTED_BY_EXPORTER)


def scrapes(prometheus: PrometheusProcess, seconds: float) -> dict[float, float]:
    """Return when each scrape of the last *seconds* began, and how long it took, in seconds."""
    return {at: took for each in stored(prometheus, seconds, DURATION) for at, took in each.samples}


def stored(prometheus: PrometheusProcess, seconds: float, selector: str = COUNTERS) -> list[Stored]:
    """Return what *prometheus* has stored of *selector*, every counter, in the last *seconds*."""
    query = urllib.parse.urlencode({"query": f"{selector}[{seconds:.0f}s]"})
    answer = json.loads(get(f"{prometheus.url}/api/v1/query?{query}", timeout_seconds=120))
    return [
        Stored(each["metric"], tuple((at, float(value)) for at, value in each["values"]))
        for each in answer["data"]["result"]
    ]


def falls(series: Stored) -> Iterator[tuple[float, float]]:
    """Yield the times of the samples before and after each fall."""
    for (before, high), (after, low) in pairwise(series.samples):
        if low < high:
            yield before, after


def unexplained(series: Stored, kills: Sequence[Killed]) -> list[tuple[float, float]]:
    """Return the falls of *series* that no kill of what counts it explains.

    A kill explains one fall, at any time before the next kill: it shows once the successor counts.
    """
    times = sorted(killed.at for killed in kills if _counts(killed.part, series))
    found = []
    for before, after in falls(series):
        past = [at for at in times if at <= after]
        times = [at for at in times if at > after]
        if not past:
            found.append((before, after))
    return found


def _counts(part: str, series: Stored) -> bool:
    own = f"rank {series.labels.get('rank')}"
    return part == own if series.is_of_a_rank else part in (own, "exporter", "NVML child")


def too_high(
    series: Stored, lives: Sequence[Life], scrapes: Mapping[float, float]
) -> list[tuple[float, float, int]]:
    """Return the samples of a rank's steps above what a process had counted by then.

    Each with its time, its value, and what had been counted. A sample has the time at which its
    scrape began, and may be as late as its end: *scrapes* has their lengths in seconds.
    """
    own = [life for life in lives if str(life.rank) == series.labels["rank"]]
    found = []
    for at, value in series.samples:
        end = at + scrapes[at]
        counted = max((life.counted(end) for life in own if _had_begun(life, end)), default=0)
        if value > counted:
            found.append((at, value, counted))
    return found


def _had_begun(life: Life, at: float) -> bool:
    return life.steps[0].ended <= at


def steps(all_of_them: Sequence[Stored]) -> list[Stored]:
    """Return the series of the job's steps, one per rank."""
    return [each for each in all_of_them if each.name == STEPS and each.labels["job_id"] == JOB_ID]


def not_as_counted(series: Sequence[Stored], lives: Sequence[Life]) -> int:
    """Return how many ranks' last sample is not what their last process counted."""
    last = {life.rank: len(life.steps) for life in lives}
    shown = {int(each.labels["rank"]): each.samples[-1][1] for each in series}
    return sum(last.get(rank) != shown.get(rank) for rank in last.keys() | shown.keys())
