"""What docs/accuracy.md says of its larger faults is what is planted, and what counts as right."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import load
from benchmarks.accuracy.plan import FAINT, JOIN, Segment, grid
from benchmarks.accuracy.record import REPLAYED_STEP_SECONDS
from benchmarks.accuracy.score import is_miss
from generators.measured.accuracy import SHOWN_TOGETHER
from tests.benchmarks.simulated_ranks import (
    few_ranks_have_no_mild_one,
    rank_zero_judges_what_is_posted,
    simulated_steps_vary,
)
from tests.benchmarks.test_accuracy import TRUTH, finding, scored

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
HEADING = "### Many ranks at once, duties, and an hour of load\n"

Finding = dict[str, Any]


def planned(fault: str, size: float = 0.25) -> list[Segment]:
    """All runs of *fault* with real ranks, as `make bench-accuracy` plans them."""
    jobs = grid(["ddp", "fsdp2"], faults=[fault], sizes=[size])
    found = [segment for job in jobs for segment in job]
    assert found
    return found


def run(fault: str, size: float = 0.25) -> Segment:
    """The run of four ranks and seed 1."""
    return next(one for one in planned(fault, size) if (one.ranks, one.seed) == (4, 1))


def is_right(one: Segment, *findings: Finding) -> bool:
    return not is_miss(scored(one, *findings))


def is_false(one: Segment, *findings: Finding) -> bool:
    return bool(scored(one, *findings)["false alarms"])


def change(stage: str, *ranks: int, **other: Any) -> Finding:
    """A change in *stage*; the fault begins at 120 s."""
    return finding("change", None, stage) | {"slower_ranks": ranks, "onset_s": 125.0} | other


def minutes(count: int) -> float:
    return count * REPLAYED_STEP_SECONDS / 60


# ---- One rank ----------------------------------------------------------------------------------


def faint_is_planted() -> None:
    for one in planned("data", FAINT):
        assert len(one.late()) == 1
        assert (one.size, one.fault_steps, minutes(one.fault_steps)) == (0.03, 300, 10)


def faint_is_named_or_mild() -> None:
    one = run("data", FAINT)
    for kind in ("persistent", "mild"):
        assert is_right(one, finding(kind, 0, "data"))
        assert not is_right(one, finding(kind, 0, "forward"))
        assert is_false(one, finding(kind, 1, "data"))
    assert not is_right(one)
    assert not is_right(run("data", 0.05), finding("mild", 0, "data"))


def duty_is_planted() -> None:
    for one in planned("duty"):
        for rank in range(one.ranks):
            saves = [step for step in range(one.steps) if one.delay(rank, step)]
            assert saves == ([] if rank else list(range(75, one.steps, 25)))
        assert one.delay(0, 75) == ("checkpoint", 0.4)
    assert run("duty").size * 3 / 4 == pytest.approx(0.012)


def duty_is_information() -> None:
    one, duty = run("duty"), finding("duty", 0, "checkpoint") | {"severity": "info"}
    assert is_right(one, duty)
    assert not is_right(one, duty | {"severity": "warning"})
    assert not is_right(one, duty | {"stage": "other"})
    for kind in ("persistent", "pauses", "mild"):
        assert is_false(one, duty, finding(kind, 0, "checkpoint"))


# ---- Many ranks --------------------------------------------------------------------------------


def spread_over_nodes(one: Segment) -> list[float]:
    """Return the share of each node's ranks that is late."""
    late = {rank for rank, _ in one.late()}
    nodes = Counter(one.node(rank) for rank in range(one.ranks))
    return [sum(one.node(rank) == node for rank in late) / nodes[node] for node in nodes]


def with_simulated(fault: str) -> list[Segment]:
    simulated = [one for job in grid([JOIN], faults=[fault], sizes=[0.25]) for one in job]
    assert simulated
    for one in simulated:
        assert len({stage for _, stage in one.late()}) == 1
    return [*planned(fault), *simulated]


def set_is_planted() -> None:
    for one in with_simulated("set"):
        assert len(one.late()) > one.ranks / 3
        assert max(spread_over_nodes(one)) <= 0.5


def set_is_named() -> None:
    one = run("set")
    both = [finding("persistent", rank, "forward") for rank in (1, 3)]
    assert is_right(one, *both)
    assert not is_right(one, both[0])
    assert is_false(one, *both, finding("persistent", 2, "forward"))


def set_most_is_planted() -> None:
    for one in with_simulated("set_most"):
        assert len(one.late()) > one.ranks * 2 / 3
        assert min(spread_over_nodes(one)) > 0


def node_most_is_planted() -> None:
    for one in with_simulated("node_most"):
        assert len(one.late()) > one.ranks * 2 / 3
        assert sorted(spread_over_nodes(one)) == [0, 1]


def most_are_listed() -> None:
    for fault in ("set_most", "node_most"):
        one = run(fault)
        assert is_right(one, change("forward", 1, 2, 3))
        for wrong in (change("data", 1, 2, 3), change("forward", 1, 2), change("forward")):
            assert is_false(one, wrong)
        assert not is_right(one)
        assert is_false(one, change("forward", 1, 2, 3), finding("persistent", 0, "forward"))
        many = Segment(JOIN, 64, 1, fault, 0.25)
        late = [rank for rank, _ in many.late()]
        assert is_right(many, change("forward", *late[:32]))
        assert not is_right(many, change("forward", *late[:31]))


def change_is_planted() -> None:
    found = [*planned("change"), *(one for job in grid([JOIN], faults=["change"]) for one in job)]
    assert {one.size for one in found} == {0.06, 0.15}
    for one in found:
        for rank in range(one.ranks):
            assert one.delay(rank, one.healthy_steps - 1) is None
            faulty = (one.healthy_steps, one.healthy_steps + 1, one.steps - 1)
            delays = {one.delay(rank, step) for step in faulty}
            assert delays == {(one.stage, one.size)}


def change_is_the_jobs() -> None:
    one = run("change")
    assert is_right(one, change("forward"))
    assert is_false(one, change("data"))
    assert is_false(one, change("forward", 1, 2))
    for kind in ("persistent", "mild", "pauses"):
        assert is_false(one, change("forward"), finding(kind, 2, "forward"))
    assert not is_right(one)


def onset_is_within_a_minute() -> None:
    begin = TRUTH.begin_seconds * 20
    for fault, ranks in (("change", ()), ("set_most", (1, 2, 3))):
        for seconds, expected in ((-59, True), (59, True), (-61, False), (61, False)):
            said = change("forward", *ranks, onset_s=begin + seconds)
            assert is_right(run(fault), said) is expected


def change_has_a_past() -> None:
    for fault in ("set_most", "node_most", "change"):
        for one in with_simulated(fault):
            assert (one.healthy_steps, one.faulty_steps) == (420, 420)
            assert minutes(one.healthy_steps) == 14


def load_is_an_hour() -> None:
    for one in planned("load"):
        assert (one.kind, one.steps, minutes(one.steps)) == (None, 1800, 60)
    for seed in range(20):
        found = list(load.bursts(seed))
        most = max(sum(a.begin <= each.begin < a.end for a in found) for each in found)
        assert 2 <= most <= 4


def bursts_are_short_and_random() -> None:
    found = list(islice(load.bursts(1), 200))
    lengths = [each.end - each.begin for each in found]
    assert 0.5 <= min(lengths) < 1
    assert 7 < max(lengths) <= 8
    assert found == list(islice(load.bursts(1), 200))
    assert found != list(islice(load.bursts(2), 200))


def load_accuses_nobody() -> None:
    one = run("load")
    assert is_right(one)
    for kind in ("persistent", "mild", "pauses", "node", "duty"):
        assert is_false(one, finding(kind, 0, "forward"))
    assert is_false(one, change("forward"))


def all_found_is_a_column() -> None:
    one = run("set")
    both = [finding("persistent", rank, "forward") for rank in (1, 3)]
    assert "all found" in SHOWN_TOGETHER
    assert scored(one, *both)["all found"] is True
    assert scored(one, both[0])["all found"] is False


SENTENCES: dict[str, Callable[[], None]] = {
    "3 %: a rank is late by 3 % of a step for 300 steps, ten minutes.": faint_is_planted,
    "It must be named, or be called `mild`, in the stage in which it is late.": (
        faint_is_named_or_mild
    ),
    "In a job of fewer than five ranks nobody is called `mild`, so there it must be named.": (
        few_ranks_have_no_mild_one
    ),
    "`duty`: rank 0 saves a checkpoint every 25 steps, which costs 1.2 % of four GPUs.": (
        duty_is_planted
    ),
    "It must be told as `duty` in `checkpoint`, as information; to call rank 0 a straggler is a "
    "false alarm.": duty_is_information,
    "`set`: more than a third of the ranks are late in the same stage, and no more than half of "
    "any node.": set_is_planted,
    "Each of them must be named, and nobody else.": set_is_named,
    "`set_most`: more than two thirds of the ranks are late in the same stage, and some of every "
    "node.": set_most_is_planted,
    "`node_most`: more than two thirds of the ranks are late in the same stage, and they are all "
    "of one node.": node_most_is_planted,
    "In both, a `change` of that stage must list these ranks, of more than 32 the first 32; to "
    "name any other rank is a false alarm.": most_are_listed,
    "`change`: from a step on, all ranks take 6 % or 15 % of a step longer in one stage.": (
        change_is_planted
    ),
    "A `change` of that stage must list no rank; to name any rank is a false alarm.": (
        change_is_the_jobs
    ),
    "The onset of a change must be right within a minute.": onset_is_within_a_minute,
    "Runs with a change are healthy for 420 steps, fourteen minutes, because a job is compared "
    "with its own past, and then changed for as long.": change_has_a_past,
    "`load`: healthy ranks train for 1,800 steps, an hour, beside up to four processes that burn "
    "CPU.": load_is_an_hour,
    "Each of these starts at a random time and lasts from 0.5 s to 8 s, unscaled.": (
        bursts_are_short_and_random
    ),
    "Any rank that is named, and any change, is a false alarm.": load_accuses_nobody,
    "`join`: nobody trains; the steps of 64 ranks on eight nodes are drawn at random, and each "
    "stage of each rank varies by 2 %.": simulated_steps_vary,
    "Each rank's ring posts them to a store, and rank 0 merges and judges them there, as in a "
    "job.": rank_zero_judges_what_is_posted,
    "*all found*: runs in which every late rank was named.": all_found_is_a_column,
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentence_is_true(sentence: str) -> None:
    """Each sentence of the list holds."""
    SENTENCES[sentence]()


def test_every_sentence_is_tested() -> None:
    """The page has these sentences below the tables, one a line, and no other."""
    section = re.split(r"\n##", PAGE.read_text().partition(HEADING)[2])[0]
    lines = section.rpartition("<!-- end -->")[2].splitlines()

    assert [line[2:] for line in lines if line] == list(SENTENCES)
