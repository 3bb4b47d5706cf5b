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


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        # A real cause is told at once, and replaces unknown at once.
        ([(0, NOT_KNOWN), (1, BUSY)], ["not known", "busy"]),
        # A new sentence of the same cause after a minute: else an alert would be new each time.
        (
            [(now, cause(sentence=f"at {now}")) for now in (0, 30, 59, 60, 100, 120)],
            ["at 0", "at 0", "at 0", "at 60", "at 60", "at 120"],
        ),
        # Another cause, or detail, once it has lasted for a quarter of a minute.
        *(
            ([(0, BUSY), (5, other), (19.9, other), (20, other)], ["busy", "busy", "busy", "hot"])
            for other in (HOT, cause(detail="throttled", sentence="hot"))
        ),
        # What comes back begins to last anew, also if a third one was there in between.
        (
            [
                *((0, BUSY), (5, HOT), (15, BUSY), (16, HOT), (30, HOT)),
                *((30.5, cause("gc", "", sentence="gc")), (31, HOT), (46, HOT)),
            ],
            [*["busy"] * 7, "hot"],
        ),
        # A cause that is gone gives way to unknown after a minute: it is better than nothing.
        (
            [(0, BUSY), (5, NOT_KNOWN), (64, NOT_KNOWN), (65, NOT_KNOWN)],
            ["busy", "busy", "busy", "not known"],
        ),
        # A look that finds nothing takes nothing back.
        ([(0, BUSY), (100, None)], ["busy", "busy"]),
    ],
)
def test_what_is_told_is_steady(rounds: list[tuple[float, Cause | None]], told: list[str]) -> None:
    """Two causes that are near a limit do not take turns."""
    teller = Teller()

    assert [teller.at(now, found) for now, found in rounds] == told


def test_unknown_is_told_with_ten_seconds_of_evidence() -> None:
    """The next second may bring a real cause, which is told however young the incident is."""
    teller = Teller()

    assert Teller().at(0.0, HOT, known=0.0) == "hot"
    assert teller.at(0.0, NOT_KNOWN, known=9.9) == ""
    assert teller.at(0.1, NOT_KNOWN, known=10.0) == "not known"


@pytest.mark.parametrize(
    ("places", "action", "filled"),
    [
        # Words that contain a placeholder are left alone.
        (
            [HERE],
            "`kill PID` on NODE: GPU (UUID) of its GPUs, PPID",
            "`kill 4711` on node-7: 3 (GPU-3f6d) of its GPUs, PPID",
        ),
        # That of what is not known says what to look up.
        (
            [RankPlace(node="n\\1")],
            "`nvidia-smi -i UUID` on NODE",
            "`nvidia-smi -i UUID` on n\\1",
        ),
        # Nobody is sent to a process that has ended, not even for a minute.
        (
            [RankPlace(pid="4711"), RankPlace(pid="4812")],
            "`py-spy dump --pid PID`",
            "`py-spy dump --pid 4812`",
        ),
    ],
)
def test_first_action_is_ready_to_be_run(places: list[RankPlace], action: str, filled: str) -> None:
    """Its placeholders are filled in from where the rank runs now."""
    teller = Teller()
    for now, place in enumerate(places):
        teller.at(5.0 * now, cause(first_action=action), place=place)
    told = teller.causes.of(*RANK)

    assert told is not None
    assert told.first_action == filled
