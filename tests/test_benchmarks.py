"""What the benchmarks publish is counted right: findings of planted faults, and intervals."""

import random
from typing import Any

import pytest

from benchmarks import report
from benchmarks.accuracy.plan import Segment
from benchmarks.accuracy.score import is_miss, score, summary
from benchmarks.accuracy.trace import Truth

TRUTH = Truth(
    healthy_step_seconds=0.1,
    slowdown=1.25,
    slowdown_run=1.2,
    size=0.25,
    gpus_lost=0.6,
    gpus_lost_run=0.5,
    planned_lost_run=0.4,
    common=0.1,
    begin_seconds=6.0,
    end_seconds=None,
    seconds=25.0,
)


def segment(fault: str) -> Segment:
    """Four DDP ranks."""
    return Segment("ddp", 4, 1, fault, 0.25)


def finding(kind: str, rank: int | None, stage: str | None, named: float = 300) -> dict[str, Any]:
    """A finding; the fault begins at 120 s."""
    return {
        "severity": "critical",
        "kind": kind,
        "rank": rank,
        "ranks": () if rank is None else (rank,),
        "slower_ranks": (),
        "peer_group": "all",
        "instance": "node1:9917" if kind == "node" else None,
        "stage": stage,
        "onset_s": named - 30,
        "named_s": named,
        "cleared_s": None,
        "gpus_lost": 0.6,
    }


def scored(fault: str, *findings: dict[str, Any]) -> dict[str, Any]:
    """The row of a segment with *fault* when *findings* were said."""
    job = {
        "findings": list(findings),
        "slowdown": 1.26,
        "gpus_lost_by_kind": {"persistent": 0.35, "rotating": 0.1, "common": 0.2},
        "source": "judge",
        "not_judgeable": [],
    }
    return score(segment(fault), TRUTH, job, 20.0)


# Found, rank, stage, kind, false alarms.
PARTS = ("found", "rank", "stage", "kind", "false alarms")
RIGHT = (True, True, True, True, 0)
NOTHING = (False, False, False, False, 0)
NOBODY = (None, None, None, None, 0)
FALSE = (None, None, None, None, 1)


@pytest.mark.parametrize(
    ("fault", "findings", "expected"),
    [
        ("data", [("mild", 0, "data", 150), ("persistent", 0, "data")], RIGHT),
        ("gc", [("pauses", 3, "forward")], RIGHT),
        ("data", [("mild", 0, "data")], NOTHING),
        ("data", [("persistent", 0, "forward")], (True, True, False, True, 0)),
        # Whom it names first counts; another rank than the late one is a false alarm.
        (
            "data",
            [("persistent", 0, "data", 200), ("persistent", 1, "data", 160)],
            (True, False, False, True, 1),
        ),
        # Before the fault begins.
        ("data", [("persistent", 0, "data", 100)], (False, False, False, False, 1)),
        ("data", [("other", None, None)], NOTHING),
        ("rotating", [("rotating", None, "forward")], RIGHT),
        ("rotating", [("persistent", 1, "forward")], (False, False, False, False, 1)),
        ("node", [("node", None, "forward")], RIGHT),
        ("none", [("mild", 2, "forward")], FALSE),
        ("none", [("rotating", None, "forward")], NOBODY),
        ("spread", [("mild", 2, "forward")], NOBODY),
        ("spread", [("persistent", 2, "forward")], FALSE),
    ],
)
def test_findings_are_scored(
    fault: str, findings: list[tuple[Any, ...]], expected: tuple[Any, ...]
) -> None:
    """Right are the kind, rank and stage that were planted, once the fault has begun."""
    row = scored(fault, *(finding(*each) for each in findings))

    assert tuple(row[name] for name in PARTS) == expected
    assert is_miss(row) == (expected not in (RIGHT, NOBODY))


def test_two_late_ranks_are_both_to_be_found() -> None:
    """One of two is first and right, but not all."""
    one, other = finding("persistent", 3, "backward"), finding("persistent", 0, "data")

    assert is_miss(scored("two", one))
    assert not is_miss(scored("two", one, other))


def test_row_says_how_soon_and_how_much() -> None:
    """It counts from the fault's begin to the naming; errors are relative to the run's truth."""
    row = scored("data", finding("persistent", 0, "data", 165))

    assert row["onset s"] == pytest.approx(45)
    assert row["onset error s"] == pytest.approx(15)
    assert row["slowdown error"] == pytest.approx(0.05)
    assert row["loss error"] == pytest.approx(-0.1)
    (told,) = summary([row, row], ("fault",))
    assert told["loss error"] == pytest.approx(0.1)
    assert (told["fault"], told["cells"], told["found"], told["onset s"]) == ("data", 2, 2, 45)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The ranks of the two ends, from the usual table of the sign test.
    [(5, None, None), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61), (2000, 956, 1045)],
)
def test_interval_of_a_median(count: int, low: int | None, high: int | None) -> None:
    """The interval's ends are the sorted values that a fair coin leaves outside in 5 % of cases."""
    values = [float(number) for number in range(1, count + 1)]
    random.Random(1).shuffle(values)

    found = report.median_interval(values)
    assert found == {"median": (count + 1) / 2, "95 % from": low, "95 % to": high}
