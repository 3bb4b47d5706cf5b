"""Tests of the stage clock."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.clocks import RELEASE, StageClock
from rank_probe.stages import BACKWARD, DATA, FORWARD, OTHER, STAGES, SYNC
from rank_probe.steps import Steps
from tests.rank_probe.fake_time import FakeTime


def test_time_goes_to_the_stage_it_was_spent_in() -> None:
    """A switch charges the time since the last one to the stage that ends."""
    time = FakeTime()
    clock = StageClock(time)
    steps = Steps(clock.tape, time)
    time.pass_(3)
    clock.switch(DATA)
    time.pass_(5)
    clock.switch(FORWARD)

    assert steps.spent()[OTHER] == 3
    assert steps.spent()[DATA] == 5
    assert clock.stage == FORWARD


def test_nested_stage_suspends_the_one_around_it() -> None:
    """A wait inside backward is not counted as backward."""
    time = FakeTime()
    clock = StageClock(time)
    steps = Steps(clock.tape, time)
    clock.enter(BACKWARD)
    time.pass_(10)
    clock.enter(SYNC)
    time.pass_(7)
    clock.leave()
    time.pass_(1)
    clock.leave()

    assert steps.spent()[BACKWARD] == 11
    assert steps.spent()[SYNC] == 7
    assert clock.stage == OTHER


def test_unwind_leaves_blocks_whose_end_was_never_reported() -> None:
    """After unwinding the clock is where it was before the lost blocks."""
    clock = StageClock(FakeTime())
    clock.enter(DATA)
    clock.enter(FORWARD)
    clock.enter(SYNC)
    clock.unwind(1)

    assert clock.stage == DATA
    assert clock.depth == 1


def test_one_leave_too_many_falls_back_to_other() -> None:
    """An unbalanced leave does not raise into training."""
    clock = StageClock(FakeTime())
    clock.switch(FORWARD)
    clock.leave()

    assert clock.stage == OTHER


@settings(deadline=None)  # Other work on the machine is not a failure.
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["switch", "enter", "leave"]),
            st.integers(0, len(STAGES) - 1),
            st.integers(0, 10**12),
        )
    )
)
def test_stages_add_up_to_wall_time(moves: list[tuple[str, int, int]]) -> None:
    """Whatever is entered and left, no nanosecond is lost or counted twice."""
    time = FakeTime()
    clock = StageClock(time)
    steps = Steps(clock.tape, time)
    started = time.nanoseconds
    for move, stage, elapsed in moves:
        time.pass_(elapsed)
        if move == "leave":
            clock.leave()
        else:
            getattr(clock, move)(stage)

    clock.switch(OTHER)

    assert sum(steps.spent()) == time.nanoseconds - started


def test_device_hears_of_each_boundary() -> None:
    """A device's timeline is told every mark when it happens, in order."""

    class Device:
        def __init__(self) -> None:
            self.marks: list[int] = []

        def boundary(self, mark: int) -> None:
            self.marks.append(mark)

    clock = StageClock(FakeTime())
    device = Device()
    clock.also_tell(device)
    clock.switch(DATA)
    clock.enter(SYNC)
    clock.leave(RELEASE)

    assert device.marks == [DATA, SYNC, DATA | RELEASE] == clock.tape[::2]
