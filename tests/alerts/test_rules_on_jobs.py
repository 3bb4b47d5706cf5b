"""End to end: simulated jobs, judged, shown by real exporters, and whom the rules wake for them."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.alerts.promtool import RULES, Answers, answers
from tests.exporter.snapshots import snapshot
from tests.rank_probe.judged import (
    RESTART_PAUSE_SECONDS,
    Fault,
    Job,
    Step,
    gpus_lost,
    judged_steps,
    simulate,
    vectors,
)

# ---- Pages of the exporters, as series for promtool ----------------------------------------------

SCRAPE_SECONDS: Final = 15.0
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
    """Return *job* as scraped every SCRAPE_SECONDS, one node after the other."""
    starts = starts_of(job, steps)
    series: list[dict[str, str]] = []
    for number, ranks in enumerate(job.nodes):
        node = Node(job, job_id, starts, ranks)
        shown: dict[str, list[str]] = {}
        for scrape in range(int(job.seconds // SCRAPE_SECONDS) + 1):
            earlier = SCRAPE_SECONDS * number / len(job.nodes)
            page = node.page(scrape * SCRAPE_SECONDS - earlier)
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
        self._ranks = [Rank(job, job_id, rank) for rank in ranks]
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


# ---- Whom the rules wake -------------------------------------------------------------------------

# What it takes to name a rank; the others read from these, or have nothing to do with them.
GROUPS = ("thresholds", "ranks", "late", "hang", "coverage", "cost", "info")
END = 240.0
# Alerts that somebody is woken for, at a time, and in all the time before.
FIRING = 'ALERTS{alertstate="firing",severity!="info"}'
EVER = f"max_over_time({FIRING}[{END:g}s])"
PAGED = f"page:rankskew_gpus_lost:last1m and on (job_id, rank) {FIRING}"
LOST = "rank:rankskew_gpus_lost:sum"
LATE = f"max_over_time(rank:rankskew_late:ratio[{END:g}s])"
JUDGE = "group by (job_id, judge) (rankskew_job_judge_info)"
REASON = "job_reason:rankskew_not_judgeable:bool"
KINDS = "job_kind:rankskew_gpus_lost:sum"
NODE_LOST = "node:rankskew_gpus_lost:sum"
# By who judges: when nobody is woken yet for who is late from the start on, and when somebody is.
IN_TIME = {"join": (30.0, 60.0), "node": (150.0, 225.0)}

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
    """A job of which rank 1 is late from its start on."""
    return Job(ranks=ranks, seed=ranks, faults=(Fault(1, stage, ratio),)), straggler(1, stage)


LATE_RANKS = by_both(
    {
        "a little late in data": late(4, "data", 0.12),
        "twice as slow": late(2, "backward", 1.0),
        "late on one of two nodes": late(16, "optimizer", 0.25),
    }
)
# Noise, rotation, unequal groups, restarts and long steps are nobody's fault.
HEALTHY = by_both(
    {
        name: (replace(job, seed=7), set())
        for name, job in {
            "noisy steps": Job(ranks=8, stage_noise=0.2, common_noise=0.1),
            "rotating": Job(ranks=4, faults=(Fault(None, "data", 0.5),)),
            "unequal groups": Job(ranks=8, group_work=(1.0, 1.3)),
            "slow together": Job(ranks=8, slow_together_seconds=120),
            "restart": Job(ranks=4, restart_seconds=120),
            "steps of 6 seconds": Job(ranks=4, busy_seconds=6),
            # Nobody knows whether anyone waits.
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
    # It is late, but communication takes so long that it hardly matters.
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
}
JOBS = {
    name: (replace(job, seconds=END), alerts)
    for name, (job, alerts) in (LATE_RANKS | HEALTHY | OTHERS).items()
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the rules make of all jobs, side by side in one Prometheus."""
    folder = tmp_path_factory.mktemp("jobs")
    series = [
        each for name, (job, _) in JOBS.items() for each in input_series(job, simulate(job), name)
    ]
    exprs = (EVER, FIRING, LOST, KINDS, LATE, JUDGE, REASON, NODE_LOST, "ALERTS")
    asked = [(expr, END) for expr in exprs]
    for quiet, fired in IN_TIME.values():
        asked += [(FIRING, quiet), (FIRING, fired), (PAGED, fired)]
    rules = [path for path in RULES if path.stem in GROUPS]
    return answers(folder, series, asked, rules, GROUPS, SCRAPE_SECONDS)


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


@pytest.mark.parametrize("name", JOBS)
def test_rules_wake_somebody_for_a_late_rank_only(found: Answers, name: str) -> None:
    """With its stage, and in the whole run with no other alert."""
    assert alerts_of(found, name) == JOBS[name][1]


@pytest.mark.parametrize("name", LATE_RANKS)
def test_page_lasts_with_its_cost_and_who_judged(found: Answers, name: str) -> None:
    """By the join, or by the judge of its node; all that is lost is the late rank's."""
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


@pytest.mark.parametrize("judge", IN_TIME)
def test_page_comes_in_time_with_its_right_cost(found: Answers, judge: str) -> None:
    """From the job's start, five seconds in: some tens of steps; a node takes two minutes."""
    name = f"twice as slow, by {judge}"
    quiet, fired = IN_TIME[judge]

    assert alerts_of(found, name, FIRING, quiet) == set()
    assert alerts_of(found, name, FIRING, fired) == JOBS[name][1]
    truth = gpus_lost(simulate(JOBS[name][0]), fired, 20)
    assert sum(of(found, name, PAGED, fired)) == pytest.approx(truth, rel=0.1)


def test_slow_node_is_one_page(found: Answers) -> None:
    """It names the node, and none of its ranks."""
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
    """A rank whose lateness costs next to nothing, waits that nobody measured, what is over."""
    assert labels_of(found, "cheap", LATE, "rank") == {"1"}
    for judge in IN_TIME:
        assert labels_of(found, f"unmeasured, by {judge}", REASON, "reason") == {"no_sync"}
    assert of(found, "transient", "ALERTS") == []
