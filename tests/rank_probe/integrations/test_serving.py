"""Tests of the probe in a loop that serves batches, with two gloo ranks."""

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, torchrun

pytestmark = pytest.mark.jobs

BATCHES, DELAY = 20, 0.04
CASES = ("sharded", "idle", "independent")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """One process a rank that serves every case in turn."""

    def serve(*cases: str) -> dict[str, Ranks]:
        return torchrun(tmp_path_factory.mktemp("served"), f"{PACKAGE}.serving_job", *cases)

    return Jobs(serve, *CASES)


def test_every_batch_is_a_step(served: Jobs) -> None:
    """Without an optimizer a step is what `step` says it is."""
    for case in CASES:
        for rank in served[case].values():
            assert rank["steps"] == BATCHES
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_slow_shard_is_told_from_the_one_that_waits(served: Jobs) -> None:
    """Batches of unequal length cost both shards the same, so only the slow one stands out."""
    served.check("sharded", is_late(1, "compute", BATCHES * DELAY))


def test_idle_queue_blames_nobody(served: Jobs) -> None:
    """The rank that takes requests in waits for them in `sync`, as the others wait for it."""

    def is_even(ranks: Ranks) -> None:
        first, second = (ranks[rank]["stage_seconds"] for rank in (0, 1))

        assert first["sync"] > BATCHES * DELAY
        for stage in ("sync", "compute"):
            assert second[stage] == pytest.approx(first[stage], abs=0.1 * BATCHES * DELAY)

    served.check("idle", is_even)


def test_independent_replicas_have_no_wait_to_judge_by(served: Jobs) -> None:
    """Replicas that wait for nobody show what each batch costs, and no `sync` at all."""
    for rank in served["independent"].values():
        assert "compute" in rank["stage_seconds"]
        assert "sync" not in rank["stage_seconds"]
