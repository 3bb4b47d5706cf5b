"""A node that is late is one finding, whatever its ranks do one by one."""

import math
from random import Random

import pytest

from rank_probe.judge.verdict import NODE, PERSISTENT
from tests.alerts.jobs import Fault, Job
from tests.rank_probe.judged import judged

NODE_RANKS = range(16, 24)


def drifting(seed: int) -> Job:
    """A job of four nodes, of which the third is 3 to 5 % slower from 300 s on, now more, now less.

    So are its ranks, each by another share every minute.
    """
    draw = Random(seed)
    faults = [
        Fault(rank, "forward", ratio + draw.uniform(-0.01, 0.01), 1, begin, begin + 60)
        for begin in range(300, 1500, 60)
        for ratio in [0.04 + 0.01 * math.sin(begin / 200 + seed)]
        for rank in NODE_RANKS
    ]
    return Job(ranks=32, seed=seed, seconds=1500, faults=tuple(faults))


@pytest.mark.parametrize("seed", range(3))
def test_node_that_drifts_is_named_once_with_its_ranks(seed: int) -> None:
    """From the first minute to the end, although no single rank stands out all the time."""
    found = judged(drifting(seed))
    named = [{each.rank for each in verdict.late} for _, verdict in found.verdicts if verdict.late]

    assert {each.kind for each in found.incidents} == {NODE}
    assert set.union(*named) == set(NODE_RANKS)
    assert min(each.named for each in found.incidents) < 345
    assert len(found.incidents) <= len(NODE_RANKS) + 4
    settled = [ranks for ranks in named[10:] if len(ranks) < len(NODE_RANKS) - 1]
    assert not settled


@pytest.mark.parametrize("seed", range(3))
def test_node_that_catches_up_slowly_is_let_go_as_a_whole(seed: int) -> None:
    """Its ranks are those of a node to the end, and none comes and goes meanwhile."""
    fading = [
        Fault(rank, "forward", 0.08 * (1 - n / 20), 1, 300 + 60 * n, 360 + 60 * n)
        for n in range(20)
        for rank in NODE_RANKS
    ]
    job = Job(ranks=32, seed=seed, seconds=2400, stage_noise=0.1, faults=tuple(fading))
    found = judged(job)

    assert {each.kind for each in found.incidents} == {NODE}
    assert len(found.incidents) <= len(NODE_RANKS) + 2
    assert max(each.cleared or math.inf for each in found.incidents) < 1500


def test_rank_is_late_beyond_its_node() -> None:
    """It is named by itself, and the others stay those of their node."""
    slow = [Fault(rank, "forward", 0.06, 1, 100) for rank in NODE_RANKS]
    job = Job(ranks=32, seed=2, seconds=600, faults=(*slow, Fault(18, "data", 0.25, 1, 250)))
    found = judged(job)

    kinds = {each.rank: each.kind for each in found.last.late}
    assert kinds == {rank: NODE if rank != 18 else PERSISTENT for rank in NODE_RANKS}


def test_node_of_which_one_rank_is_late_is_no_slow_node() -> None:
    """Nor of which two are."""
    late = [Fault(18, "data", 0.2), Fault(21, "forward", 0.1)]
    found = judged(Job(ranks=32, seed=2, seconds=400, faults=tuple(late)))

    assert {(each.rank, each.kind) for each in found.incidents} == {
        (18, PERSISTENT),
        (21, PERSISTENT),
    }
