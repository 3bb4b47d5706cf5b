"""Jobs that start, or that cannot be judged: what is missing, and since when."""

import pytest

from tests.exporter.live.stepping import Node, stepped
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
