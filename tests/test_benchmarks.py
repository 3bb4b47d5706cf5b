"""The benchmarks plant what they say, call right what is right, and can give true figures."""

import random
from typing import Any

import pytest

from benchmarks import report
from benchmarks.accuracy.plan import FAULTS, GARBAGE, HEALTHY, Segment
from benchmarks.accuracy.score import is_miss, score, summary
from benchmarks.accuracy.trace import TraceError, Truth, merge, truth

# ---- Accuracy ------------------------------------------------------------------------------------

SHORT = {"healthy_steps": 10, "faulty_steps": 20}
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


def segment(fault: str, size: float = 0.25, ranks: int = 4, seed: int = 1, **steps: int) -> Segment:
    """A DDP segment."""
    return Segment("ddp", ranks, seed, fault, size, **steps)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "hog"])
def test_delays_are_the_size_on_average(fault: str) -> None:
    """Over the faulty steps those who are late are late by the size, all others by nothing.

    Else one rank is, in each step; or nobody, but for random garbage collections.
    """
    one = segment(fault, 0.0 if fault in HEALTHY else 0.1)
    faulty = range(one.healthy_steps, one.fault_ends)
    delays = [
        [one.delay(rank, step) or ("", 0.0) for step in range(one.steps)] for rank in range(4)
    ]
    late = dict(one.late())
    if fault in HEALTHY:
        assert (one.kind, late) == (None, {})
        assert {place for each in delays for place, _ in each} <= {"", GARBAGE}
        return
    assert not any(seconds for each in delays for _, seconds in each[: one.healthy_steps])
    for rank, each in enumerate(delays if late else ()):
        mean = sum(seconds for _, seconds in each) / len(faulty)
        assert mean == pytest.approx(0.1 if rank in late else 0.0)
    if not late:
        lateness = [sum(each[step][1] for each in delays) for step in faulty]
        assert lateness == pytest.approx([0.1] * len(faulty))
        assert all(any(seconds for _, seconds in each) for each in delays)


def rows(one: Segment, delay: float = 0.02) -> dict[int, list[dict[str, str]]]:
    """A trace with steps of 0.1 s, in which rank 0 is late by *delay* in the faulty steps."""
    found: dict[int, list[dict[str, str]]] = {rank: [] for rank in range(one.ranks)}
    now = 0.0
    for step in range(one.steps):
        late = delay if step >= one.healthy_steps else 0.0
        now += 0.1 + late
        for rank, of_rank in found.items():
            data, sync = (0.09 + late, 0.01) if rank == 0 else (0.09, 0.01 + late)
            cells = {"data_s": f"{data:.6f}", "sync_s": f"{sync:.6f}"}
            identity = {"job_id": "j", "rank": str(rank), "peer_group": "all"}
            of_rank.append({**identity, "step": str(step + 1), "time_s": f"{now:.3f}", **cells})
    return found


def test_truth_is_read_off_the_trace() -> None:
    """Slowdown, loss and size are those of the faulty steps; the fault begins after the healthy.

    Rows are merged step by step; four ranks are on two nodes; a step that one lacks is an error.
    """
    one = segment("data", **SHORT)
    delayed = {0: {step: 0.02 for step in range(10, 30)}}
    found = rows(one)
    merged = merge(one, found)
    true = truth(one, merged, delayed)
    found[3].pop()

    assert [row["node"] for row in merged[:4]] == ["0", "0", "1", "1"]
    assert [row["step"] for row in merged[:5]] == ["1", "1", "1", "1", "2"]
    with pytest.raises(TraceError, match="rank 3 has 29 of 30 steps"):
        merge(one, found)
    assert true.healthy_step_seconds == pytest.approx(0.1)
    assert true.slowdown == pytest.approx(1.2)
    assert true.slowdown_run == pytest.approx((10 + 20 * 1.2) / 30)
    assert true.size == pytest.approx(0.2)
    assert true.gpus_lost == pytest.approx(3 * 0.02 / 0.12)
    assert true.gpus_lost_run == pytest.approx(20 * 3 * 0.02 / 3.4)
    assert true.planned_lost_run == pytest.approx(true.gpus_lost_run)
    assert true.common == pytest.approx(0.3 / 3.4)
    both = truth(one, merge(one, rows(one)), {**delayed, 3: delayed[0]})
    assert both.slowdown_run == true.slowdown_run  # They wait for each other.
    assert true.begin_seconds == pytest.approx(1.0)
    assert true.end_seconds is None


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


def scored(one: Segment, *findings: dict[str, Any], true: Truth = TRUTH) -> dict[str, Any]:
    """The row of *one* when *findings* were said."""
    job = {
        "findings": list(findings),
        "slowdown": 1.26,
        "gpus_lost_by_kind": {"persistent": 0.35, "rotating": 0.1, "common": 0.2},
        "source": "judge",
        "not_judgeable": [],
    }
    return score(one, true, job, 20.0)


def verdict(row: dict[str, Any]) -> tuple[Any, ...]:
    """Found, rank, stage, kind, false alarms."""
    return tuple(row[name] for name in ("found", "rank", "stage", "kind", "false alarms"))


RIGHT = (True, True, True, True, 0)
NOTHING = (False, False, False, False, 0)


@pytest.mark.parametrize(
    ("fault", "findings", "expected"),
    [
        ("data", [("persistent", 0, "data")], RIGHT),
        ("data", [("mild", 0, "data", 150), ("persistent", 0, "data")], RIGHT),
        ("gc", [("pauses", 3, "forward")], RIGHT),
        ("gc", [("pauses", 1, "forward")], (False, False, False, True, 1)),
        ("data", [], NOTHING),
        ("data", [("mild", 0, "data")], NOTHING),
        ("data", [("mild", 2, "data")], (False, False, False, False, 1)),
        ("data", [("persistent", 0, "forward")], (True, True, False, True, 0)),
        ("data", [("persistent", 1, "data")], (False, False, False, True, 1)),
        (
            "data",
            [("persistent", 0, "data", 160), ("persistent", 1, "data", 200)],
            (True, True, True, True, 1),
        ),
        (
            "data",
            [("persistent", 0, "data", 200), ("persistent", 1, "data", 160)],
            (True, False, False, True, 1),
        ),
        ("data", [("persistent", 0, "data", 100)], (False, False, False, False, 1)),
        ("data", [("rotating", None, "data")], (False, False, False, False, 1)),
        ("data", [("other", None, None)], NOTHING),
        ("data", [("other", 2, None)], (False, False, False, False, 1)),
        ("rotating", [("rotating", None, "forward")], RIGHT),
        ("rotating", [("persistent", 1, "forward")], (False, False, False, False, 1)),
        ("rotating", [("pauses", 1, "forward")], (False, False, False, False, 1)),
        ("node", [("node", None, "forward")], RIGHT),
        ("node", [("persistent", 2, "forward")], (False, False, False, False, 1)),
        ("none", [], (None, None, None, None, 0)),
        ("none", [("mild", 2, "forward")], (None, None, None, None, 1)),
        ("none", [("rotating", None, "forward")], (None, None, None, None, 0)),
        ("none", [("common", None, None)], (None, None, None, None, 1)),
        ("spread", [("mild", 2, "forward")], (None, None, None, None, 0)),
        ("spread", [("persistent", 2, "forward")], (None, None, None, None, 1)),
    ],
)
def test_findings_are_scored(
    fault: str, findings: list[tuple[Any, ...]], expected: tuple[Any, ...]
) -> None:
    """Right are the kind, rank and stage that were planted, once the fault has begun."""
    row = scored(segment(fault), *(finding(*each) for each in findings))

    assert verdict(row) == expected
    assert is_miss(row) == (expected not in (RIGHT, (None, None, None, None, 0)))


def test_two_late_ranks_are_both_to_be_found() -> None:
    """One of two is first and right, but not all.

    Where less than a tenth of the GPUs is lost in turn, nobody ought to hear of it.
    """
    one = segment("two")
    half = scored(one, finding("persistent", 3, "backward"))
    whole = scored(one, finding("persistent", 3, "backward"), finding("persistent", 0, "data"))
    in_turn = finding("rotating", None, "data")
    little = Truth(**{**TRUTH.to_json(), "gpus_lost_run": 0.3})

    assert verdict(half) == verdict(whole) == RIGHT
    assert (half["all found"], whole["all found"]) == (False, True)
    assert (is_miss(half), is_miss(whole)) == (True, False)
    assert scored(segment("noise"), in_turn)["false alarms"] == 0
    assert scored(segment("noise"), in_turn, true=little)["false alarms"] == 1


def test_row_says_how_soon_and_how_much() -> None:
    """It counts from the fault's begin to the naming; errors are relative to the run's truth."""
    row = scored(segment("data"), finding("persistent", 0, "data", 165))

    assert row["onset s"] == pytest.approx(45)
    assert row["onset error s"] == pytest.approx(15)
    assert row["slowdown error"] == pytest.approx(0.05)
    assert row["loss error"] == pytest.approx(-0.1)
    (told,) = summary([row, row], ("fault",))
    assert told["loss error"] == pytest.approx(0.1)
    assert (told["fault"], told["cells"], told["found"], told["onset s"]) == ("data", 2, 2, 45)


# ---- Overhead ------------------------------------------------------------------------------------


def test_figure_is_the_difference_to_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down steadily does not change a figure, and none share a bare block."""
    from benchmarks.overhead import arms, blocks, loops  # They import torch.

    speed = iter(range(100))

    def block(arm: object, *_: object) -> blocks.Cost:
        added = 0 if arm is arms.bare else 7
        return blocks.Cost(100.0 + next(speed) + added, 50.0)

    monkeypatch.setattr(blocks, "block", block)
    others = {name: arm for name, arm in loops.ARMS.items() if arm is not arms.bare}
    found = blocks.measure(loops.PLAIN, others, steps=1, blocks=3, order=random.Random(1))

    of_tools = [cost for name, costs in found.items() if name != blocks.BARE for cost in costs]
    assert of_tools == [blocks.Cost(7.0, 0.0)] * 3 * len(others)
    assert next(speed) == len(others) + 3 * (2 * len(others) + 1)


def test_probe_sees_the_steps_that_it_is_charged_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm of the probe counts every step of its block, else its price is of something else.

    RANK_PROBE=0 in the environment ends the benchmark, instead of a figure near zero.
    """
    from benchmarks.overhead import arms
    from rank_probe import api

    for arm in (arms.automatic, arms.automatic_at_root, arms.manual):
        with arm(arms.Training()) as train:
            train(arms.batches(20))
            assert api._probe is not None
            assert api._probe.timeline.steps.totals().steps in (19, 20)
    monkeypatch.setenv("RANK_PROBE", "0")
    with pytest.raises(RuntimeError, match="RANK_PROBE=0"), arms.probe(automatic=True):
        pass


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
