"""Jobs that start, stand still or cannot be judged: what is missing, and since when."""

from dataclasses import replace

import pytest

from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.live.stepping import EVEN, Node, served, stepped
from tests.exporter.snapshots import verdict


@pytest.mark.parametrize(("seconds", "state"), [(30, "starting"), (901, "not_judgeable")])
@pytest.mark.parametrize("reason", ["warming_up", "join_incomplete"])
def test_young_job_starts_and_an_older_one_has_the_reason(
    seconds: int, state: str, reason: str
) -> None:
    """A quarter of an hour: a judge may warm up, and a join on half of the steps may catch up."""
    node = Node()
    if reason == "warming_up":
        node.said = verdict(reason="warming_up", late=())
    else:
        node.change(join_coverage=0.5)
    said = node.run(seconds)["verdict"]

    assert (said["state"], said["reason"]) == (state, reason)
    assert said["sentence"].startswith("Cannot judge this job")


def test_job_without_a_step_is_starting() -> None:
    """The page says for how long; after a quarter of an hour it is time to look at what it does."""
    node = Node()
    said = node.wait(41)["verdict"]
    assert said["runbook"] == "RankskewSlowStart"
    assert (said["state"], said["alert"]) == ("starting", None)
    assert said["sentence"] == "Starting for 41 s: no rank on this node has finished a step yet."

    said = node.wait(860)["verdict"]
    assert (said["state"], said["alert"]) == ("starting", "RankskewSlowStart")
    assert said["first_action"] == "py-spy dump --pid 100"


@pytest.mark.parametrize(("seconds", "state"), [(840, "starting"), (960, "not_judgeable")])
def test_job_without_a_join_says_so(seconds: int, state: str) -> None:
    """Ranks that do not compare their steps are not judged here, which a young job may still be."""
    node = Node()
    node.said = None
    said = node.run(seconds)["verdict"]

    assert (said["state"], said["reason"], said["late"]) == (state, "no_join", [])
    assert said["sentence"] == (
        "Cannot judge this job: the ranks do not compare their steps, and no two peers on one "
        "node report a block of steps that its exporter could compare."
    )
    assert said["first_action"].startswith("Look into the log of rank 0")


def test_job_of_one_rank_has_no_peers() -> None:
    assert Node(ranks=1).judged(None)["reason"] == "no_peers"


def test_join_that_has_just_begun_is_warming_up() -> None:
    """Before the first steps are joined there is no verdict, and that is not a failure."""
    node = Node()
    node.said = None
    assert node.run(1, steps=1)["verdict"]["reason"] == "warming_up"

    node.change(joined_seconds=0.0)
    assert node.run(5)["verdict"]["reason"] == "warming_up"
    node.change(join_coverage=0.0)
    assert node.run(5)["verdict"]["reason"] == "no_join"


def test_job_that_is_turned_off_does_not_hang() -> None:
    """A rank that times nothing is not judged, and its standing counters are no alarm."""
    node = stepped()
    node.change(2, level="off")
    job = node.wait(40)

    assert (job["verdict"]["state"], job["verdict"]["reason"]) == ("not_judgeable", "off")
    assert "rankskew control JOB_ID stages turns it on" in job["verdict"]["sentence"]
    assert [rank["level"] for rank in job["ranks"]] == ["stages", "stages", "off", "stages"]


def test_start_that_took_long_may_warm_up() -> None:
    """A job that has just finished its first step is not to be judged yet, however old it is."""
    node = Node()
    node.wait(1_000)
    node.said = verdict(reason="warming_up", late=())

    assert node.run(5)["verdict"]["state"] == "starting"
    assert node.run(301)["verdict"]["state"] == "not_judgeable"


def test_node_names_the_late_rank_where_no_join_speaks() -> None:
    """The page says whose verdict it shows, and what that cannot see."""
    node = Node(world_size=16)
    node.said = None
    for rank in node.states:
        data = 0.2 if rank == 2 else 0.1
        block = {"data": data, "forward": 0.4, "sync": 0.5 - data}
        node.change(rank, block_steps=64, block_seconds=block)
    early = node.run(101, steps=1)["verdict"]
    node.change(3, no_join="file_store")
    said = node.run(31, steps=1)["verdict"]

    assert (early["state"], early["sentence"]) == ("healthy", "No rank on this node is late.")
    assert (said["state"], said["judge"]) == ("straggler", "node")
    assert said["sentence"] == "Rank 2 is slow loading data; 1.67 of 16 GPUs wait for it."
    assert said["coverage"] is None
    *_, own, why = said["details"]
    assert own.startswith("The job does not compare the steps of its ranks, so")
    assert why == (
        "The ranks do not compare their steps: its ranks met through a file (file:// or a "
        "FileStore), which keeps all that is ever written to it."
    )


def test_ranks_that_were_never_seen_are_missing() -> None:
    """A verdict on a part of the job is no good news about all of it."""
    node = Node(ranks=4, world_size=8)
    node.said = EVEN | {"absent": 4}
    young = node.run(30)["verdict"]
    said = node.run(120)["verdict"]

    assert young["state"] == "healthy"
    assert (said["state"], said["alert"]) == ("ranks_missing", "RankskewRanksMissing")
    assert said["sentence"].startswith("4 of 8 ranks have never been in a step that the judge saw")
    assert said["details"][0].startswith("No rank is late")


def test_silent_rank_of_a_stepping_job_is_missing() -> None:
    """While others still step, the silence of one comes before what the judge says of them."""
    node = stepped()
    for _ in range(12):
        node.step()
        said = node.push(silent=(2,))["verdict"]

    assert (said["state"], said["alert"]) == ("ranks_missing", "RankskewRanksMissing")
    assert said["sentence"] == (
        "Rank 2 has not reported for 12 s: dead, stopped, or unable to reach this exporter."
    )
    assert said["details"][0].startswith("No rank is late")


@pytest.mark.parametrize(("behind", "jump"), [(90.0, 0.0), (0.0, 3_600.0), (0.0, -3_600.0)])
def test_wrong_clock_makes_nobody_silent(behind: float, jump: float) -> None:
    """On a node whose wall clock is behind, or jumps, every rank is heard from now, and steps."""
    node = Node(behind_seconds=behind)
    before = node.run(70)
    node.view.sample(node.now, node.now + jump)
    (job,) = served(node.view)["jobs"]

    assert job["verdict"]["state"] == "healthy"
    assert job["step_seconds"] == before["step_seconds"]
    for rank in job["ranks"]:
        assert (rank["silent"], rank["heartbeat_age_seconds"]) == (False, 0.0)
        assert rank["last_step_age_seconds"] == 1.0


def test_hung_job_names_the_rank_outside_sync() -> None:
    node = stepped()
    node.change(2, stage="data")
    said = node.wait(121)["verdict"]

    assert said["state"] == "hung"
    assert said["sentence"] == (
        "No step for 2 min, 4 of 4 GPUs wait: rank 2 is in data; 3 of 4 ranks wait in sync."
    )
    assert said["gpus_lost"] == {"hung": 4.0}


def test_hang_points_to_the_last_event_of_the_rank() -> None:
    """What the rank did last is where to look first: here it has been saving all the time."""
    node = stepped()
    saving = {
        "number": 4,
        "event": "checkpoint",
        "began_timestamp_seconds": node.states[2].heartbeat_timestamp_seconds - 90.0,
        "seconds": None,
    }
    node.change(2, stage="checkpoint", lifecycle_events=[saving])
    early = node.wait(1_701)["verdict"]
    job = node.wait(101)

    assert (early["state"], early["reason"]) == ("not_judgeable", "no_steps")
    assert (
        "rank 2 is in checkpoint (its last event: checkpoint began 32 min ago); 3 of 4"
        in job["verdict"]["sentence"]
    )
    assert [rank["last_event"] for rank in job["ranks"][1:3]] == [
        None,
        {"event": "checkpoint", "state": "began", "age_seconds": 1_892.0, "seconds": None},
    ]


def test_start_that_takes_long_says_what_each_rank_waits_for() -> None:
    """Ranks that did the same last are named together, with the longest wait."""
    node = Node()
    for rank, name in enumerate(("rendezvous", "rendezvous", "init", "rendezvous")):
        began = node.states[rank].heartbeat_timestamp_seconds - 10.0 * rank
        event = {"number": 1, "event": name, "began_timestamp_seconds": began, "seconds": None}
        node.change(rank, lifecycle_events=[event])
    said = node.push()["verdict"]

    assert said["state"] == "starting"
    assert said["details"] == [
        "Last event of ranks 0, 1 and 3: rendezvous began 31 s ago.",
        "Last event of rank 2: init began 21 s ago.",
    ]


def test_hang_that_nobody_here_holds_up_blames_nobody() -> None:
    """All ranks of this node wait in sync, or have never stepped: an evaluator hides no hang."""
    said = stepped(ranks=4, world_size=8).wait(121)["verdict"]
    assert "is not on this node" in said["sentence"]

    node = stepped()
    node.states[3] = replace(node.fresh(3), pid=103, stage="other")

    assert node.wait(121)["verdict"]["sentence"] == (
        "No step for 2 min, 4 of 4 GPUs wait: every rank on this node that has finished a step "
        "waits in sync; of those that have not, rank 3 is in other."
    )


def test_restart_with_fewer_ranks_shows_those() -> None:
    """A job that was killed and continues with two of its four ranks here has only those two."""
    node = stepped()
    node.wait(12, silent=(0, 1, 2, 3))
    node.world_size = 2
    node.states = {rank: replace(node.fresh(rank), attempt=1) for rank in range(2)}
    job = node.run(30)

    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    assert (job["coverage"], job["verdict"]["state"]) == ("2 of 2 ranks", "healthy")


def test_stopped_process_is_named_by_its_silence() -> None:
    """A stopped process cannot report where it is; a minute of silence is enough."""
    node = stepped()
    early = node.wait(60, silent=(2,))
    job = node.wait(1, silent=(2,))

    assert early["verdict"]["state"] == "ranks_missing"
    assert (
        "rank 2 has been silent for 61 s; 3 of 4 ranks wait in sync" in job["verdict"]["sentence"]
    )
    assert [rank["silent"] for rank in job["ranks"]] == [False, False, True, False]


@pytest.mark.parametrize(
    ("step_seconds", "limit", "waited"),
    # Ten times the usual step must pass, or what the operator says.
    [(20.0, None, 199), (0.5, None, 119), (0.5, 20.0, 19)],
)
def test_wait_is_a_hang_beyond_a_limit(
    step_seconds: float, limit: float | None, waited: int
) -> None:
    """An override of the rules is one of the page."""
    thresholds = Thresholds({} if limit is None else {("demo", "hang_seconds"): limit})
    node = Node(ranks=2, thresholds=thresholds)
    node.said = EVEN | {"step_seconds": step_seconds}
    node.run(30)

    assert node.wait(waited)["verdict"]["state"] != "hung"
    assert node.wait(1)["verdict"]["state"] == "hung"


@pytest.mark.parametrize("stage", ["eval", "checkpoint", "data"])
def test_stage_that_all_ranks_are_in_is_no_hang(stage: str) -> None:
    """No rank waits for another, so nothing is lost: after a minute nobody can be judged."""
    node = stepped()
    node.change(stage=stage)
    early, late = node.wait(40)["verdict"], node.wait(110)["verdict"]

    assert (early["state"], early["gpus_lost"]) == ("healthy", {"common": 0.5})
    assert (late["state"], late["reason"]) == ("not_judgeable", "no_steps")
    assert late["sentence"] == (
        f"No rank on this node has finished a step for 3 min: rank 0 is in {stage}, rank 1 is in "
        f"{stage} and rank 2 is in {stage} and 1 more."
    )


def test_rank_that_has_ended_is_waited_for() -> None:
    """Where one rank ends before the others, these wait for it in vain, and its log says why."""
    node = stepped()
    node.change(1, finished=True)
    node.push()
    said = node.wait(121, silent=(1,))["verdict"]

    assert "wait: rank 1 has finished; 3 of 3 ranks wait in sync" in said["sentence"]
    assert said["first_action"] == "Read the log of rank 1: it has finished."


def test_rank_that_left_when_the_wait_began_is_named_first() -> None:
    """A rank that has just moved on is not the one that the others wait for."""
    node = stepped()
    node.change(3, stage="data")
    for _ in range(121):
        node.change(1, stage="forward", stage_elapsed_seconds=1.0)
        job = node.push()

    assert "rank 3 is in data and rank 1 is in forward" in job["verdict"]["sentence"]


def test_killed_job_is_silent_and_a_finished_one_is_finished() -> None:
    """A clean end is neither a hang nor a silence, however long ago."""
    node = stepped()
    assert node.wait(20, silent=(0, 1, 2, 3))["verdict"]["state"] == "ranks_missing"

    node.change(finished=True)
    node.push()
    said = node.wait(60, silent=(0, 1, 2, 3))["verdict"]
    assert said["sentence"] == "Finished after 60 steps."
