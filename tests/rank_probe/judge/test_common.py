"""What sets many late ranks apart from the others is found, and nothing that does not."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from rank_probe.judge.common import in_common, spans_of, together
from rank_probe.judge.verdict import MOST_SPANS, NODE, PAUSES, Late, Together, from_json
from tests.alerts.jobs import Fault, Job
from tests.exporter.snapshots import late
from tests.rank_probe.judged import judged


def facts(
    ranks: int, labels: Mapping[str, list[str]] | None = None, per_node: int = 4
) -> dict[int, dict[str, str]]:
    """Return the facts of *ranks* with the same GPU and so many a node; *labels* are by node."""
    return {
        rank: {
            "node": f"n{rank // per_node}",
            "GPU model": "H100",
            **{name: values[rank // per_node] for name, values in (labels or {}).items()},
        }
        for rank in range(ranks)
    }


RACKS = {"rack": ["r1", "r1", "r2", "r2"]}


@pytest.mark.parametrize(
    ("those", "labels", "shared"),
    [
        (range(4, 8), RACKS, "node n1"),
        (range(8, 16), RACKS, "rack r2"),
        # What is the same of all of them is said before a list of nodes, the user's labels first.
        (range(8), {"driver": ["535", "535", "570", "570"]}, "driver 535"),
        (range(8), {"driver": ["1", "1", "2", "2"], **RACKS}, "rack r1"),
        (range(4, 12), {}, "node n1 or n2"),
        (range(4, 12), RACKS, "node n1 or n2"),
        # A label that only some have is theirs.
        (range(8), {"old": ["yes", "yes", "", ""]}, "old yes"),
        # One rank of the node is not late, or one of another node is.
        (range(4, 7), RACKS, ""),
        (range(4, 9), RACKS, ""),
        # Nothing tells all from nobody, and one rank has everything for itself.
        (range(16), RACKS, ""),
        (range(4, 5), RACKS, ""),
    ],
)
def test_what_all_of_them_have_and_no_other_is_told(
    those: range, labels: dict[str, list[str]], shared: str
) -> None:
    known = facts(16, labels)
    others = set(range(16)) - set(those)

    assert in_common(those, others, known) == shared


def test_nodes_of_one_late_rank_each_say_nothing() -> None:
    """Any two ranks on two nodes would have those in common."""
    known = facts(4, per_node=1)

    assert in_common([0, 1], [2, 3], known) == ""


def test_unknown_facts_are_no_difference() -> None:
    """Of a rank of another release nothing is known: it may have the same."""
    known = facts(8)
    del known[7]

    assert in_common([0, 1, 2, 3], [4, 5, 6, 7], known) == ""
    assert in_common([0, 1, 2, 3], [4, 5, 6], known) == "node n0"


def test_names_too_long_for_a_series_are_left_out() -> None:
    """Two long names of nodes do not fit; one does."""
    nodes = [f"{at}{'x' * 60}" for at in range(4)]
    known = {rank: {"node": nodes[rank // 4]} for rank in range(16)}

    assert in_common(range(8), range(8, 16), known) == ""
    assert in_common(range(4), range(4, 16), known) == f"node {nodes[0]}"


def test_ranks_are_told_in_stretches() -> None:
    assert spans_of([]) == ()
    assert spans_of([3]) == ((3, 3),)
    assert spans_of([0, 1, 2, 5, 7, 8]) == ((0, 2), (5, 5), (7, 8))
    assert len(spans_of(range(0, 2 * MOST_SPANS, 2))) == MOST_SPANS
    assert spans_of(range(0, 2 * MOST_SPANS + 2, 2)) == ()


def lates(*ranks: int, **changes: object) -> list[Late]:
    return [late(rank=rank, **changes) for rank in ranks]


def test_late_ranks_with_something_in_common_are_a_set() -> None:
    """However few of the job they are; those of another stage, time or kind are not of it."""
    known = facts(16)
    node = lates(4, 5, 6, 7, kind=NODE)
    others = [
        *lates(0, stage="forward"),
        *lates(1, kind=PAUSES),
        *lates(2, since_seconds=500.0),
    ]

    assert list(together([*node, *others], range(16), known)) == [
        Together("data", 4, 30.0, ((4, 7),), "node n1")
    ]
    assert list(together(node, range(16), {})) == []


def test_more_than_a_third_are_a_set_with_nothing_in_common() -> None:
    third, more = lates(0, 3, 6, 9), lates(0, 3, 6, 9, 10)

    assert list(together(third, range(12), {})) == []
    assert list(together(more, range(12), {})) == [
        Together("data", 5, 30.0, ((0, 0), (3, 3), (6, 6), (9, 10)))
    ]
    assert list(together(lates(0), range(2), {})) == []


@pytest.mark.parametrize("seconds", [12.0, 600.0, 3600.0])
def test_onsets_are_compared_as_precisely_as_they_are_known(seconds: float) -> None:
    """To ten seconds, and to a tenth of what has passed since."""
    near = [*lates(0, since_seconds=seconds), *lates(1, since_seconds=1.05 * seconds + 1)]
    far = [*lates(0, since_seconds=seconds), *lates(1, since_seconds=1.2 * seconds + 10)]

    assert [each.ranks for each in together(near, range(4), {})] == [2]
    assert list(together(far, range(4), {})) == []


SINCE = 300.0


@pytest.mark.parametrize(
    ("ranks", "those", "shared"),
    [
        (8, range(4), ""),
        (8, range(2, 8), ""),
        (12, range(5, 12), ""),
        (16, range(12), "rack r1 or r2"),
        (16, range(4, 8), "node n1"),
        (16, range(4, 12), "node n1 or n2"),
        (16, range(8), "rack r1"),
    ],
    ids=["half", "three quarters", "seven of twelve", "two racks", "a node", "two nodes", "a rack"],
)
@pytest.mark.parametrize("seed", range(2))
def test_set_is_named_exactly_within_a_minute(
    ranks: int, those: range, shared: str, seed: int
) -> None:
    """With what only its ranks have in common, in the verdict as it travels."""
    faults = tuple(Fault(rank, "forward", 0.3, 1, SINCE) for rank in those)
    job = Job(ranks=ranks, seed=seed, seconds=SINCE + 75, faults=faults)
    job = replace(job, ranks_per_node=4 if ranks == 16 else 16)
    racks = {} if ranks < 16 else {"rack": ["r1", "r1", "r2", "r3"]}
    found = judged(job, 2.0, facts(ranks, racks, per_node=4 if racks else 100))
    sets = []
    for at, verdict in found.verdicts:
        said = from_json(json.loads(json.dumps(verdict.to_json())))
        told = [(each.ranks, each.spans, each.in_common) for each in said.together]
        told += [(each.slower, each.slower_spans, each.in_common) for each in said.changes]
        if at <= SINCE:
            assert told == []
        if at > SINCE + 60:
            sets.append(told)

    assert len(sets) > 3
    assert all(told == [(len(those), spans_of(those), shared)] for told in sets)
