"""The live view names the late rank of this node, and says when it cannot."""

import json
from dataclasses import replace
from typing import Any

import pytest

from exporter.live import LiveView
from exporter.ranks import RankStore
from rank_probe.snapshot import Snapshot
from rank_probe.version import __version__

START = 1_700_000_000.0
STAGES = {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15}


class Node:
    """A node whose ranks push once a second, on a clock that the test turns."""

    def __init__(self, ranks: int = 4, world_size: int | None = None) -> None:
        self.now = START
        self.store = RankStore(clock=lambda: self.now)
        self.view = LiveView(self.store)
        self.world_size = world_size or ranks
        self.states = {rank: self.fresh(rank) for rank in range(ranks)}

    def fresh(self, rank: int) -> Snapshot:
        return Snapshot(
            job_id="demo",
            peer_group="all",
            rank=rank,
            world_size=self.world_size,
            attempt=0,
            pid=100 + rank,
            started_timestamp_seconds=self.now,
            sequence=0,
            heartbeat_timestamp_seconds=self.now,
            steps=0,
            stage_seconds={},
            busy_seconds=0.0,
            busy_seconds_squared=0.0,
            stage="sync",
            stage_elapsed_seconds=0.1,
        )

    def step(
        self, late: dict[int, dict[str, float]] | None = None, stages: dict[str, float] = STAGES
    ) -> None:
        """Let every rank finish one step of *stages*, the *late* ranks one of their own."""
        for rank, state in self.states.items():
            spent = stages | (late or {}).get(rank, {})
            busy = sum(seconds for stage, seconds in spent.items() if stage != "sync")
            self.states[rank] = replace(
                state,
                steps=state.steps + 1,
                stage_seconds={s: state.stage_seconds.get(s, 0.0) + spent[s] for s in spent},
                busy_seconds=state.busy_seconds + busy,
                busy_seconds_squared=state.busy_seconds_squared + busy**2,
                last_step_timestamp_seconds=self.now,
            )

    def push(self, silent: tuple[int, ...] = ()) -> dict[str, Any]:
        """Let a second pass, every rank but the *silent* push, and return the job as served."""
        self.now += 1
        for rank, state in self.states.items():
            if rank not in silent:
                self.states[rank] = replace(
                    state, sequence=state.sequence + 1, heartbeat_timestamp_seconds=self.now
                )
                self.store.put(self.states[rank])
        self.view.sample(self.now, self.now)
        jobs: list[dict[str, Any]] = json.loads(json.dumps(self.view.summary()))["jobs"]
        return jobs[0]

    def run(self, seconds: int, late: dict[int, dict[str, float]] | None = None) -> dict[str, Any]:
        """Run two steps a second for *seconds* and return the job as served at the end."""
        for _ in range(seconds):
            self.step(late)
            self.step(late)
            job = self.push()
        return job


SLOW_DATA = {2: {"data": 0.19, "sync": 0.01}}


def test_node_without_ranks_has_no_jobs() -> None:
    """Before anything reported the page has nothing to draw, and says so by an empty list."""
    view = LiveView(RankStore())

    assert view.summary()["jobs"] == []
    view.sample(START, START)
    assert view.summary() == {
        "version": __version__,
        "timestamp_seconds": START,
        "window_seconds": 60.0,
        "gpus_visible": None,
        "jobs": [],
    }


def test_gpus_are_counted_once_the_driver_was_asked() -> None:
    """Not known yet, none at all and some are three different things to say."""
    answers = iter([None, 0, 8])
    view = LiveView(RankStore(), lambda: next(answers))
    said = [view.summary()["gpus_visible"]]
    for _ in range(3):
        view.sample(START, START)
        said.append(view.summary()["gpus_visible"])

    assert said == [None, None, 0, 8]


def test_late_rank_is_named_in_one_sentence() -> None:
    """Who is late, where and at what cost is one sentence; the figures stand beside it."""
    job = Node().run(70, SLOW_DATA)

    # Three ranks wait 0.14 s of each 0.5 s step.
    assert job["verdict"]["sentence"] == (
        "Rank 2 is late in data: 0.84 of 4 GPUs are waiting for it."
    )
    assert job["verdict"]["state"] == "late"
    (late,) = job["verdict"]["late"]
    assert (late["rank"], late["stage"]) == (2, "data")
    assert late["excess_seconds"] == pytest.approx(0.14)
    assert late["gpus_lost"] == pytest.approx(3 * 0.14 / 0.5)


def test_lateness_is_counted_from_when_it_began() -> None:
    """The page says for how long a rank has been late; recovering starts the count anew."""
    node = Node()
    node.run(70)
    began = node.run(30, SLOW_DATA)["verdict"]["late"][0]["late_for_seconds"]
    assert node.run(100)["verdict"]["late"] == []

    assert 15 < began <= 30
    assert node.run(20, SLOW_DATA)["verdict"]["late"][0]["late_for_seconds"] < 20


def test_window_forgets_what_is_older_than_a_minute() -> None:
    """A rank that has recovered is nobody to page for a minute later."""
    node = Node()
    node.run(60, SLOW_DATA)

    assert node.run(61)["verdict"]["state"] == "even"


def test_stages_are_seconds_per_step_of_the_window() -> None:
    """Each rank's stages are means per step, in step order, and add up to its step."""
    job = Node().run(30, SLOW_DATA)
    rank = job["ranks"][2]

    assert list(rank["stage_seconds"]) == ["data", "forward", "backward", "sync"]
    assert rank["stage_seconds"]["data"] == pytest.approx(0.19)
    assert rank["wait_seconds"] == pytest.approx(0.01)
    assert rank["step_seconds"] == pytest.approx(job["step_seconds"])
    assert rank["steps"] == job["steps"] == 60


def test_other_nodes_are_not_passed_over_in_silence() -> None:
    """On a node that holds a part of the job, coverage and sentence say so."""
    job = Node(ranks=4, world_size=64).run(70, SLOW_DATA)

    assert job["coverage"] == "4 of 64 ranks"
    assert "of the 4 GPUs on this node" in job["verdict"]["sentence"]


def test_common_wait_points_elsewhere() -> None:
    """Even ranks that all wait are waiting for another node or the network."""
    job = Node(ranks=4, world_size=64).run(70)

    assert job["verdict"]["state"] == "even"
    assert "All wait 30% of each step, for a rank on another node" in job["verdict"]["sentence"]


def test_first_steps_are_not_judged() -> None:
    """Warming up is a reason, not a verdict, and compile steps never enter the window."""
    node = Node()
    node.step()
    warming_up = node.push()
    node.step({1: {"forward": 60.0}})
    node.push()
    judged = node.run(30)

    assert warming_up["verdict"]["reason"] == "warming_up"
    assert warming_up["ranks"][0]["stage_seconds"] is None
    assert judged["verdict"]["state"] == "even"


def test_slow_steps_are_judged_over_more_than_a_minute() -> None:
    """A step of 30 seconds still gets a verdict, from the last few steps."""
    node = Node(ranks=2)
    for _ in range(12):
        node.step({1: {"data": 6.0, "sync": 0.5}}, {"data": 3.0, "forward": 24.0, "sync": 3.5})
        for _ in range(30):
            job = node.push()

    assert job["verdict"]["late"][0]["rank"] == 1
    assert job["ranks"][1]["stage_seconds"]["data"] == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("ranks", "stages", "reason"),
    [
        (1, STAGES, "single_rank"),
        (2, {"data": 0.1, "compute": 0.4}, "no_sync"),
    ],
)
def test_not_judgeable_says_why(ranks: int, stages: dict[str, float], reason: str) -> None:
    """A lone rank, or one whose wait is not split out, gets a reason instead of a name."""
    node = Node(ranks)
    for _ in range(20):
        node.step(stages=stages)
        job = node.push()

    assert job["verdict"]["reason"] == reason
    assert job["verdict"]["sentence"].startswith("Nobody can be named")


def test_restarted_rank_starts_its_window_anew() -> None:
    """Counters of a new process are never subtracted from those of the old one."""
    node = Node()
    node.run(30)
    node.states = {rank: replace(node.fresh(rank), pid=200 + rank) for rank in node.states}
    restarted = node.push()

    assert restarted["verdict"]["reason"] == "warming_up"
    assert node.run(30)["verdict"]["state"] == "even"


def test_job_that_is_turned_off_does_not_hang() -> None:
    """A rank that times nothing is not judged, and its standing counters are no alarm."""
    node = Node()
    node.run(30)
    node.states[2] = replace(node.states[2], level="off")
    for _ in range(40):
        job = node.push()

    assert (job["verdict"]["state"], job["verdict"]["reason"]) == ("not_judgeable", "off")
    assert "rankskew control JOB_ID stages turns it on" in job["verdict"]["sentence"]
    assert [rank["level"] for rank in job["ranks"]] == ["stages", "stages", "off", "stages"]


def test_hung_job_names_the_rank_outside_sync() -> None:
    """When nobody steps any more, the rank that is not waiting is named with its stage."""
    node = Node()
    node.run(30)
    node.states[2] = replace(node.states[2], stage="data", stage_elapsed_seconds=40.0)
    for _ in range(40):
        job = node.push()

    assert job["verdict"]["state"] == "stalled"
    assert job["verdict"]["sentence"] == (
        "No step for 41 s: rank 2 is in data; 3 of 4 ranks wait in sync."
    )


def test_stopped_process_is_named_by_its_silence() -> None:
    """A process that is stopped cannot say where it is; that it is silent says enough."""
    node = Node()
    node.run(30)
    for _ in range(40):
        job = node.push(silent=(2,))

    assert (
        "rank 2 has been silent for 40 s; 3 of 4 ranks wait in sync" in job["verdict"]["sentence"]
    )
    assert [rank["silent"] for rank in job["ranks"]] == [False, False, True, False]


def test_hang_caused_elsewhere_blames_nobody_here() -> None:
    """If every rank of this node waits in sync, what holds the job up is not here."""
    node = Node(ranks=4, world_size=8)
    node.run(30)
    for _ in range(40):
        job = node.push()

    assert "is not on this node" in job["verdict"]["sentence"]


def test_long_checkpoint_of_slow_steps_is_no_hang() -> None:
    """Ten times the usual step must pass before a standstill is called one."""
    node = Node(ranks=2)
    for _ in range(12):
        node.step(stages={"forward": 8.0, "sync": 2.0})
        for _ in range(10):
            node.push()
    for _ in range(60):
        job = node.push()

    assert job["verdict"]["state"] == "even"


def test_killed_job_is_silent() -> None:
    """When every rank falls silent the sentence says so rather than naming one."""
    node = Node()
    node.run(30)
    for _ in range(20):
        job = node.push(silent=(0, 1, 2, 3))

    assert job["verdict"]["state"] == "silent"


def test_finished_job_is_finished() -> None:
    """A clean end is neither a hang nor a silence, however long ago."""
    node = Node()
    node.run(30)
    node.states = {rank: replace(state, finished=True) for rank, state in node.states.items()}
    node.push()
    for _ in range(60):
        job = node.push(silent=(0, 1, 2, 3))

    assert job["verdict"]["sentence"] == "Finished after 60 steps."


def test_finished_rank_is_not_judged() -> None:
    """Nobody waits for a rank that has ended, however late it was in its last minute."""
    node = Node()
    node.run(60, SLOW_DATA)
    node.states[2] = replace(node.states[2], finished=True)
    job = node.push()

    assert job["verdict"]["late"] == []
    assert len(job["ranks"]) == 4


def test_shrinking_counters_harm_nobody() -> None:
    """A rank whose counters run backwards is not judged, and the page goes on."""
    node = Node(ranks=2)
    node.run(30)
    for _ in range(30):
        node.step(stages={"data": -1.0, "sync": 0.5})
        job = node.push()

    assert job["verdict"]["reason"] == "no_busy_time"


@pytest.mark.parametrize("hour", [3_600.0, -3_600.0])
def test_step_of_the_wall_clock_names_nobody_silent(hour: float) -> None:
    """When the wall clock jumps an hour, no rank falls silent and the window stays full."""
    node = Node()
    before = node.run(70)
    node.view.sample(node.now, node.now + hour)
    (after,) = node.view.summary()["jobs"]

    assert not any(rank["silent"] for rank in after["ranks"])
    assert after["step_seconds"] == before["step_seconds"]


def test_forgotten_rank_leaves_the_page() -> None:
    """What the store no longer holds is not shown, and a new job of that name starts empty."""
    node = Node()
    node.run(30)
    node.now += 4000
    node.view.sample(node.now, node.now)

    assert node.view.summary()["jobs"] == []
