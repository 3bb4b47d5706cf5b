"""What is told of a late rank is steady, and says the best that is known."""

from typing import Any

import pytest

from exporter.causes.model import UNKNOWN, Cause
from exporter.evidence.late_causes import LateCauses, RankPlace

RANK = ("llama", 2)
HERE = RankPlace("all", "node-7", "3", "GPU-3f6d", "4711")


def cause(name: str = "cpu", detail: str = "run_queue", **changes: Any) -> Cause:
    return Cause(name, detail, 0.8, **({"sentence": "one", "first_action": "look"} | changes))


class Teller:
    """Takes in a finding at a time, with enough evidence, and says what is told."""

    def __init__(self) -> None:
        self.causes = LateCauses()

    def at(
        self, now: float, found: Cause | None, known: float = 60.0, place: RankPlace = HERE
    ) -> str:
        """Return the sentence that is told after *found*, empty if none is."""
        self.causes.take(RANK, found, place, now, known)
        told = self.causes.of(*RANK)
        return "" if told is None else told.sentence


HOT = cause("slow_device", "clocks", sentence="hot")
BUSY = cause(sentence="busy")
NOT_KNOWN = cause(UNKNOWN, "", sentence="not known")


def test_rank_without_evidence_has_no_cause() -> None:
    """Nothing is told of a rank that is not late, or of which nothing has been read."""
    teller = Teller()

    assert teller.causes.of(*RANK) is None
    assert teller.at(0.0, None) == ""
    assert teller.causes.all() == {}


def test_real_cause_is_told_at_once() -> None:
    """However young the incident is."""
    assert Teller().at(0.0, HOT, known=0.0) == "hot"


def test_unknown_is_told_with_ten_seconds_of_evidence() -> None:
    """The next second may bring a real cause."""
    teller = Teller()

    assert teller.at(0.0, NOT_KNOWN, known=9.9) == ""
    assert teller.at(0.1, NOT_KNOWN, known=10.0) == "not known"


def test_real_cause_replaces_unknown_at_once() -> None:
    """Nobody misses a sentence that says nothing."""
    teller = Teller()
    teller.at(0.0, NOT_KNOWN)

    assert teller.at(1.0, BUSY) == "busy"


def test_new_sentence_of_a_cause_is_told_after_a_minute() -> None:
    """An alert with figures that change at every look would be a new one each time."""
    teller = Teller()
    said = [teller.at(now, cause(sentence=f"at {now}")) for now in (0, 30, 59, 60, 100, 120)]

    assert said == ["at 0", "at 0", "at 0", "at 60", "at 60", "at 120"]


@pytest.mark.parametrize("other", [HOT, cause(detail="throttled", sentence="hot")])
def test_other_cause_or_detail_is_told_once_it_has_lasted(other: Cause) -> None:
    """After a quarter of a minute, not before: two that are near a limit take turns."""
    teller = Teller()
    said = [teller.at(0.0, BUSY), *(teller.at(now, other) for now in (5.0, 19.9, 20.0))]

    assert said == ["busy", "busy", "busy", "hot"]


def test_cause_that_takes_turns_with_another_stays() -> None:
    """What comes back begins to last anew, also if a third one was there in between."""
    teller = Teller()
    third = cause("gc", "", sentence="gc")
    rounds = [(0, BUSY), (5, HOT), (15, BUSY), (16, HOT), (30, HOT), (30.5, third), (31, HOT)]

    assert {teller.at(now, found) for now, found in rounds} == {"busy"}
    assert teller.at(46.0, HOT) == "hot"


def test_cause_that_is_gone_gives_way_to_unknown_after_a_minute() -> None:
    """It is better than nothing for as long."""
    teller = Teller()
    rounds = [(0, BUSY), (5, NOT_KNOWN), (64, NOT_KNOWN), (65, NOT_KNOWN)]

    assert [teller.at(now, found) for now, found in rounds] == ["busy"] * 3 + ["not known"]


def test_look_that_finds_nothing_takes_nothing_back() -> None:
    """A source that is away for a moment does not change what was told."""
    teller = Teller()
    teller.at(0.0, BUSY)

    assert teller.at(100.0, None) == "busy"


def test_rank_that_is_not_late_any_more_is_forgotten() -> None:
    """When it is late again, that is another incident."""
    teller = Teller()
    teller.at(0.0, BUSY)
    teller.causes.keep({("llama", 3)})

    assert teller.causes.of(*RANK) is None
    assert teller.at(1.0, HOT) == "hot"


def test_first_action_is_ready_to_be_run() -> None:
    """Placeholders are filled in, and words that contain one are left alone."""
    teller = Teller()
    teller.at(0.0, cause(first_action="`kill PID` on NODE: GPU (UUID) of its GPUs, PPID"))
    told = teller.causes.of(*RANK)

    assert told is not None
    assert told.first_action == "`kill 4711` on node-7: 3 (GPU-3f6d) of its GPUs, PPID"


def test_placeholder_of_what_is_not_known_stays() -> None:
    """It says what to look up."""
    teller = Teller()
    teller.at(0.0, cause(first_action="`nvidia-smi -i UUID` on NODE"), place=RankPlace(node="n\\1"))
    told = teller.causes.of(*RANK)

    assert told is not None
    assert told.first_action == "`nvidia-smi -i UUID` on n\\1"


def test_rank_that_restarts_has_its_new_process_in_its_first_action() -> None:
    """Nobody is sent to a process that has ended, not even for a minute."""
    teller = Teller()
    for now, pid in ((0.0, "4711"), (5.0, "4812")):
        teller.at(now, cause(first_action="`py-spy dump --pid PID`"), place=RankPlace(pid=pid))
    told = teller.causes.of(*RANK)

    assert told is not None
    assert told.first_action == "`py-spy dump --pid 4812`"
