"""Jobs in which no rank steps, and ranks that report no more."""

from dataclasses import replace

import pytest

from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.live.stepping import EVEN, Node, served, stepped


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
