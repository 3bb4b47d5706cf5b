"""Tests of the device's clock, on a simulated device: by hand, and under the timeline of a loop."""

import ctypes
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE
from rank_probe.measure.device_clock import EVENTS, DeviceClock
from rank_probe.measure.steps import Steps
from rank_probe.measure.timeline import Timeline
from rank_probe.wire.stages import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, STAGES, SYNC
from tests.rank_probe.fakes import StubEvents, elsewhere
from tests.rank_probe.measure.noted_loop import MS, milliseconds


@pytest.fixture(params=["python", "c"], autouse=True)
def stub(
    request: pytest.FixtureRequest, cudart: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CUDA runtime of the clocks, with one of the two recorders."""
    monkeypatch.setattr(Marks, "library", cudart, raising=False)
    monkeypatch.setattr(Marks, "in_python", request.param == "python")


class Marks:
    """A device clock that is given boundaries by hand; each stage keeps the device for 1 ms."""

    library: ctypes.CDLL
    in_python = False

    def __init__(
        self, limit: int = EVENTS, *, in_python: bool = False, at_once: int = 0, hides: bool = False
    ) -> None:
        self.limit = limit
        self.events = StubEvents(self.library, in_python=in_python or self.in_python)
        self.time, self.device = self.events.time, self.events.streams
        self.clock = DeviceClock(
            self.events,
            limit=limit,
            every=0,
            at_once=at_once,
            hides_exchange=hides,
            now=self.time,
            wall=float,
        )
        self.clock.boundary(OTHER | COMPLETE)  # the end of the first step: counting begins

    def step(self, forward: float = 1) -> None:
        """A step of 1 ms data, *forward* ms, 1 ms sync up to the release, and 1 ms optimizer."""
        for mark, took in (
            (DATA, 1),
            (FORWARD, forward),
            (SYNC, 1),
            (OPTIMIZER | RELEASE, 1),
            (OTHER | COMPLETE, 0),
        ):
            self.clock.boundary(mark)
            self.device.append(round(took * MS))

    def catch_up(self) -> None:
        self.device.item()

    def milliseconds(self) -> dict[str, float]:
        return milliseconds(self.clock.steps.totals().nanoseconds)


def repeat(times: int, *calls: Callable[[], object]) -> None:
    """Make the *calls* in turn, this many *times*."""
    for _ in range(times):
        for call in calls:
            call()


def test_step_on_two_streams_waits_for_both() -> None:
    """The last event may be reached before one on a stream that is behind."""
    marks = Marks()
    marks.clock.boundary(DATA)
    marks.device.stream = 1
    marks.device.append(300 * MS)
    marks.clock.boundary(FORWARD)
    marks.device.stream = 0
    marks.clock.boundary(OTHER | COMPLETE)
    marks.time.pass_(10 * MS)
    repeat(4, marks.step)
    assert marks.clock.steps.totals().steps == 0
    marks.time.pass_(300 * MS)
    marks.step()

    assert marks.clock.steps.totals().steps == 4


def test_exchange_beside_the_work_is_hidden() -> None:
    """FSDP calls its collectives on a stream of their own, and waits where it needs them."""
    marks = Marks(hides=True)
    for mark, stream, took in (
        (FORWARD, 0, 7),
        (SYNC, 1, 5),  # the collective, during the forward
        (FORWARD | RELEASE, 1, 0),
        (BACKWARD, 0, 4),
        (SYNC, 0, 3),  # for what is exchanged too late
        (BACKWARD | RELEASE, 0, 2),
        (OTHER | COMPLETE, 0, 0),
        # The batch is fetched on a stream of its own, and the model waits for a collective.
        (DATA, 2, 0),
        (FORWARD, 2, 0),
        (SYNC, 0, 5),
        (FORWARD | RELEASE, 0, 7),
        (OTHER | COMPLETE, 0, 0),
    ):
        marks.device.stream = stream
        marks.clock.boundary(mark)
        marks.device.append(round(took * MS))
    marks.catch_up()
    marks.clock.finish()

    assert marks.milliseconds() == {"forward": 7, "backward": 6, "sync": 8}


@pytest.mark.parametrize("capturing", [1, 2])
def test_capture_is_one_piece_of_the_stage_it_is_in(capturing: int) -> None:
    """Nothing is recorded or queried in a capture; the stage around it has its time."""
    marks = Marks()
    marks.clock.boundary(FORWARD)
    marks.events.capturing = capturing
    recorded = marks.events.recorded
    for mark in (SYNC, FORWARD, BACKWARD, SYNC, OTHER | RELEASE):
        marks.clock.boundary(mark)
        marks.device.append(MS)
    assert marks.events.recorded == recorded
    marks.events.capturing = False
    marks.clock.boundary(OTHER | COMPLETE)
    repeat(2, marks.catch_up, marks.step)

    assert marks.milliseconds() == {"forward": 5}
    assert (marks.clock.recorder.dropped_steps, marks.clock.recorder.error) == (0, None)


FOREVER = 10**6
# What the thread has done since its last whole step when it stands, and where the device is then.
STANDS: dict[str, tuple[Sequence[tuple[int, float]], int | None]] = {
    # Of a rank whose peers wait: nothing is left for the device to do.
    "reads a batch": ([(DATA, 0)], None),
    "has launched what is next": ([(DATA, 1), (FORWARD, 1)], None),
    # NCCL makes the stream wait; the thread goes on to where it needs the result.
    "asks for the loss": ([(BACKWARD, 1), (SYNC, FOREVER), (OTHER | RELEASE, 0)], SYNC),
    "has a full queue": ([(SYNC, FOREVER), (OPTIMIZER | RELEASE, 1), (FORWARD, 1)], SYNC),
    "waits itself": ([(BACKWARD, 1), (SYNC, FOREVER)], None),
    "a kernel never ends": ([(FORWARD, FOREVER), (BACKWARD, 1)], FORWARD),
    "is steps ahead": ([(SYNC, FOREVER), *2 * [(OTHER | COMPLETE, 1), (SYNC, 1)]], SYNC),
}


@pytest.mark.parametrize("case", STANDS)
@pytest.mark.parametrize("capturing", [False, True])
def test_device_of_a_thread_that_stands_says_in_which_stage(case: str, capturing: bool) -> None:
    """It is asked by another thread, which must not break a graph that this one captures."""
    marks, (done, stage) = Marks(), STANDS[case]
    repeat(3, marks.step, marks.catch_up)
    for mark, took in done:
        marks.clock.boundary(mark)
        marks.device.append(round(took * MS))
    marks.time.pass_(60_000 * MS)
    marks.events.capturing = capturing

    assert marks.clock.stands_in() == stage
    marks.events.has_runtime = False
    assert marks.clock.stands_in() is None
    assert (failures.count, marks.clock.recorder.error) == (0, None)


def test_driver_that_does_not_answer_holds_nothing_up() -> None:
    """Python goes on, and nobody asks again before it has answered."""
    marks = Marks()
    marks.clock.boundary(FORWARD)
    marks.device.append(FOREVER * MS)
    marks.clock.boundary(BACKWARD)
    queried, marks.events.blocked = marks.events.queried, 1
    assert [marks.clock.stands_in() for _ in range(2)] == [None, None]
    assert marks.events.queried == queried + 1
    marks.events.blocked = 0
    while (stage := marks.clock.stands_in()) is None:
        pass
    assert stage == FORWARD


def test_exhaustion_drops_whole_steps_and_counts_them() -> None:
    """With every event in use steps are given up, until half are free; the rest stays exact."""
    marks = Marks(limit=42)  # eight steps and a bit
    marks.step(forward=1_000)
    repeat(20, marks.step)
    assert marks.events.made == 42
    assert marks.clock.recorder.dropped_steps == 13
    marks.catch_up()
    repeat(6, marks.step, marks.catch_up)

    steps = marks.clock.steps.totals().steps
    assert marks.clock.recorder.dropped_steps == 15  # one that made room, one with the gap's end
    assert steps == 21 + 6 - 15 - 2
    assert marks.milliseconds()["data"] == steps
    assert marks.milliseconds()["forward"] == 999 + steps


def test_step_of_many_boundaries_finds_events_again() -> None:
    """Three such steps need more than there are: none may wait for two younger ones."""
    marks = Marks(limit=12)
    repeat(20, marks.step, marks.catch_up)

    assert marks.clock.steps.totals().steps >= 9


def test_interrupt_while_steps_are_read_ends_nothing() -> None:
    """As Ctrl-C in a notebook, whose cell is run again."""
    marks = Marks()
    interrupts: list[BaseException] = [KeyboardInterrupt()]

    def look() -> None:
        if interrupts:
            raise interrupts.pop()

    marks.clock._after_read = look
    with pytest.raises(KeyboardInterrupt):
        repeat(9, marks.step, marks.catch_up)
    repeat(9, marks.step, marks.catch_up)

    assert (marks.clock.recorder.error, marks.clock.steps.totals().steps >= 7) == (None, True)


def test_steps_keep_the_numbers_that_the_host_gives_them() -> None:
    """A step that was given up leaves its number out, so the ranks of a job agree on the rest."""
    marks = Marks(limit=40)
    kept = marks.clock.steps.keep()
    for number in range(2, 40):  # Step 1 ended where counting began.
        marks.step(forward=number)
        if number % 8 == 0:
            marks.catch_up()
    marks.catch_up()
    marks.clock.finish()
    vectors = kept.take()

    assert 0 < marks.clock.recorder.dropped_steps < 30
    assert len(vectors) + marks.clock.recorder.dropped_steps == 38
    assert all(vector.step == vector.nanoseconds[FORWARD] // MS for vector in vectors)


@settings(deadline=None)  # Other work on the machine is not a failure.
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, RELEASE, COMPLETE, COMPLETE, BEGIN]),
            st.integers(0, len(STAGES) - 1),
            st.sampled_from([0, 1, 40 * MS]),  # on the device
            st.sampled_from([0, 1, 30 * MS]),  # on the host
            st.sampled_from(["", "", "", "", "", "capture", "stream", "device", "catch up"]),
        ),
        max_size=60,
    ),
    limit=st.integers(4, 40),
    at_once=st.sampled_from([0, 2]),
    hides=st.booleans(),
)
def test_whatever_happens_steps_are_whole(
    moves: list[tuple[int, int, int, int, str]], limit: int, at_once: int, hides: bool
) -> None:
    """No call fails, every step is counted or dropped, and no time is counted twice.

    The recorder in C finds the same as that in Python.
    """
    in_c, in_python = (
        run(Marks(limit, at_once=at_once, hides=hides, in_python=each), moves)
        for each in (False, True)
    )
    assert in_c == in_python


def run(marks: Marks, moves: list[tuple[int, int, int, int, str]]) -> tuple[object, ...]:
    """Make the *moves* and return what was counted."""
    kept = marks.clock.steps.keep()
    started, completed = marks.time.nanoseconds, 0
    for bits, stage, on_device, on_host, event in moves:
        marks.events.capturing ^= event == "capture"
        marks.device.stream ^= event == "stream"
        marks.events.current_device ^= event == "device"
        if event == "catch up":
            marks.catch_up()
        completed += bits == COMPLETE
        marks.clock.boundary(stage | bits)
        marks.device.append(on_device)
        marks.time.pass_(on_host)
    marks.events.capturing = False
    for stream in (0, 1):
        marks.device.stream = stream
        marks.catch_up()
    marks.clock.finish()
    totals = marks.clock.steps.totals()

    assert (marks.clock.recorder.error, marks.events.last_error) == (None, 0)
    assert marks.events.made <= marks.limit
    assert totals.steps + marks.clock.recorder.dropped_steps == completed
    assert min(totals.nanoseconds) >= 0
    assert sum(totals.nanoseconds) <= marks.time.nanoseconds - started + 4 * len(moves)  # floats
    return totals, kept.take(), marks.clock.recorder.dropped_steps, marks.clock.now()


class Loop:
    """A training loop on a fake device: 1,000 kernels forward, 2,000 backward, 100 to step."""

    def __init__(self) -> None:
        self.events = StubEvents(Marks.library, in_python=Marks.in_python)
        self.time, self.device = self.events.time, self.events.streams
        self.timeline = Timeline(automatic=True, now=self.time)
        self.clock = DeviceClock(self.events, now=self.time)
        self.timeline.after_first_step = lambda: self.timeline.also_tell(self.clock.boundary)

    def step(self, *, data: float = 5, late: float = 0, item: bool = False) -> None:
        """Train a step with *data* ms on the host, a peer *late* by ms, a loss printed at last."""
        note = self.timeline.tape.note
        note(events.FETCH)
        self.time.pass_(round(data * MS))
        note(events.FETCHED)
        self._kernels(1_000, 33_333)
        note(events.BACKWARD_BEGINS)
        self._kernels(2_000, 33_333)
        note(events.GRADIENTS_READY)
        self.device.append(round(late * MS))
        note(events.BACKWARD_ENDED)
        note(events.OPTIMIZER_BEGINS)
        self._kernels(100, 7_000)
        note(events.OPTIMIZER_ENDED)
        if item:
            self.device.item()

    def _kernels(self, count: int, nanoseconds: int) -> None:
        for _ in range(count):
            self.device.launch(nanoseconds)


def a_step(steps: Steps, loop: Loop, **step: float) -> list[float]:
    """Return ms a step by stage once the queue of launches is in its steady state."""
    repeat(8, lambda: loop.step(**step))  # type: ignore[arg-type]  # `item` is a bool
    before = steps.totals()
    repeat(10, lambda: loop.step(**step))  # type: ignore[arg-type]  # as above
    after = steps.totals()
    assert after.steps - before.steps == 10
    shown = (DATA, FORWARD, BACKWARD, SYNC, OPTIMIZER, OTHER)
    return [(after.nanoseconds[i] - before.nanoseconds[i]) / 10 / MS for i in shown]


# The table of the design's simulation: data, forward, backward, sync, optimizer, printing.
SCENARIOS = [
    ({}, [5, 26.2, 66.1, 0, 3.4, 0], [0, 33.3, 66.7, 0, 0.7, 0]),
    ({"late": 40}, [5, 66.2, 66.1, 0, 3.4, 0], [0, 33.3, 66.7, 40, 0.7, 0]),
    ({"late": 40, "item": True}, [5, 6, 59.9, 0, 3.4, 71.4], [5, 33.3, 66.7, 40, 0.7, 0]),
    ({"data": 60, "item": True}, [60, 6, 59.9, 0, 3.4, 31.4], [60, 33.3, 66.7, 0, 0.7, 0]),
]


@pytest.mark.parametrize(("step", "host", "device"), SCENARIOS)
def test_device_time_is_where_the_device_spent_it(
    step: dict[str, float], host: Sequence[float], device: Sequence[float]
) -> None:
    """A late peer is `sync` on the device while the host finds it in the next forward."""
    loop = Loop()
    assert a_step(loop.timeline.steps, loop, **step) == pytest.approx(host, abs=0.25)
    recorded = loop.events.recorded
    assert a_step(loop.clock.steps, loop, **step) == pytest.approx(device, abs=0.25)
    assert loop.clock.recorder.dropped_steps == 0
    # Of seven boundaries the optimizer's begins at once, and the fetch unless the loop waits.
    assert loop.events.recorded - recorded == 18 * (6 if step.get("item") else 5)


# The stub's numbers of: to make an event, to record one, to query it, to measure a distance.
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_failing_device_leaves_the_host_clock_alone(call: int) -> None:
    """When an event fails the device's clock stops for good, counted once; the host's goes on."""
    loop = Loop()
    repeat(5, lambda: loop.step(item=True))
    before = failures.count
    loop.events.failing = call
    for code in 200 * (events.WAIT, events.RELEASED):  # more than there were events so far
        loop.timeline.tape.note(code)
    repeat(4, lambda: loop.step(item=True))
    counted = loop.clock.steps.totals().steps
    loop.events.failing = 0
    repeat(4, lambda: loop.step(item=True))

    assert failures.count == before + 1
    assert loop.clock.steps.totals().steps == counted
    assert loop.clock.recorder.dropped_steps >= 7
    assert loop.timeline.steps.totals().steps == 12
    assert sum(loop.timeline.steps.totals().nanoseconds) > 12 * 100 * MS


def test_gradients_ready_on_an_engine_thread_is_taken_in_order() -> None:
    """The cut of backward may come from another thread, which records but never queries."""
    loop = Loop()
    timeline = loop.timeline
    for _ in range(6):
        loop.step(item=True)
        for code in (events.FETCH, events.FETCHED, events.BACKWARD_BEGINS):
            timeline.tape.note(code)
        loop.device.launch(20 * MS)
        elsewhere(lambda: timeline.tape.append(events.GRADIENTS_READY))
        loop.device.launch(7 * MS)
        for code in (events.BACKWARD_ENDED, events.OPTIMIZER_BEGINS, events.OPTIMIZER_ENDED):
            timeline.tape.note(code)
        loop.device.item()
    loop.step()
    before = failures.count
    loop.clock.finish()

    assert loop.clock.steps.totals().nanoseconds[SYNC] == 6 * 7 * MS
    assert failures.count == before
