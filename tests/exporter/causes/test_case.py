"""What a thread does limits what can delay it."""

import math

import pytest

from exporter.causes.case import Case
from exporter.causes.model import PIPE, RUNNING, SLEEP, Evidence, Quantiles, ThreadState
from exporter.causes.tokens import ANY, on, storage_of, worker
from tests.exporter.causes.planted import States, case_in, evidence, lateness, peers

EXTRA = {"data": 0.2, "forward": 0.1}
# What it needs more there, in seconds.
FORWARD = 0.05065


def case(states: States = (), workers: States = ()) -> Case:
    """Return a rank that is late in two stages."""
    return case_in(lateness(EXTRA), evidence(EXTRA, {}, states, workers), peers())


@pytest.mark.parametrize(
    ("share", "alone"),
    [
        # 70 of 140 ms: of the excess of 100, as much as of the whole.
        (0.5, 0.050),
        # 126 ms: 14 ms are not sleep, so that 86 of the excess are.
        (0.9, 0.086),
        (1.0, 0.1002),
    ],
)
def test_who_sleeps_longer_than_its_excess_sleeps_where_peers_do(
    share: float, alone: float
) -> None:
    """If it does nothing else, the excess is sleep all the same."""
    found = case([("data", SLEEP, share, "")])

    assert found.spent_alone(("data",), frozenset({SLEEP})) == pytest.approx(alone, rel=0.1)
    forward = case([("forward", SLEEP, 0.6, "")]).spent_alone(("forward",), frozenset({SLEEP}))
    assert forward == pytest.approx(FORWARD * FORWARD / 0.18, rel=0.05)


def test_workers_tell_what_the_main_thread_waits_for() -> None:
    """Where it waits for them: in another stage it waits for another process."""
    states = [("data", PIPE, 0.9, "t (t.py:1)"), ("forward", PIPE, 1.0, "t (t.py:2)")]
    found = case(states, [("data", SLEEP, 0.5, "get (d.py:1)"), ("data", RUNNING, 0.5, "")])

    asleep = frozenset({worker(SLEEP)})
    assert found.spent(("data",), asleep) == pytest.approx(0.45 * 0.14, rel=0.02)
    assert found.where(("data", "forward"), asleep)[:2] == ("data", "get (d.py:1)")
    assert found.spent(("data", "forward"), frozenset({PIPE})) == pytest.approx(FORWARD, rel=0.02)


def test_place_is_that_which_costs_most() -> None:
    """And its time is all of that in the stage."""
    found = case([("data", SLEEP, 0.3, "b"), ("data", SLEEP, 0.4, "a"), ("forward", SLEEP, 1, "c")])

    stage, place, seconds = found.where(("data", "forward"), frozenset({SLEEP}))
    assert (stage, place) == ("data", "a")
    assert seconds == pytest.approx(0.7 * 0.14)
    assert found.where(("eval",), frozenset({SLEEP})) == ("", "", 0.0)


def test_shares_of_more_than_all_are_of_one() -> None:
    """Rounded shares, or those of two moments, cannot explain more than there is."""
    found = case([("data", SLEEP, 1.0, ""), ("data", RUNNING, 1.0, "")])

    assert found.spent(("data",), frozenset({SLEEP})) == pytest.approx(0.07)


def test_what_is_no_number_is_not_known() -> None:
    """NaN in a message is a figure that a rank does not have."""
    said = Evidence(
        {"gc_ratio": math.nan, "sm_clock_hertz": 1.0},
        [ThreadState("data", SLEEP, math.nan), ThreadState("data", SLEEP, -1.0)],
    )
    found = case_in(lateness(EXTRA), said, {"gc_ratio": Quantiles(0.0, math.nan, 0.0)})

    assert found.own("gc_ratio") is None
    assert found.lower("gc_ratio") is None
    assert found.lower("gc_ratio", 0.0) == 0.0
    assert found.doing == {}


@pytest.mark.parametrize(
    ("place", "storage"),
    [
        ("/data (nfs)", "nfs"),
        ("/data (nfs4)", "nfs"),
        ("/scratch (lustre)", "lustre"),
        ("/data (fuse.sshfs)", "mount"),
        ("/mnt/a (b) (9p)", "mount"),
        ("/ (ext4)", "disk"),
        ("/ (overlay)", "disk"),
        ("Corpus.read (corpus.py:88)", "storage"),
        ("", "storage"),
    ],
)
def test_storage_is_told_by_its_file_system(place: str, storage: str) -> None:
    """A line of code ends in parentheses too."""
    assert storage_of(place) == storage
    assert on(storage) in ANY
    assert worker(on(storage)) in ANY
