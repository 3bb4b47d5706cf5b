"""Verdicts become findings: one for each incident, with its onset, its end and what it cost."""

from collections.abc import Mapping
from typing import Any

import pytest

from rank_probe.judge.verdict import WARMING_UP, Late, Verdict
from rankskew.replay.findings import TraceFinding, findings, not_judgeable
from rankskew.replay.judge import JudgedStretch
from rankskew.replay.traces import TraceStretch

INSTANCES = {rank: f"node{rank // 2}" for rank in range(8)}


def late(since: float, rank: int = 3, kind: str = "persistent", gpus: float = 2.0) -> Late:
    """Return a rank that has been late for *since* seconds."""
    return Late(rank, "pp0", "data", kind, 0.5, {"data": gpus}, since, 30, 2.0)


def verdict(*ranks: Late, lost: Mapping[str, float] | None = None, **fields: Any) -> Verdict:
    kinds = dict.fromkeys(("group", "persistent", "rotating", "common"), 0.0)
    said: dict[str, Any] = {
        "step_seconds": 1.0,
        "gpus_lost": kinds | dict(lost or {}),
        "rotating": {},
    }
    return Verdict(100, {"pp0": 8}, late=ranks, **(said | fields))


def judged(verdicts: Mapping[int, Verdict], begin: float = 0.0, warm: float = 5.0) -> JudgedStretch:
    """Return a stretch that begins at *begin*, with these verdicts."""
    stretch = TraceStretch(tuple(range(8)), range(100), begin, max(verdicts))
    return JudgedStretch(stretch, list(verdicts.items()), begin + warm)


def found(*stretches: JudgedStretch) -> list[TraceFinding]:
    return findings(stretches, INSTANCES)


def times(one: TraceFinding) -> tuple[float, float, float | None]:
    return one.onset_s, one.named_s, one.cleared_s


def test_incident_is_one_finding_with_its_mean_cost() -> None:
    """Verdicts in a row with one onset are one: from the onset, and to the first that is silent."""
    said = {60: (20, 3.0), 62: (22.5, 2.0), 64: (24, 1.0)}
    late_then = {at: verdict(late(since, gpus=gpus)) for at, (since, gpus) in said.items()}
    (one,) = found(judged({40: verdict(), **late_then, 66: verdict(), 68: verdict()}))

    assert one.sentence == "Rank 3 is slow loading data; 2.00 of 8 GPUs wait for it."
    assert (one.kind, one.severity, one.stage) == ("persistent", "critical", "data")
    assert (one.rank, one.ranks, one.peer_group, one.instance) == (3, (3,), "pp0", "node1")
    assert times(one) == (40.0, 60.0, 66.0)
    assert (one.ratio, one.gpus_lost) == (0.5, 2.0)


def test_finding_lasts_from_its_onset_to_its_end() -> None:
    """Another onset is another finding; one that lasts until the end has no end.

    The judge looks at no step before the end of the warm-up, so it cannot know better.
    """
    two = {60: verdict(late(20)), 80: verdict(), 90: verdict(late(8)), 92: verdict(late(10))}

    assert [times(one) for one in found(judged(two))] == [(40, 60, 80), (82, 90, None)]
    assert [times(one) for one in found(judged({30: verdict(late(25))}))] == [(0, 30, None)]


def test_incident_goes_on_when_other_ranks_come_or_go() -> None:
    """Late at the end of a stretch and at the beginning of the next is one; else it has ended."""
    first = judged({50: verdict(late(20), late(20, rank=5))})
    unjudged = judged({60: verdict(reason=WARMING_UP)}, begin=55)
    then = judged({100: verdict(late(35)), 120: verdict(late(55))}, begin=60)
    three, five = found(first, unjudged, then)

    assert (three.rank, times(three)) == (3, (30, 50, None))
    assert (five.rank, times(five)) == (5, (30, 50, 50))


def test_slow_node_is_one_finding() -> None:
    ranks = [late(20, rank=2, kind="node", gpus=1.0), late(18, rank=3, kind="node", gpus=0.5)]
    elsewhere = late(20, rank=6, kind="node", gpus=0.25)
    one, other = found(judged({60: verdict(*ranks), 62: verdict(*ranks, elsewhere)}))

    assert (one.kind, one.instance, one.rank, one.ranks) == ("node", "node1", None, (2, 3))
    assert one.gpus_lost == pytest.approx(1.5)
    assert times(one) == (40, 60, None)
    assert (other.instance, other.ranks) == ("node3", (6,))


def test_kind_is_what_it_was_for_most_of_the_time() -> None:
    """A rank that is late before its neighbour belongs to a slow node; mild means always mild.

    A mild rank pages nobody, whatever it costs. Without a measured wait that is unknown, not 0.
    """
    node = {60: late(20), 62: late(22, kind="node"), 64: late(24, kind="node")}
    mild = {60: late(20, kind="mild"), 62: late(22, kind="mild"), 64: late(24)}
    kinds = [
        [(one.kind, one.severity) for one in found(judged({at: verdict(said[at]) for at in said}))]
        for said in (node, mild, {60: mild[60]})
    ]

    assert kinds == [[("node", "critical")], [("persistent", "critical")], [("mild", "info")]]
    (one,) = found(judged({60: verdict(late(20, kind="unsynced", gpus=0.0), reason="no_sync")}))
    assert (one.kind, one.severity, one.gpus_lost) == ("unsynced", "info", None)


@pytest.mark.parametrize(
    ("gpus", "severities"),
    [
        # Over a hundredth of the job's GPUs it warns, over a twentieth it pages.
        ([0.05], ["info"]),
        ([0.1], ["warning"]),
        ([0.5], ["critical"]),
        # Two ranks that cost a warning each are a page together.
        ([0.3, 0.3], ["critical", "critical"]),
        # Nobody is told of a tenth before the costliest is mended.
        ([2.0, 0.2], ["critical", "info"]),
    ],
)
def test_severity_is_that_of_the_rules(gpus: list[float], severities: list[str]) -> None:
    those = [late(20, rank=3 + n, gpus=each, kind="persistent") for n, each in enumerate(gpus)]

    assert [one.severity for one in found(judged({60: verdict(*those)}))] == severities


def shares(*parts: tuple[int, float], kind: str = "rotating") -> JudgedStretch:
    """Return verdicts every 10 s: so many of them, and the share of the GPUs that is lost."""
    lost = [share * 8 for count, share in parts for _ in range(count)]
    return judged(
        {
            40 + 10 * at: verdict(lost={kind: gpus}, rotating={"data": gpus / 3, "eval": gpus})
            for at, gpus in enumerate(lost)
        }
    )


def test_loss_to_nobody_is_told_of_the_job() -> None:
    """Where more than the threshold is lost for minutes: since when, in which stage, how much."""
    (one,) = found(shares((20, 0.02), (40, 0.3), (20, 0.02)))

    assert (one.kind, one.severity, one.stage) == ("rotating", "info", "eval")
    assert (one.rank, one.ranks, one.instance) == (None, (), None)
    assert times(one) == (230, 470, 640)
    assert one.gpus_lost == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        pytest.param([(80, 0.09)], [], id="too little"),
        pytest.param([(20, 0.0), (20, 0.3), (40, 0.0)], [], id="too short"),
        pytest.param([(1, 0.15), (1, 0.0)] * 40, [], id="now and then"),
        # Half of the run is enough if it is shorter than the rules wait.
        pytest.param([(8, 0.3)], ["common"], id="short run"),
    ],
)
def test_little_or_short_loss_is_not_told(parts: list[tuple[int, float]], kinds: list[str]) -> None:
    """Nobody hears of what the rules would not tell."""
    assert [one.kind for one in found(shares(*parts, kind="common"))] == kinds


def test_reason_is_told_if_it_stood_for_half_of_the_run() -> None:
    """The warm-up does not count, unless nothing came after it."""
    warming, blind = verdict(reason=WARMING_UP), verdict(reason="no_sync")
    begin = {at: warming for at in range(10)}

    assert not_judgeable([judged(begin | {40: blind, 50: verdict()})]) == ["no_sync"]
    assert not_judgeable([judged(begin | {40: blind, 50: verdict(), 60: verdict()})]) == []
    assert not_judgeable([judged(begin)]) == ["warming_up"]
