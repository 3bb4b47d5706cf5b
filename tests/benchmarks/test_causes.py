"""The benchmark of planted causes tells right from wrong, by what is told first."""

from pathlib import Path

import pytest

from benchmarks.causes.causes_job import CAUSES, DIARY_FILE, LATE_RANK, RANKS
from benchmarks.causes.diary import true_of_others
from benchmarks.causes.score import (
    DETAILS,
    HEALTHY,
    RIGHT,
    Heard,
    Said,
    outcome,
)
from rankskew.diagnose.advice import advice

LATE = str(LATE_RANK)


def heard(*first: Said, alert: str = "") -> Heard:
    found = Heard()
    found.hear(first)
    found.hear_alerts([Said(LATE, alert, 30.0)] if alert else [])
    return found


def test_each_planted_cause_has_a_right_answer() -> None:
    """One that the advice knows."""
    assert {*RIGHT, HEALTHY} == set(CAUSES)
    for causes in RIGHT.values():
        assert {each.partition("/")[0] for each in causes} <= {*advice(), "code", "storage"}
    assert set(DETAILS) <= set(RIGHT)


def test_first_answer_counts() -> None:
    """The later one does not repair it."""
    found = heard(Said(LATE, "cpu", 9.0, "run_queue"), alert="cpu")
    found.hear([Said(LATE, "code", 20.0, "sleep")])
    found.hear_alerts([Said(LATE, "code", 40.0)])

    assert outcome("sleep", found) == "wrong"


@pytest.mark.parametrize(
    ("planted", "found", "expected"),
    [
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep"), alert="code"), "right"),
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep")), "right"),
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep"), alert="unknown"), "unknown"),
        ("sleep", heard(Said(LATE, "unknown", 9.0), alert="code"), "unknown"),
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep"), alert="cpu"), "wrong"),
        ("sleep", heard(Said("0", "code", 9.0, "sleep")), "wrong"),
        ("sleep", heard(Said(LATE, "code", 9.0), Said("0", "unknown", 9.0)), "wrong"),
        ("sleep", heard(), "silent"),
        ("network", heard(Said(LATE, "code", 9.0, "socket"), alert="code"), "right"),
        ("network", heard(Said(LATE, "code", 9.0, "sleep"), alert="code"), "wrong"),
        (HEALTHY, heard(), "right"),
        (HEALTHY, heard(Said(LATE, "unknown", 9.0)), "wrong"),
    ],
)
def test_outcome(planted: str, found: Heard, expected: str) -> None:
    """A wrong cause and a wrong rank are wrong, however often the right one is told too."""
    assert outcome(planted, found) == expected


def test_busy_cpus_are_true_too_for_who_computes() -> None:
    """Not for who sleeps, and not on a quiet machine."""
    found = heard(Said(LATE, "cpu", 9.0, "run_queue"))

    assert outcome("decode", found, busy=True) == "right"
    assert outcome("decode", found) == outcome("sleep", found, busy=True) == "wrong"


@pytest.mark.parametrize(
    ("said", "waited", "is_true"),
    [
        (Said("1", "cpu", 20.0), 0.009, True),
        (Said("1", "cpu", 20.0), 0.002, False),
        (Said("1", "unknown", 20.0), 0.0, True),
        (Said("1", "code", 20.0), 0.009, False),
        (Said("0", "cpu", 20.0), 0.009, False),
        (Said("1", "cpu", 5.0), 0.009, False),  # It began later.
        (Said(LATE, "cpu", 20.0), 0.009, False),
    ],
)
def test_what_is_said_of_another_rank_must_have_been_counted(
    said: Said, waited: float, is_true: bool, tmp_path: Path
) -> None:
    """Rank 1 works for 80 ms from its tenth second on, its peers for 70, and it *waited* more."""
    for rank in range(RANKS):
        lines = [
            f"{100 + second} {0.08 if rank == 1 and second >= 10 else 0.07} "
            f"{0.001 + (waited if rank == 1 else 0.0)}"
            for second in range(30)
        ]
        (tmp_path / f"{DIARY_FILE}{rank}").write_text("\n".join(lines))

    true = true_of_others([said], tmp_path, began=100.0)

    assert true == ({said.rank} if is_true else set())
    found = Heard([said], true_of_others=true)
    expected = "silent" if is_true else "right" if said.rank == LATE else "wrong"
    assert outcome("hog", found, busy=True) == expected
