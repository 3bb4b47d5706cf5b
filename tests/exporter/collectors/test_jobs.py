"""Each node exposes each job's verdict, once, and what its ranks do together."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.work import RankWorkCollector
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.judge.verdict import Change
from rank_probe.wire.snapshot import RUNTIME_INFO_LABELS
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import shown
from tests.exporter.snapshots import CHANGE, snapshot, verdict


class Node:
    """A node with ranks of one job, on clocks that the test turns.

    *behind_seconds* is how wrong the clock is by which the ranks tell their times.
    """

    def __init__(self, behind_seconds: float = 0.0) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.jobs = NodeJobs(self.store)
        self._zero = 1_000.0 - self.clock.seconds - behind_seconds
        self._sequence = 0

    def push(self, rank: int = 0, **changes: Any) -> None:
        """Let *rank* push, which has run for a minute when the test begins."""
        self._sequence += 1
        told = {
            "rank": rank,
            "sequence": self._sequence,
            "started_timestamp_seconds": self._zero + 5_000.0 - 60.0,
            "heartbeat_timestamp_seconds": self._zero + self.clock.seconds,
        }
        self.store.put(snapshot(**(told | changes)))

    def time(self, ago_seconds: float) -> float:
        """Return what the ranks' clock said *ago_seconds* ago."""
        return self._zero + self.clock.seconds - ago_seconds

    def shown(self, start: str) -> dict[str, float]:
        """Return the values of the series of such names, by name and labels, except the job."""
        lines = shown(JobsCollector(self.jobs), f"rankskew_{start}")
        short = (
            line.replace('job_id="llama",', "").replace('{job_id="llama"}', "") for line in lines
        )
        values = (line.removeprefix("rankskew_").rsplit(" ", 1) for line in short)
        return {name: float(value) for name, value in values}


def states(beating: float, silent: float, finished: float) -> dict[str, float]:
    counts = {"beating": beating, "silent": silent, "finished": finished}
    return {f'node_ranks{{state="{state}"}}': count for state, count in counts.items()}


def test_verdict_is_exposed_once_a_job() -> None:
    """However many ranks repeat it; of the ranks here that saw fewest steps joined counts."""
    node = Node()
    for rank, coverage in enumerate((1.0, 0.75, None, 1.0)):
        node.push(rank, verdict=verdict(), verdict_age_seconds=2.0, join_coverage=coverage)

    assert node.shown("job_s") == {
        'job_stage_gpus_lost{stage="data"}': 0.25,
        "job_slowdown_ratio": 1.44,
        "job_step_seconds": 0.5,
    }
    assert node.shown("job_cov") == {"job_coverage_ratio": 0.75}


@pytest.mark.parametrize(
    ("groups", "scope", "shared"),
    [({"pp1": 4}, "all", ""), ({"all": 2, "pp1": 2}, "pp1", 'rack "r\\12"')],
)
def test_change_of_the_job_is_exposed_while_it_lasts(
    groups: dict[str, int], scope: str, shared: str
) -> None:
    """By stage, of which ranks, and what only those have; its onset does not waver."""
    node = Node()
    wall = Clock()
    collector = JobsCollector(node.jobs, clock=wall)
    began = wall.seconds - 302.0

    def says(*changes: Change) -> list[str]:
        told = verdict(ranks=groups, changes=changes)
        node.push(0, verdict=told, verdict_age_seconds=2.0)
        return shown(collector, "rankskew_job_change")

    escaped = shared.replace("\\", "\\\\").replace('"', '\\"')
    labels = f'{{in_common="{escaped}",job_id="llama",scope="{scope}",stage="forward"}}'
    for later in (0.0, 10.5):
        wall.seconds = began + 302.0 + later
        since = 300.0 + round(later)
        assert says(replace(CHANGE, since_seconds=since, gpus=0.8, in_common=shared)) == [
            f"rankskew_job_change_ratio{labels} 2.0",
            f"rankskew_job_change_gpus{labels} 0.8",
            f"rankskew_job_change_since_timestamp_seconds{labels} {began}",
        ]
    assert says() == []


def test_verdict_of_the_node_is_exposed_like_that_of_the_join() -> None:
    """What the join alone knows is absent: how many of the steps and ranks it is on."""
    node = Node()
    for _ in range(14):
        for rank, data in enumerate((0.25, 0.125, 0.125, 0.125)):
            block = {"data": data, "forward": 0.375, "sync": 0.5 - data}
            told = {"block_steps": 64, "block_seconds": block, "join_coverage": 0.5}
            node.push(rank, world_size=16, **told)
        shown = node.shown("job_")
        node.clock.seconds += 10.0

    assert shown == {
        'job_judge_info{judge="node"}': 1.0,
        'job_ranks{peer_group="all"}': 4.0,
        'job_gpus_lost{kind="persistent"}': pytest.approx(2.1428571),
        "job_step_seconds": 0.875,
        "job_slowdown_ratio": pytest.approx(1.1666667),
    }


def test_job_that_cannot_be_judged_says_why() -> None:
    """The reason is a series; unknown figures are absent."""
    node = Node()
    silence = verdict(
        reason="warming_up", ranks={}, step_seconds=None, slowdown=None, gpus_lost={}, rotating={}
    )
    node.push(verdict=silence, join_coverage=1.0)

    assert node.shown("job_") == {
        'job_not_judgeable{reason="warming_up"}': 1.0,
        'job_judge_info{judge="join"}': 1.0,
        "job_absent_ranks": 0.0,
    }


def test_newest_verdict_counts() -> None:
    """The verdict on the latest step is exposed; of several on that step, the last one read."""
    node = Node()
    for rank, (step, slowdown, age) in enumerate(((100, 1.1, 0), (200, 1.2, 9), (200, 1.3, 3))):
        told = verdict(step=step, slowdown=slowdown)
        node.push(rank, verdict=told, verdict_age_seconds=float(age))

    assert node.shown("job_slowdown_ratio") == {"job_slowdown_ratio": 1.3}


@pytest.mark.parametrize("finished", [True, False])
def test_verdict_of_a_rank_that_is_gone_is_not_told(finished: bool) -> None:
    """Neither a rank that ended nor one that fell silent speaks for the job."""
    node = Node()
    node.push(0, verdict=verdict(), finished=finished)
    node.clock.seconds += 10.0
    node.push(1)

    assert node.shown("job_") == {}


def test_ranks_are_counted_by_state() -> None:
    """The numbers of beating, silent and finished ranks are always exposed, even if 0."""
    node = Node()
    node.push(0)
    node.push(1, finished=True)
    assert node.shown("node_ranks") == states(1, 0, 1)

    node.clock.seconds += 10.0
    assert node.shown("node_ranks") == states(0, 1, 1)


@pytest.mark.parametrize("behind_seconds", [0.0, 90.0, -90.0])
def test_wrong_clock_changes_no_age(behind_seconds: float) -> None:
    """On a node whose clock is 90 s off, no rank is silent, and every age is right."""
    node = Node(behind_seconds)
    node.push(0, last_step_timestamp_seconds=node.time(ago_seconds=2.5))
    node.clock.seconds += 5.0
    expected = states(1, 0, 0) | {
        "node_world_size": 4.0,
        "node_run_seconds": 65.0,
        "node_last_step_age_seconds": 7.5,
        "node_stepping_ranks": 1.0,
    }
    assert node.shown("node_") == expected

    # When the wall clock is set back, the job has still run for as long as it has.
    node.push(heartbeat_timestamp_seconds=node.time(ago_seconds=300.0))
    assert node.shown("node_run_seconds") == {"node_run_seconds": 65.0}


def test_last_step_is_that_of_whoever_was_last() -> None:
    """Ranks that have not stepped, or with the probe off, do not make the job stand still."""
    node = Node()
    node.push(0, last_step_timestamp_seconds=node.time(ago_seconds=40.0))
    node.push(1, last_step_timestamp_seconds=node.time(ago_seconds=1.0))
    node.push(2, steps=0)
    node.push(3, last_step_timestamp_seconds=node.time(ago_seconds=0.0), level="off")

    assert node.shown("node_last_step") == {"node_last_step_age_seconds": 1.0}
    assert node.shown("node_stepping") == {"node_stepping_ranks": 3.0}


def test_start_is_told_with_its_age_and_nothing_where_nobody_beats() -> None:
    """Before the first step there is no age of it; once all are gone there is none of anything."""
    node = Node()
    node.push(steps=0)
    node.clock.seconds += 5.0
    assert node.shown("node_starting_seconds") == {"node_starting_seconds": 65.0}
    assert node.shown("node_last_step_age_seconds") == {}
    node.push(steps=1)
    assert node.shown("node_starting_seconds") == {}

    node.clock.seconds += 10.0
    assert node.shown("node_") == states(0, 1, 0) | {"node_stepping_ranks": 0.0}


def test_restart_with_fewer_ranks_counts_no_dead_copies() -> None:
    """A job that was killed and continues with half of its ranks has no silent ones."""
    node = Node()
    for rank in range(4):
        node.push(rank, world_size=4)
    node.clock.seconds += 20.0
    began = node.time(ago_seconds=5.0)
    for rank in range(2):
        node.push(rank, world_size=2, attempt=1, started_timestamp_seconds=began)

    assert node.shown("node_ranks") == states(2, 0, 0)
    assert node.shown("node_world_size") == {"node_world_size": 2.0}
    assert node.shown("node_run_seconds") == {"node_run_seconds": 5.0}


RUNTIME = dict.fromkeys(RUNTIME_INFO_LABELS, "1")
Report = Callable[[float], dict[str, Any]]


def after(minutes: int, *ranks: Report) -> dict[str, float]:
    """Return what is shown after so many minutes, a scrape in each, in which *ranks* report so.

    By name and the labels' values, except what is usual.
    """
    clock = Clock(0.0)
    store = RankStore(clock=clock)
    collector = RankWorkCollector(store, Thresholds())
    for minute in range(minutes + 1):
        clock.seconds = 60.0 * minute
        for rank, report in enumerate(ranks):
            store.put(snapshot(rank=rank, pid=rank, sequence=minute + 1, **report(minute)))
        lines = shown(collector, "rankskew_node_")
    found = {}
    for line in lines:
        series, _, value = line.removeprefix("rankskew_node_").rpartition(" ")
        labels = [each for each in re.findall('"(.*?)"', series) if each not in ("llama", "1", "")]
        found[" ".join([series.partition("{")[0], *labels])] = float(value)
    return found


def waits(seconds: float) -> Report:
    """Report so many seconds a minute of data and copies; what was before does not count."""
    return lambda m: {"stage_seconds": {"data": 900 + (seconds - 2) * m, "h2d": 2 * m, "sync": m}}


# After so many minutes of such reports, what is shown.
WORK: dict[str, tuple[int, list[Report], dict[str, float]]] = {
    # Tokens if they are counted, else samples, else steps, of the last ten minutes.
    "work in the ranks' own unit": (
        20,
        [
            lambda m: {"steps": 60 * m, "tokens": 60_000 * m, "samples": m},
            # A long text an hour ago is forgotten.
            lambda m: {"steps": 60 * m, "tokens": 120_000 * m + (10**9 if m > 5 else 0)},
            lambda m: {"steps": 7, "tokens": 7},  # Stands still.
            lambda m: {"steps": 60 * m, "peer_group": "pp1", "samples": 240 * m},
            lambda m: {"steps": 60 * m, "job_id": "steps"},
        ],
        {
            "work_per_step_max all": 2000.0,
            "work_per_step_max pp1": 4.0,
            "work_per_step_max steps all": 1.0,
            "work_per_step_mean all": 1500.0,
            "work_per_step_mean pp1": 4.0,
            "work_per_step_mean steps all": 1.0,
            "working_ranks all": 2.0,
            "working_ranks pp1": 1.0,
            "working_ranks steps all": 1.0,
        },
    ),
    # A rank that counts no padding makes it no smaller.
    "padding": (
        5,
        [
            lambda m: {"tokens": 1000 * m, "padding_tokens": 400 * m},
            lambda m: {"tokens": 9000 * m},
        ],
        {"padding_ratio": 0.4},
    ),
    "padding at first": (0, [lambda m: {"tokens": 10, "padding_tokens": 4}], {}),
    # One that waits for a fifth of five minutes.
    "starved": (6, [waits(12.1), waits(2.0)], {"starved_ranks all": 1.0}),
    "not starved": (6, [waits(11.9), waits(2.0)], {}),
    # Of the last hour of the slowest rank; the first counts, those before it was seen do not.
    **{
        f"checkpoints after {minutes} minutes": (
            minutes,
            [
                lambda m: {"stage_seconds": {"checkpoint": 600.0} if m > 30 else {"sync": m}},
                lambda m: {"stage_seconds": {"checkpoint": 3000.0 + m}},
            ],
            {"checkpoint_ratio": seconds / 3600},
        )
        for minutes, seconds in ((60, 600), (92, 60))
    },
    # Its counts go back to 0, also where a container gives it the same number.
    "a process that starts again": (
        5,
        [lambda m: {"steps": (60 * m + 100) % 300, "tokens": (60_000 * m + 100_000) % 300_000}],
        {"work_per_step_max all": 1e3, "work_per_step_mean all": 1e3, "working_ranks all": 1.0},
    ),
    # Of ranks that know their GPUs; the probe's own version makes no difference.
    "versions, settings and GPUs": (
        1,
        [
            lambda m: {"runtime_info": RUNTIME},
            lambda m: {"runtime_info": RUNTIME | {"probe": "2"}},
            lambda m: {"runtime_info": RUNTIME | {"torch": "2"}},
            lambda m: {"runtime_info": RUNTIME | {"device_count": ""}},
        ],
        {"runtime_ranks": 2.0, "runtime_ranks 2": 1.0},
    ),
    # The last words of a rank that falls silent or ends are not those of the job.
    "a rank that ended": (
        4,
        [lambda m: {"runtime_info": RUNTIME, "steps": m, "finished": m > 3}],
        {},
    ),
}


@pytest.mark.parametrize(("minutes", "ranks", "told"), WORK.values(), ids=WORK)
def test_work_of_the_ranks_is_told_of_the_job(
    minutes: int, ranks: list[Report], told: dict[str, float]
) -> None:
    assert after(minutes, *ranks) == pytest.approx(told)
