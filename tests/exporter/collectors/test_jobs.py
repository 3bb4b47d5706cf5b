"""Each node exposes each job's verdict, once, and what its ranks do together."""

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


RUNTIME = {
    "torch": "2.13.0",
    "cuda": "13.0",
    "nccl": "2.28.3",
    "python": "3.11.7",
    "driver": "570.86.15",
    "env_hash": "0a1b2c3d",
    "device_count": "8",
    "probe": "0.1.0",
}


class WorkingNode:
    """A node whose ranks report what a function of the minutes says."""

    def __init__(self, *ranks: Callable[[float], dict[str, Any]]) -> None:
        self._ranks = ranks
        self.clock = Clock(0.0)
        self.store = RankStore(clock=self.clock)
        self._collector = RankWorkCollector(self.store, Thresholds())
        self._report(0.0)

    def _report(self, minutes: float) -> None:
        self.clock.seconds = 60 * minutes
        for rank, told in enumerate(self._ranks):
            self.store.put(
                snapshot(rank=rank, pid=rank, sequence=int(100 * minutes) + 1, **told(minutes))
            )
        self.page = shown(self._collector)

    def at(self, minutes: int) -> list[str]:
        """Return what is exposed after so many minutes, with a scrape in each."""
        while self.clock.seconds < 60 * minutes:
            self._report(self.clock.seconds / 60 + 1)
        return self.page

    def of(self, name: str) -> dict[str, float]:
        """Return the values of a series by its labels."""
        lines = (line.rpartition(" ") for line in self.page)
        return {
            labels.removeprefix(name): float(value)
            for labels, _, value in lines
            if labels.startswith(name + "{")
        }


GROUP = '{job_id="llama",peer_group="all"}'


def test_work_per_step_is_of_the_last_ten_minutes_in_the_ranks_own_unit() -> None:
    """Tokens if they are counted, else samples, else steps."""
    node = WorkingNode(
        lambda m: {"steps": int(60 * m), "tokens": int(60_000 * m), "samples": int(m)},
        # A long text an hour ago is forgotten.
        lambda m: {"steps": int(60 * m), "tokens": int(120_000 * m) + (10**9 if m > 5 else 0)},
        lambda m: {"steps": 7, "tokens": 7},  # Stands still.
        lambda m: {"steps": int(60 * m), "peer_group": "pp1", "samples": int(240 * m)},
        lambda m: {"steps": int(60 * m), "job_id": "steps"},
    )
    node.at(20)

    assert node.of("rankskew_node_work_per_step_max") == {
        GROUP: 2000.0,
        '{job_id="llama",peer_group="pp1"}': 4.0,
        '{job_id="steps",peer_group="all"}': 1.0,
    }
    assert node.of("rankskew_node_work_per_step_mean")[GROUP] == 1500.0
    assert node.of("rankskew_node_working_ranks")[GROUP] == 2.0


def test_padding_is_a_share_of_the_tokens_of_ranks_that_count_it() -> None:
    """A rank that counts none makes it no smaller."""
    node = WorkingNode(
        lambda m: {"tokens": int(1000 * m), "padding_tokens": int(400 * m)},
        lambda m: {"tokens": int(9000 * m)},
    )
    assert node.of("rankskew_node_padding_ratio") == {}
    node.at(5)

    assert node.of("rankskew_node_padding_ratio") == {'{job_id="llama"}': 0.4}


@pytest.mark.parametrize(("seconds", "starved"), [(12.1, {GROUP: 1.0}), (11.9, {})])
def test_rank_is_starved_that_waits_a_fifth_of_five_minutes(
    seconds: float, starved: dict[str, float]
) -> None:
    """Its data and its copies together; what it waited before does not count."""
    node = WorkingNode(
        lambda m: {"stage_seconds": {"data": 900 + (seconds - 2) * m, "h2d": 2 * m, "sync": 9 * m}},
        lambda m: {"stage_seconds": {"data": m, "sync": 40 * m}},
    )
    node.at(6)

    assert node.of("rankskew_node_starved_ranks") == starved


def test_checkpoints_are_a_share_of_the_last_hour_of_the_slowest_rank() -> None:
    """The first one counts, and those before the exporter saw the rank do not."""
    node = WorkingNode(
        lambda m: {"stage_seconds": {"checkpoint": 600.0} if m > 30 else {"sync": m}},
        lambda m: {"stage_seconds": {"checkpoint": 3000.0 + m}},
    )
    node.at(60)
    assert node.of("rankskew_node_checkpoint_ratio") == {'{job_id="llama"}': 600 / 3600}

    node.at(92)
    assert node.of("rankskew_node_checkpoint_ratio") == {'{job_id="llama"}': 60 / 3600}


def test_process_that_starts_again_counts_from_its_start() -> None:
    """Its counts go back to 0, also where a container gives it the same number."""
    node = WorkingNode(
        lambda m: {
            "steps": int(60 * m + 100) % 300,
            "tokens": int(60_000 * m + 100_000) % 300_000,
        }
    )
    node.at(5)

    assert node.of("rankskew_node_work_per_step_mean") == {GROUP: 1000.0}


def test_ranks_are_counted_by_versions_settings_and_gpus() -> None:
    """A rank that knows its GPUs; the probe's own version makes no difference."""
    node = WorkingNode(
        lambda m: {"runtime_info": RUNTIME},
        lambda m: {"runtime_info": RUNTIME | {"probe": "0.2.0"}},
        lambda m: {"runtime_info": RUNTIME | {"torch": "2.12.0"}},
        lambda m: {"runtime_info": RUNTIME | {"device_count": ""}},
    )

    assert sorted(node.of("rankskew_node_runtime_ranks").values()) == [1.0, 2.0]


def test_rank_that_falls_silent_or_ends_is_no_longer_counted() -> None:
    """Its last words are not those of the job."""
    node = WorkingNode(lambda m: {"runtime_info": RUNTIME, "steps": int(m), "finished": m > 3})
    node.at(3)
    assert node.page
    node.at(4)

    assert node.page == []
