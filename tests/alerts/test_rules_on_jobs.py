"""End to end: which alerts the rules fire for simulated jobs, judged and shown by exporters."""

import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.ranks import IDENTITY, RanksCollector
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.alerts.promtool import RULES, Answers, ScrapedPages, answers
from tests.exporter.snapshots import snapshot
from tests.rank_probe import judged
from tests.rank_probe.judged import (
    NEVER,
    RESTART_PAUSE_SECONDS,
    Fault,
    Step,
    gpus_lost,
    judged_steps,
    simulate,
    vectors,
)

pytestmark = pytest.mark.e2e

# ---- Pages of the exporters, as series for promtool ----------------------------------------------

# Time until a rank reads what rank 0 posted.
READ_SECONDS: Final = 1.0
# Time from the start of a probe to the first step of its process.
LOADING_SECONDS: Final = 5.0
BLOCK_SECONDS: Final = 30.0
FEWEST_STEPS: Final = 16
# Prefixes of series that a page shows and no rule reads.
UNREAD: Final = ("rankskew_runtime_info", "rankskew_probe_")


@dataclass(frozen=True)
class Job(judged.Job):
    """A job whose nodes are scraped one after the other, evenly over *scrape_seconds*.

    The exporter of the first node restarts at *unseen_seconds*: its scrapes fail for 45 seconds.
    With *join* the ranks push the verdict of the join, else blocks of steps. The last *missing*
    ranks report to no exporter.
    """

    unseen_seconds: float = NEVER
    missing: int = 0
    scrape_seconds: float = 15.0
    join: bool = True

    @property
    def nodes(self) -> list[range]:
        """The ranks of each node."""
        ranks, here = range(self.ranks), self.ranks_per_node
        return [ranks[first : first + here] for first in range(0, self.ranks, here)]

    def phase(self, node: int) -> float:
        """Return how long before an evaluation *node* was scraped, in seconds."""
        return self.scrape_seconds * node / len(self.nodes)

    def is_seen(self, node: int, now: float) -> bool:
        """Return whether a scrape at *now* finds *node*."""
        return not (node == 0 and self.unseen_seconds <= now < self.unseen_seconds + 45)


def input_series(job: Job, steps: list[Step], job_id: str) -> list[dict[str, str]]:
    """Return *job* as scraped every *job.scrape_seconds* from pushes up to a second old."""
    starts = starts_of(job, steps)
    scraped = ScrapedPages()
    for number, ranks in enumerate(job.nodes):
        node = Node(job, job_id, starts, ranks)
        for scrape in range(int(job.seconds // job.scrape_seconds) + 1):
            now = scrape * job.scrape_seconds
            shown = node.page(now - job.phase(number)) if job.is_seen(number, now) else []
            scraped.scrape(scrape, f"{job_id} {number}:9917", shown)
    return scraped.series()


def _explained(page: Iterable[Metric]) -> Metric:
    """Return the cause `unknown` for each late rank, as an exporter without evidence does."""
    info = Metric("rankskew_late_cause_info", "Why it is late.", "gauge")
    for metric in page:
        if metric.name == "rankskew_late_ratio":
            for sample in metric.samples:
                who = {label: sample.labels[label] for label in IDENTITY}
                info.add_sample(info.name, who | {"cause": "unknown"}, 1.0)
    return info


@dataclass
class Start:
    """One start of a job: its *steps*, and the seconds *measured* in each, by rank and stage.

    The processes live from *begin* to *end*. *said* holds the verdicts as JSON, each with the
    time at which the ranks read it.
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

    def page(self, now: float) -> list[Metric]:
        """Return the page at *now*, which must be later than in the previous call."""
        for rank in self._ranks:
            self._push(rank, now - self._draw.random())
        self._now = now
        page = [
            metric
            for collector in self._collectors
            for metric in collector.collect()
            if not metric.name.startswith(UNREAD)
        ]
        return [*page, _explained(page)]

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


# ---- Whom the rules wake -------------------------------------------------------------------------

# The rule groups needed to name a rank; the others only read from these, or are unrelated.
GROUPS = ("thresholds", "ranks", "late", "hang", "coverage", "cost", "info")
END = 240.0
# Alerts that page somebody: those firing now, and those that fired at any time in the run.
FIRING = 'ALERTS{alertstate="firing",severity!="info"}'
EVER = f"max_over_time({FIRING}[{END:g}s])"
PAGED = f"page:rankskew_gpus_lost:last1m and on (job_id, rank) {FIRING}"
LOST = "rank:rankskew_gpus_lost:sum"
LATE = f"max_over_time(rank:rankskew_late:ratio[{END:g}s])"
JUDGE = "group by (job_id, judge) (rankskew_job_judge_info)"
REASON = "job_reason:rankskew_not_judgeable:bool"

# An alert by its name without our prefix, its rank and its stage.
Alert = tuple[str, str, str]
Table = dict[str, tuple[Job, set[Alert]]]


def by_both(table: Table) -> Table:
    """Return each job twice: judged by its join, and by the judges of its nodes."""
    return {
        f"{name}, by {judge}": (replace(job, join=judge == "join"), alerts)
        for name, (job, alerts) in table.items()
        for judge in ("join", "node")
    }


def straggler(rank: int, stage: str) -> set[Alert]:
    return {("Straggler", f"{rank}", stage)}


def late(ranks: int, stage: str, ratio: float) -> tuple[Job, set[Alert]]:
    """Return a job whose rank 1 is late from the start, with the alert for that rank."""
    return Job(ranks=ranks, seed=ranks, faults=(Fault(1, stage, ratio),)), straggler(1, stage)


LATE_RANKS = by_both(
    {
        "a little late in data": late(4, "data", 0.12),
        "late in forward": late(4, "forward", 0.25),
        "twice as slow": late(2, "backward", 1.0),
        "late on one of two nodes": late(16, "optimizer", 0.25),
    }
)
# Noise, rotation, unequal groups, restarts, gaps and long steps are nobody's fault.
HEALTHY = by_both(
    {
        name: (replace(job, seed=7), set())
        for name, job in {
            "noisy steps": Job(ranks=8, stage_noise=0.2, common_noise=0.1),
            "rotating": Job(ranks=4, faults=(Fault(None, "data", 0.5),)),
            "unequal groups": Job(ranks=8, group_work=(1.0, 1.3)),
            "slow together": Job(ranks=8, slow_together_seconds=120),
            "restart": Job(ranks=4, restart_seconds=120),
            "exporter restart": Job(ranks=4, unseen_seconds=150),
            "steps of 6 seconds": Job(ranks=4, busy_seconds=6),
            "two nodes": Job(ranks=16),
            "one rank": Job(ranks=1),
            # Without a measured wait no rank can be judged.
            "unmeasured": Job(sync_measured=False, faults=(Fault(1, "data", 0.5),)),
        }.items()
    }
)
OTHERS: Table = {
    "slow node": (
        Job(ranks=16, seed=5, faults=tuple(Fault(r, "forward", 0.25) for r in range(8, 16))),
        {("SlowNode", "", "forward")},
    ),
    # Four seconds every 25.
    "pauses": (Job(seed=1, faults=(Fault(1, "data", 8, every=40),)), straggler(1, "data")),
    # Rank 1 is late, but communication dominates the step: its delay hardly matters.
    "cheap": (
        Job(
            communication_ratio=8,
            stage_noise=0.01,
            common_noise=0.01,
            faults=(Fault(1, "data", 0.1),),
        ),
        set(),
    ),
    "transient": (Job(seed=5, faults=(Fault(1, "data", 1.0, 1, 90, 120),)), straggler(1, "data")),
    "a rank is missing": (
        Job(ranks=8, missing=1, faults=(Fault(2, "data", 0.25),)),
        straggler(2, "data") | {("RanksMissing", "", "")},
    ),
}
JOBS = {
    name: (replace(job, seconds=END), alerts)
    for name, (job, alerts) in (LATE_RANKS | HEALTHY | OTHERS).items()
}


def asked(folder: Path, jobs: Mapping[str, Job], exprs: Iterable[tuple[str, float]]) -> Answers:
    """Return the results of *exprs* at their times; all *jobs* have the same scrape interval."""
    series = [each for name, job in jobs.items() for each in input_series(job, simulate(job), name)]
    (seconds,) = {job.scrape_seconds for job in jobs.values()}
    rules = [path for path in RULES if path.stem in GROUPS]
    return answers(folder, series, exprs, rules, GROUPS, seconds)


def alerts_of(found: Answers, job_id: str, expr: str = EVER, at_seconds: float = END) -> set[Alert]:
    return {
        (
            labels["alertname"].removeprefix("Rankskew"),
            labels.get("rank", ""),
            labels.get("stage", ""),
        )
        for labels, _ in found[expr, at_seconds]
        if labels.get("job_id") == job_id
    }


def of(found: Answers, job_id: str, expr: str, at_seconds: float = END) -> list[float]:
    """Return the values that *expr* has for this job."""
    return [value for labels, value in found[expr, at_seconds] if labels.get("job_id") == job_id]


def labels_of(found: Answers, job_id: str, expr: str, label: str) -> set[str]:
    """Return the values of a *label* in what *expr* yields for this job at its end."""
    return {labels[label] for labels, _ in found[expr, END] if labels.get("job_id") == job_id}


KINDS = "job_kind:rankskew_gpus_lost:sum"
COVERAGE = "job:rankskew_coverage:ratio"
NODE_LOST = "node:rankskew_gpus_lost:sum"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the rules make of all jobs, side by side in one Prometheus."""
    exprs = (EVER, FIRING, LOST, KINDS, LATE, JUDGE, REASON, COVERAGE, NODE_LOST, "ALERTS")
    jobs = {name: job for name, (job, _) in JOBS.items()}
    return asked(tmp_path_factory.mktemp("jobs"), jobs, [(expr, END) for expr in exprs])


@pytest.mark.parametrize("name", JOBS)
def test_rules_wake_somebody_for_a_late_rank_only(found: Answers, name: str) -> None:
    """In its whole run each job raises the expected alerts, with rank and stage, and no other."""
    assert alerts_of(found, name) == JOBS[name][1]


@pytest.mark.parametrize("name", LATE_RANKS)
def test_page_lasts_with_its_cost_and_who_judged(found: Answers, name: str) -> None:
    """A page lasts, with its true cost and judge; the late rank is charged with all the loss."""
    job, alerts = JOBS[name]
    truth = gpus_lost(simulate(job), END, 120)

    assert alerts_of(found, name, FIRING) == alerts
    assert sum(of(found, name, LOST)) == pytest.approx(truth, rel=0.12)
    persistent = [
        value
        for labels, value in found[KINDS, END]
        if (labels["job_id"], labels["kind"]) == (name, "persistent")
    ]
    assert persistent == pytest.approx([sum(of(found, name, LOST))], rel=0.001)
    assert labels_of(found, name, JUDGE, "judge") == {"join" if job.join else "node"}


def test_slow_node_is_one_page(found: Answers) -> None:
    """A slow node raises one alert, which names the node and none of its ranks."""
    job, alerts = JOBS["slow node"]

    assert labels_of(found, "slow node", EVER, "instance") == {"slow node 1:9917"}
    truth = gpus_lost(simulate(job), END, 120)
    assert of(found, "slow node", NODE_LOST) == pytest.approx([truth], rel=0.1)
    assert alerts_of(found, "slow node", FIRING) == alerts


def test_pauses_are_one_page(found: Answers) -> None:
    """A rank that halts the others now and then pages under one stage, to the end."""
    assert labels_of(found, "pauses", LATE, "kind") == {"pauses"}
    assert alerts_of(found, "pauses", FIRING) == straggler(1, "data")
    truth = 3 * 8 / (40 * 1.08 + 8)
    assert sum(of(found, "pauses", LOST)) == pytest.approx(truth, rel=0.1)


def test_what_is_late_or_unknown_and_wakes_nobody_is_shown(found: Answers) -> None:
    """A late rank of little cost and unmeasured waits have series; a past fault has no alert."""
    assert labels_of(found, "cheap", LATE, "rank") == {"1"}
    for judge in ("join", "node"):
        assert labels_of(found, f"unmeasured, by {judge}", REASON, "reason") == {"no_sync"}
    assert of(found, "transient", "ALERTS") == []


def test_missing_rank_lowers_coverage_and_hides_no_straggler(found: Answers) -> None:
    """The visible ranks are judged, and the reason `ranks_missing` reports the absent one."""
    assert of(found, "a rank is missing", COVERAGE) == pytest.approx([7 / 8], rel=0.001)
    assert labels_of(found, "a rank is missing", REASON, "reason") == {"ranks_missing"}


@pytest.mark.parametrize(
    ("join", "scrape_seconds", "quiet", "fired"),
    [(True, 5, 25, 40), (True, 15, 30, 60), (False, 15, 150, 225)],
)
def test_page_comes_in_time_with_its_right_cost(
    tmp_path: Path, join: bool, scrape_seconds: float, quiet: float, fired: float
) -> None:
    """The join pages some tens of steps after the first, at 5 s; a node takes two minutes."""
    fault = Fault(2, "data", 0.5)
    job = Job(seed=5, seconds=fired, scrape_seconds=scrape_seconds, join=join, faults=(fault,))
    found = asked(tmp_path, {"j": job}, [(FIRING, quiet), (FIRING, fired), (PAGED, fired)])

    assert found[FIRING, quiet] == []
    assert alerts_of(found, "j", FIRING, fired) == straggler(2, "data")
    truth = gpus_lost(simulate(job), fired, 20)
    assert sum(of(found, "j", PAGED, fired)) == pytest.approx(truth, rel=0.1)


DUTIES = {
    f"{stage} for {seconds} s": (stage, seconds)
    for stage in ("checkpoint", "eval")
    for seconds in (1.0, 0.04)
}


def test_duty_warns_of_its_rank_from_a_twentieth_of_the_gpus_on(tmp_path: Path) -> None:
    """If rank 0's saves are costly, only CheckpointStall fires, two saves after the first."""
    jobs, told = {}, {}
    for name, (stage, seconds) in DUTIES.items():
        saves = Fault(0, stage, 10 * seconds, every=25, start_seconds=60.0)
        job = Job(seed=1, seconds=150, busy_seconds=0.1, scrape_seconds=5, faults=(saves,))
        spent = {step.end_seconds: step.stages[0].get(stage, 0.0) for step in simulate(job)}
        third = [end for end, each in spent.items() if each > 0.9 * seconds][2]
        # The judge looks every 2 s, ranks read and push within 2 s, and a scrape comes after 5 s.
        jobs[name], told[name] = job, third // 1 + 1 + 2 + 2 + 5
    exprs = [(FIRING, at) for at in told.values()] + [(EVER, 150.0), (LATE, 150.0)]
    found = asked(tmp_path, jobs, exprs)

    for name, (stage, seconds) in DUTIES.items():
        warned = {("CheckpointStall", "0", stage)} if seconds == 1.0 else set()
        assert alerts_of(found, name, FIRING, told[name]) == warned
        assert alerts_of(found, name, EVER, 150.0) == warned
        who = [
            (each["rank"], each["kind"]) for each, _ in found[LATE, 150.0] if each["job_id"] == name
        ]
        assert who == [("0", "duty")]
