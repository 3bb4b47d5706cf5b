"""One side of a comparison, from a Prometheus: counters, read at the borders of blocks of time."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from exporter.client.fetch import Trouble
from exporter.client.prometheus import Prometheus, selector
from exporter.diagnose.compare.periods import Period
from exporter.diagnose.compare.prometheus_late import late_ranks, slowdown
from exporter.diagnose.compare.side import BLOCKS, RARE_STAGES, Block, Side, pause_seconds
from rank_probe.verdict import MILD, UNSYNCED

# The median of so many ranks is that of all, and Prometheus compares them in a second.
MOST_RANKS: Final = 256
# How far back the end of a job is looked for.
SEARCH: Final = "14d"

# Sums over all ranks, read at each border, by name.
COUNTERS: Final = {
    "ranks": "count(group by (rank) (rankskew_steps_total{%s}))",
    "copies": "count(rankskew_steps_total{%s})",
    "steps": "sum(rankskew_steps_total{%s})",
    "busy": "sum(rankskew_busy_seconds_total{%s})",
    "sync": 'sum(rankskew_stage_seconds_total{%s,stage="sync"})',
    "tokens": "sum(rankskew_tokens_total{%s})",
    "samples": "sum(rankskew_samples_total{%s})",
    "joined": "sum(rankskew_joined_seconds_total{%s})",
    # A rank has these from the first time on that others wait for it.
    "group": "sum(rankskew_group_wait_seconds_total{%s}) or JOINED",
    "caused": "sum(rankskew_wait_caused_seconds_total{%s}) or JOINED",
    "persistent": 'sum(rankskew_wait_caused_seconds_total{%s,rank=~"NAMED"}) or JOINED',
}
JOINED: Final = "0 * sum(rankskew_joined_seconds_total{%s})"
# The median rank's seconds per step of each stage, since the border before.
STAGES: Final = """\
quantile by (stage) (0.5,
  (rankskew_stage_seconds_total{WHERE} - rankskew_stage_seconds_total{WHERE} offset BLOCK)
  / ignoring (phase, stage) group_left ()
  (rankskew_steps_total{WHERE} - rankskew_steps_total{WHERE} offset BLOCK > 0)
)"""
# How long no rank had finished a step, except while one saved or evaluated.
AGE: Final = """\
max_over_time((
  min(rankskew_node_last_step_age_seconds{WHERE})
  unless on () group(rankskew_stage_elapsed_seconds{WHERE,stage=~"RARE"})
)[PERIOD:15s])"""

# What was read at each border, by name; a name that a border lacks is not there at all.
Readings = Mapping[str, Sequence[float]]


def prometheus_side(
    prometheus: Prometheus, job_id: str, cluster: str | None, what: str, period: Period
) -> Side:
    """Return the side that *period* is for a job; *what* begins sentences. Raises Trouble."""
    where = selector(cluster=cluster, job_id=job_id)
    late = late_ranks(prometheus, where, period)
    named = [one.rank for one in late or () if one.kind not in (MILD, UNSYNCED)]
    readings = _readings(prometheus, where, period, named)
    ranks = round(readings.get("ranks", [0.0])[-1])

    def side(blocks: Sequence[Block], trouble: str | None) -> Side:
        return Side(
            what=what,
            job_id=job_id,
            begin=period.begin,
            end=period.end,
            ranks=ranks,
            blocks=blocks,
            late=late,
            slowdown=slowdown(prometheus, where, period),
            trouble=trouble,
        )

    if trouble := _not_whole(prometheus, where, what, period, readings):
        return side([], trouble)
    stages = _stages(prometheus, where + _some_of(ranks), period)
    return side(_blocks(readings, stages, _borders(readings)), None)


def _readings(
    prometheus: Prometheus, where: str, period: Period, named: Iterable[int]
) -> dict[str, list[float]]:
    those = "|".join(map(str, sorted(named))) or "none"
    step = (period.end - period.begin) / BLOCKS
    readings = {}
    for name, text in COUNTERS.items():
        # The name of a job may have any of these words in it, so it comes last.
        ready = text.replace("NAMED", those).replace("JOINED", JOINED).replace("%s", where)
        found = prometheus.query_range(ready, period.begin, period.end + step / 2, step)
        if found and len(found[0].points) == BLOCKS + 1:
            readings[name] = [value for _, value in found[0].points]
    return readings


def _not_whole(
    prometheus: Prometheus, where: str, what: str, period: Period, readings: Readings
) -> str | None:
    """Say why the period is not one of undisturbed steps."""
    if "steps" not in readings or "busy" not in readings:
        return (
            f"{what} is not wholly recorded: this Prometheus lacks the job's steps in a part of "
            "it; compare a shorter or a later period."
        )
    span = f"{(period.end - period.begin) * 1000:.0f}ms"
    resets = prometheus.query(f"max(resets(rankskew_steps_total{{{where}}}[{span}]))", period.end)
    goes_back = any(b < a for a, b in pairwise(readings["steps"]))
    if goes_back or any(found.value for found in resets) or len({*readings["copies"]}) > 1:
        return (
            f"{what} has a restart in it, or ranks that come and go; compare a period in which all "
            "ranks run."
        )
    ages = prometheus.query(
        AGE.replace("RARE", "|".join(RARE_STAGES)).replace("PERIOD", span).replace("WHERE", where),
        period.end,
    )
    done = readings["steps"][-1] - readings["steps"][0]
    usual = _gained(readings, 0, -1)["seconds"] / done if done else 0.0
    longest = max((found.value for found in ages), default=0.0)
    if longest > pause_seconds(usual):
        return (
            f"{what} has {longest:.0f} s without a step: the job stood still; compare a period "
            "without that."
        )
    return None


def _gained(readings: Readings, begin: int, end: int) -> dict[str, float]:
    """Return what was counted between two borders, and the *seconds* of all ranks' steps."""
    gained = {name: values[end] - values[begin] for name, values in readings.items()}
    return gained | {"seconds": gained["busy"] + gained.get("sync", 0.0)}


def _borders(readings: Readings) -> list[int]:
    """Return the borders with at least one step of each rank between them.

    Prometheus may scrape so seldom that a block ends before it sees a step.
    """
    steps, ranks = readings["steps"], readings["copies"][0]
    borders = [0]
    for number in range(1, len(steps)):
        if steps[number] - steps[borders[-1]] >= ranks:
            borders.append(number)
    return borders


def _some_of(ranks: int) -> str:
    """Return a matcher of MOST_RANKS ranks at random, nothing for fewer."""
    if ranks <= MOST_RANKS:
        return ""
    chosen = sorted(random.Random(ranks).sample(range(ranks), MOST_RANKS))
    return f',rank=~"{"|".join(map(str, chosen))}"'


def _stages(prometheus: Prometheus, where: str, period: Period) -> list[dict[str, float]]:
    """Return the median rank's seconds per step in each stage, by block."""
    step = (period.end - period.begin) / BLOCKS
    expression = STAGES.replace("BLOCK", f"{step * 1000:.0f}ms").replace("WHERE", where)
    first = period.begin + step
    found: list[dict[str, float]] = [{} for _ in range(BLOCKS)]
    for series in prometheus.query_range(expression, first, period.end + step / 2, step):
        for at, value in series.points:
            found[round((at - first) / step)][series["stage"]] = value
    return found


def _blocks(
    readings: Readings, stages: Sequence[Mapping[str, float]], borders: Sequence[int]
) -> list[Block]:
    """Return the blocks between *borders*; where a rank has several series, each counts a part."""
    copies, ranks = readings["copies"][0], readings["ranks"][0]
    share = ranks / copies
    blocks = []
    for begin, end in pairwise(borders):
        now = _gained(readings, begin, end)
        length = now["seconds"] / copies
        lost = now["sync"] * share if "sync" in now else None
        in_stages: dict[str, float] = defaultdict(float)
        for number in range(begin, end):
            steps = (readings["steps"][number + 1] - readings["steps"][number]) / copies
            for stage, value in stages[number].items():
                in_stages[stage] += value * steps
        blocks.append(
            Block(
                steps=now["steps"] / copies,
                seconds=length,
                stages=in_stages,
                lost=lost,
                kinds=_kinds(
                    now, lost, ranks * length / now["joined"] if now.get("joined") else None
                ),
                tokens=now["tokens"] * share if "tokens" in now else None,
                samples=now["samples"] * share if "samples" in now else None,
            )
        )
    return blocks


def _kinds(now: Mapping[str, float], lost: float | None, joined: float | None) -> dict[str, float]:
    """Return what was *lost* by kind, in GPU-seconds; nothing where no join accounts for it.

    *joined* converts what the join counted, on most steps, to all steps of each rank.
    """
    if lost is None or joined is None:
        return {}
    group, caused, persistent = (
        now.get(name, 0.0) * joined for name in ("group", "caused", "persistent")
    )
    return {
        "group": group,
        "persistent": persistent,
        "rotating": caused - persistent,
        "common": lost - group - caused,
    }


def last_period(
    prometheus: Prometheus, job_id: str, cluster: str | None, window_seconds: float
) -> Period:
    """Return the window that ends with the last step of a job; raises Trouble if it has none."""
    where = selector(cluster=cluster, job_id=job_id, rank="0")
    steps = f"rankskew_last_step_timestamp_seconds{{{where}}}"
    found = prometheus.query(f"max by (cluster) (max_over_time({steps}[{SEARCH}]))")
    if not found:
        raise Trouble(f"This Prometheus knows no step of a job {job_id!r} in the last {SEARCH}.")
    if len(found) > 1:
        clusters = ", ".join(sorted(each["cluster"] for each in found))
        raise Trouble(f"Several clusters have a job {job_id!r}; give --cluster: {clusters}.")
    return Period(found[0].value - window_seconds, found[0].value)
