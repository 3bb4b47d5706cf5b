"""One side of a comparison, from a Prometheus: counters, read at the borders of blocks of time."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rank_probe.judge.verdict import MILD, UNSYNCED
from rank_probe.wire.stages import STAGES
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, Sample, selector
from rankskew.compare.comparison import BLOCKS, RARE_STAGES, Block, ComparedSide, Late, Side
from rankskew.times import Span

# The median of so many ranks is that of all, and Prometheus compares them in a second.
MOST_RANKS: Final = 256
# How far back the end of a job is looked for.
SEARCH: Final = "14d"
LOOK_SECONDS: Final = 15.0
# Ranks that were late for a smaller share of the period are not compared.
LEAST_SHARE: Final = 0.1
# No step ended for so long, and for so many steps: the job stood still.
PAUSE_SECONDS: Final = 60.0
PAUSE_STEPS: Final = 10

# Sums over all ranks, read at each border, by name.
COUNTERS: Final = {
    "ranks": "count(group by (rank) (rankskew_steps_total{WHERE}))",
    "copies": "count(rankskew_steps_total{WHERE})",
    "steps": "sum(rankskew_steps_total{WHERE})",
    "busy": "sum(rankskew_busy_seconds_total{WHERE})",
    "lost": 'sum(rankskew_stage_seconds_total{WHERE,stage="sync"})',
    "tokens": "sum(rankskew_tokens_total{WHERE})",
    "samples": "sum(rankskew_samples_total{WHERE})",
    "joined": "sum(rankskew_joined_seconds_total{WHERE})",
    # A rank has these only once others have waited for it.
    "group": "sum(rankskew_group_wait_seconds_total{WHERE}) or JOINED",
    "caused": "sum(rankskew_wait_caused_seconds_total{WHERE}) or JOINED",
    "persistent": 'sum(rankskew_wait_caused_seconds_total{WHERE,rank=~"NAMED"}) or JOINED',
}
JOINED: Final = "0 * sum(rankskew_joined_seconds_total{WHERE})"
# The median rank's seconds per step of each stage, since the border before.
STAGE_SECONDS: Final = """\
quantile by (stage) (0.5,
  (rankskew_stage_seconds_total{WHERE} - rankskew_stage_seconds_total{WHERE} offset BLOCK)
  / ignoring (phase, stage) group_left ()
  (rankskew_steps_total{WHERE} - rankskew_steps_total{WHERE} offset BLOCK > 0)
)"""
RESETS: Final = "max(resets(rankskew_steps_total{WHERE}[PERIOD]))"
# How long no rank had finished a step, except while one saved or evaluated.
AGE: Final = """\
max_over_time((
  min(rankskew_node_last_step_age_seconds{WHERE})
  unless on () group(rankskew_stage_elapsed_seconds{WHERE,stage=~"RARE"})
)[PERIOD:15s])"""
# How often each rank was late, and whether anybody judged; recorded series include the fallback.
LATE: Final = """\
count_over_time((
  max by (peer_group, rank, instance, kind, stage) (
    {__name__=~"rankskew_late_ratio|rank:rankskew_late:ratio",WHERE}
  )
)[PERIOD:15s])"""
JUDGED: Final = """\
count(count_over_time({__name__=~"rankskew_job_step_seconds|job:rankskew_ranks:sum",WHERE}[PERIOD]))"""
SLOWDOWN: Final = """\
avg_over_time((
  max({__name__=~"rankskew_job_slowdown_ratio|job:rankskew_slowdown:max",WHERE})
)[PERIOD:15s])"""
# The GPUs that wait for each rank: what it made others wait, of the time that was compared.
CAUSED: Final = """\
sum by (rank) (increase(rankskew_wait_caused_seconds_total{WHERE,rank=~"NAMED"}[PERIOD]))
/ on () group_left () avg(increase(rankskew_joined_seconds_total{WHERE}[PERIOD]))"""

# The values at each border, by name; a name that lacks a value at any border is left out.
Readings = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class _Job:
    """The job that *where* selects, in *period*."""

    prometheus: Prometheus
    where: str
    period: Span

    @property
    def seconds(self) -> float:
        return self.period[1] - self.period[0]

    @property
    def block_seconds(self) -> float:
        return self.seconds / BLOCKS

    def ask(self, expression: str, named: Iterable[int] = ()) -> list[Sample]:
        """Return what an *expression* says of the whole period; raises Trouble."""
        ready = expression.replace("PERIOD", f"{self.seconds * 1000:.0f}ms")
        return self.prometheus.query(self.filled(ready, named), self.period[1])

    def filled(self, expression: str, named: Iterable[int] = (), where: str = "") -> str:
        """Return *expression* for this job, whose name may contain any of the placeholders."""
        those = "|".join(map(str, sorted(named))) or "none"
        ready = expression.replace("NAMED", those).replace("RARE", "|".join(RARE_STAGES))
        return ready.replace("JOINED", JOINED).replace("WHERE", self.where + where)


def prometheus_side(
    prometheus: Prometheus, job_id: str, cluster: str | None, what: str, period: Span
) -> Side:
    """Return the side that *period* is for a job; *what* begins sentences. Raises Trouble."""
    job = _Job(prometheus, selector(cluster=cluster, job_id=job_id), period)
    late = _late_ranks(job)
    readings = _readings(job, [rank for rank, _ in late or ()])
    ranks = round(readings.get("ranks", [0.0])[-1])
    trouble = _not_whole(job, what, readings)
    blocks = [] if trouble else _blocks(readings, _stages(job, ranks))
    slowdown = job.ask(SLOWDOWN)
    summary = ComparedSide(
        job_id=job_id,
        begin=round(period[0], 3),
        end=round(period[1], 3),
        ranks=ranks,
        steps=round(sum(block["steps"] for block in blocks), 3),
        blocks=len(blocks),
        slowdown=slowdown[0].value if slowdown else None,
    )
    return Side(what, summary, blocks, late, trouble)


def last_period(
    prometheus: Prometheus, job_id: str, cluster: str | None, window_seconds: float
) -> Span:
    """Return the window that ends with the last step of a job; raises Trouble if it has none."""
    where = selector(cluster=cluster, job_id=job_id, rank="0")
    steps = f"rankskew_last_step_timestamp_seconds{{{where}}}"
    found = prometheus.query(f"max by (cluster) (max_over_time({steps}[{SEARCH}]))")
    if not found:
        raise Trouble(f"This Prometheus knows no step of a job {job_id!r} in the last {SEARCH}.")
    if len(found) > 1:
        clusters = ", ".join(sorted(each["cluster"] for each in found))
        raise Trouble(f"Several clusters have a job {job_id!r}; give --cluster: {clusters}.")
    return found[0].value - window_seconds, found[0].value


def _late_ranks(job: _Job) -> Late | None:
    """Return the ranks that were called late in the period; None if nobody judged the job."""
    if not job.ask(JUDGED):
        return None
    looks = job.seconds / LOOK_SECONDS
    times: Counter[int] = Counter()
    longest: dict[int, Sample] = {}
    for found in sorted(job.ask(LATE), key=lambda each: each.value):
        if found["rank"].isdecimal():
            times[int(found["rank"])] += round(found.value)
            longest[int(found["rank"])] = found
    named = sorted(
        rank
        for rank, often in times.items()
        if often / looks >= LEAST_SHARE and longest[rank]["kind"] not in (MILD, UNSYNCED)
    )
    cost = {int(each["rank"]): each.value for each in job.ask(CAUSED, named)} if named else {}
    return {(rank, longest[rank]["stage"]): cost.get(rank) for rank in named}


# ---- Readings ----------------------------------------------------------------------------------


def _readings(job: _Job, named: Iterable[int]) -> dict[str, list[float]]:
    step, (begin, end) = job.block_seconds, job.period
    readings = {}
    for name, expression in COUNTERS.items():
        ready = job.filled(expression, named)
        found = job.prometheus.query_range(ready, begin, end + step / 2, step)
        if found and len(found[0].points) == BLOCKS + 1:
            readings[name] = [value for _, value in found[0].points]
    return readings


def _stages(job: _Job, ranks: int) -> list[dict[str, float]]:
    """Return the median rank's seconds per step in each stage, by block."""
    some = ""
    if ranks > MOST_RANKS:
        chosen = sorted(random.Random(ranks).sample(range(ranks), MOST_RANKS))
        some = f',rank=~"{"|".join(map(str, chosen))}"'
    step, (begin, end) = job.block_seconds, job.period
    ready = job.filled(STAGE_SECONDS.replace("BLOCK", f"{step * 1000:.0f}ms"), where=some)
    found: list[dict[str, float]] = [{} for _ in range(BLOCKS)]
    for series in job.prometheus.query_range(ready, begin + step, end + step / 2, step):
        for at, value in series.points:
            found[round((at - begin) / step) - 1][series["stage"]] = value
    return found


def _not_whole(job: _Job, what: str, readings: Readings) -> str | None:
    """Say why the period is not one of undisturbed steps."""
    if "steps" not in readings or "busy" not in readings:
        return (
            f"{what} is not wholly recorded: this Prometheus lacks the job's steps in a part of "
            "it; compare a shorter or a later period."
        )
    goes_back = any(b < a for a, b in pairwise(readings["steps"]))
    resets = any(found.value for found in job.ask(RESETS))
    if goes_back or resets or len({*readings["copies"]}) > 1:
        return (
            f"{what} has a restart in it, or ranks that come and go; compare a period in which all "
            "ranks run."
        )
    done = readings["steps"][-1] - readings["steps"][0]
    usual = _gained(readings, 0, -1)["seconds"] / done if done else 0.0
    longest = max((found.value for found in job.ask(AGE)), default=0.0)
    if longest > max(PAUSE_SECONDS, PAUSE_STEPS * usual):
        return (
            f"{what} has {longest:.0f} s without a step: the job stood still; compare a period "
            "without that."
        )
    return None


def _gained(readings: Readings, begin: int, end: int) -> dict[str, float]:
    """Return what was counted between two borders, and the *seconds* of all ranks' steps."""
    gained = {name: values[end] - values[begin] for name, values in readings.items()}
    return gained | {"seconds": gained["busy"] + gained.get("lost", 0.0)}


# ---- Blocks ------------------------------------------------------------------------------------


def _blocks(readings: Readings, stages: Sequence[Mapping[str, float]]) -> list[Block]:
    """Return the blocks between borders; where a rank has several series, each counts a part."""
    steps, ranks = readings["steps"], readings["copies"][0]
    borders = [0]
    # Prometheus may scrape so seldom that a block ends before it sees a step of each rank.
    for number in range(1, len(steps)):
        if steps[number] - steps[borders[-1]] >= ranks:
            borders.append(number)
    return [_block(readings, stages, begin, end) for begin, end in pairwise(borders)]


def _block(
    readings: Readings, stages: Sequence[Mapping[str, float]], begin: int, end: int
) -> Block:
    copies, ranks = readings["copies"][0], readings["ranks"][0]
    gained = _gained(readings, begin, end)
    in_stages: dict[str, float] = defaultdict(float)
    for number in range(begin, end):
        steps = (readings["steps"][number + 1] - readings["steps"][number]) / copies
        for stage, seconds in stages[number].items():
            in_stages[stage] += seconds * steps
    seconds = gained["seconds"] / copies
    # A stage that no step of the block had took no time.
    found = dict.fromkeys(STAGES, 0.0) | in_stages if any(stages[begin:end]) else {}
    found |= {"steps": gained["steps"] / copies, "seconds": seconds, "gpu_seconds": seconds * ranks}
    of_all = [name for name in ("lost", "tokens", "samples") if name in gained]
    found |= {name: gained[name] * ranks / copies for name in of_all}
    if "lost" in found and gained.get("joined"):
        # The join counts most steps, not all: scale what it counted to all steps.
        whole = found["gpu_seconds"] / gained["joined"]
        kinds = ("group", "caused", "persistent")
        group, caused, persistent = (gained.get(name, 0.0) * whole for name in kinds)
        found |= {"group": group, "persistent": persistent, "rotating": caused - persistent}
        found["common"] = found["lost"] - group - caused
    return found
