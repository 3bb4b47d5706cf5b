"""Jobs that start, or that cannot be judged: what is missing, and since when."""

from dataclasses import replace

import pytest

from tests.exporter.live.stepping import Node
from tests.exporter.snapshots import verdict


@pytest.mark.parametrize(("seconds", "state"), [(30, "starting"), (901, "not_judgeable")])
def test_judge_that_warms_up_is_a_start_for_a_quarter_of_an_hour(seconds: int, state: str) -> None:
    """A young job starts; one that still cannot be judged later has the reason as its state."""
    node = Node()
    node.said = verdict(reason="warming_up", late=())
    said = node.run(seconds)["verdict"]

    assert (said["state"], said["reason"]) == (state, "warming_up")
    assert said["sentence"].startswith("Cannot judge this job yet")


def test_job_without_a_step_is_starting() -> None:
    """Before any rank has finished a step the page says for how long it has been starting."""
    node = Node()
    for _ in range(41):
        said = node.push()["verdict"]

    assert (said["state"], said["runbook"], said["alert"]) == (
        "starting",
        "RankskewSlowStart",
        None,
    )
    assert said["sentence"] == "Starting for 41 s: no rank on this node has finished a step yet."


def test_slow_start_raises_its_alert() -> None:
    """After a quarter of an hour without a step it is time to look at what a rank does."""
    node = Node()
    for _ in range(900):
        node.pass_second()
    said = node.push()["verdict"]

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
        "Cannot judge this job: the ranks do not compare their steps, and no two peers on this "
        "node report a block of steps that this exporter could compare."
    )
    assert said["first_action"].startswith("Look into the log of rank 0")


def test_job_of_one_rank_has_no_peers() -> None:
    """A lone rank has no peers to be compared with, and the page says so."""
    assert Node(ranks=1).judged(None)["reason"] == "no_peers"


def test_join_that_has_just_begun_is_warming_up() -> None:
    """Before the first steps are joined there is no verdict, and that is not a failure."""
    node = Node()
    node.said = None
    node.step()
    assert node.push()["verdict"]["reason"] == "warming_up"

    node.states = {rank: replace(each, joined_seconds=0.0) for rank, each in node.states.items()}
    assert node.run(5)["verdict"]["reason"] == "warming_up"
    node.states = {rank: replace(each, join_coverage=0.0) for rank, each in node.states.items()}
    assert node.run(5)["verdict"]["reason"] == "no_join"


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


@pytest.mark.parametrize(("seconds", "state"), [(30, "starting"), (901, "not_judgeable")])
def test_join_on_a_part_of_the_steps_is_no_good_news(seconds: int, state: str) -> None:
    """A verdict on half of the steps may miss a late rank; a young join may still catch up."""
    node = Node()
    node.states = {rank: replace(each, join_coverage=0.5) for rank, each in node.states.items()}
    for _ in range(seconds - 1):
        node.step()
        node.pass_second()
    node.step()
    said = node.push()["verdict"]

    assert (said["state"], said["reason"]) == (state, "join_incomplete")


def test_start_that_took_long_may_warm_up() -> None:
    """A job that has just finished its first step is not to be judged yet, however old it is."""
    node = Node()
    for _ in range(1_000):
        node.pass_second()
    node.said = verdict(reason="warming_up", late=())
    assert node.run(5)["verdict"]["state"] == "starting"

    for _ in range(300):
        node.step()
        node.pass_second()
    assert node.run(1)["verdict"]["state"] == "not_judgeable"


def test_node_names_the_late_rank_where_no_join_speaks() -> None:
    """The page says whose verdict it shows, and what that cannot see."""
    node = Node(world_size=16)
    node.said = None
    for rank, each in node.states.items():
        data = 0.2 if rank == 2 else 0.1
        block = {"data": data, "forward": 0.4, "sync": 0.5 - data}
        node.states[rank] = replace(each, block_steps=64, block_seconds=block)
    for _ in range(100):
        node.step()
        node.pass_second()
    early = node.push()["verdict"]
    for _ in range(30):
        node.step()
        node.pass_second()
    said = node.push()["verdict"]

    assert (early["state"], early["sentence"]) == ("healthy", "No rank on this node is late.")
    assert (said["state"], said["judge"]) == ("straggler", "node")
    assert said["sentence"] == "Rank 2 is slow loading data; 1.67 of 16 GPUs wait for it."
    assert said["coverage"] is None
    assert said["details"][-1].startswith("The job does not compare the steps of its ranks, so")
