"""Tests of the device's clock under a timeline: a training loop on a simulated device."""

from collections.abc import Sequence

import pytest

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.device_clock import DeviceClock
from rank_probe.measure.steps import Steps
from rank_probe.measure.timeline import Timeline
from rank_probe.wire.stages import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, SYNC
from tests.rank_probe.fake_events import FakeDevice, FakeEvents
from tests.rank_probe.fake_time import FakeTime, elsewhere

MS = 1_000_000


class Loop:
    """A training loop on a fake device: 1,000 kernels forward, 2,000 backward, 100 to step."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.device = FakeDevice(self.time)
        self.events = FakeEvents(self.device)
        self.timeline = Timeline(automatic=True, now=self.time)
        self.clock = DeviceClock(self.events, now=self.time)
        self.timeline.after_first_step = self._attach

    def _attach(self) -> None:
        self.timeline.also_tell(self.clock)

    def step(self, *, data: float = 5, late: float = 0, item: bool = False) -> None:
        """Train a step with *data* ms on the host, a peer *late* by ms, a loss printed at last."""
        timeline = self.timeline
        timeline.tape.note(events.FETCH)
        self.time.pass_(round(data * MS))
        timeline.tape.note(events.FETCHED)
        self._kernels(1_000, 33_333)
        timeline.tape.note(events.BACKWARD_BEGINS)
        self._kernels(2_000, 33_333)
        timeline.tape.note(events.GRADIENTS_READY)
        self.device.append(round(late * MS))
        timeline.tape.note(events.BACKWARD_ENDED)
        timeline.tape.note(events.OPTIMIZER_BEGINS)
        self._kernels(100, 7_000)
        timeline.tape.note(events.OPTIMIZER_ENDED)
        if item:
            self.device.item()

    def _kernels(self, count: int, nanoseconds: int) -> None:
        for _ in range(count):
            self.device.launch(nanoseconds)


def a_step(steps: Steps, loop: Loop, **step: float) -> list[float]:
    """Return ms a step by stage once the queue of launches is in its steady state."""
    for _ in range(8):
        loop.step(**step)  # type: ignore[arg-type]  # `item` is a bool
    before = steps.totals()
    for _ in range(10):
        loop.step(**step)  # type: ignore[arg-type]  # as above
    after = steps.totals()
    assert after.steps - before.steps == 10
    shown = (DATA, FORWARD, BACKWARD, SYNC, OPTIMIZER, OTHER)
    return [(after.nanoseconds[i] - before.nanoseconds[i]) / 10 / MS for i in shown]


# The table of the design's simulation: data, forward, backward, sync, optimizer, printing.
SCENARIOS = [
    ({}, [5, 26.2, 66.1, 0, 3.4, 0], [0, 33.3, 66.7, 0, 0.7, 0]),
    ({"item": True}, [5, 6, 59.9, 0, 3.4, 31.4], [5, 33.3, 66.7, 0, 0.7, 0]),
    ({"late": 40}, [5, 66.2, 66.1, 0, 3.4, 0], [0, 33.3, 66.7, 40, 0.7, 0]),
    ({"late": 40, "item": True}, [5, 6, 59.9, 0, 3.4, 71.4], [5, 33.3, 66.7, 40, 0.7, 0]),
    ({"data": 60}, [60, 6, 59.9, 0, 3.4, 0], [28.7, 33.3, 66.7, 0, 0.7, 0]),
    ({"data": 60, "item": True}, [60, 6, 59.9, 0, 3.4, 31.4], [60, 33.3, 66.7, 0, 0.7, 0]),
]


@pytest.mark.parametrize(("step", "host", "device"), SCENARIOS)
def test_device_time_is_where_the_device_spent_it(
    step: dict[str, float], host: Sequence[float], device: Sequence[float]
) -> None:
    """A late peer is `sync` on the device while the host finds it in the next forward."""
    loop = Loop()
    assert a_step(loop.timeline.steps, loop, **step) == pytest.approx(host, abs=0.25)
    assert a_step(loop.clock.steps, loop, **step) == pytest.approx(device, abs=0.25)
    assert loop.clock.dropped_steps == 0


@pytest.mark.parametrize("call", ["new", "record", "query", "elapsed_time"])
def test_failing_device_leaves_the_host_clock_alone(call: str) -> None:
    """When an event fails the device's clock stops for good, counted once; the host's goes on."""
    loop = Loop()
    for _ in range(5):
        loop.step(item=True)
    before = failures.count
    loop.events.failing = call
    loop.events.made[0].at = None
    if call == "new":
        loop.clock._free.clear()
    for _ in range(4):
        loop.step(item=True)
    counted = loop.clock.steps.totals().steps
    loop.events.failing = ""
    for _ in range(4):
        loop.step(item=True)

    assert failures.count == before + 1
    assert loop.clock.steps.totals().steps == counted
    assert loop.clock.dropped_steps >= 7
    assert loop.timeline.steps.totals().steps == 12
    assert sum(loop.timeline.steps.totals().nanoseconds) > 12 * 100 * MS


def test_gradients_ready_on_an_engine_thread_is_taken_in_order() -> None:
    """The cut of backward may come from another thread, which records but never queries."""
    loop = Loop()
    timeline = loop.timeline
    for _ in range(6):
        loop.step(item=True)
        timeline.tape.note(events.FETCH)
        timeline.tape.note(events.FETCHED)
        timeline.tape.note(events.BACKWARD_BEGINS)
        loop.device.append(20 * MS)
        elsewhere(lambda: timeline.tape.append(events.GRADIENTS_READY))
        loop.device.append(7 * MS)
        timeline.tape.note(events.BACKWARD_ENDED)
        timeline.tape.note(events.OPTIMIZER_BEGINS)
        timeline.tape.note(events.OPTIMIZER_ENDED)
        loop.device.item()
    loop.step()
    before = failures.count
    loop.clock.finish()

    assert loop.clock.steps.totals().nanoseconds[SYNC] == 6 * 7 * MS
    assert failures.count == before
