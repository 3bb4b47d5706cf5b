from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import Calls
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.throttle import COUNTER_FIELDS, Throttle, ThrottleSeconds
from exporter.nvml.sample import REASON_BITS

POWER, THERMAL = REASON_BITS["sw_power_cap"], REASON_BITS["hw_thermal_slowdown"]
POWER_FIELD = COUNTER_FIELDS["sw_power_cap"][0]
IDLE = 0x1


def test_each_active_reason_gains_the_time_since_the_last_reading() -> None:
    """Without counters, reasons that are active together count the whole time, the others none."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    for now in (100.0, 101.0, 102.5):
        throttle.add(POWER | THERMAL, {}, now)
    throttle.add(IDLE, {}, 103.0)

    seconds = throttle.seconds()
    assert seconds["sw_power_cap"] == seconds["hw_thermal_slowdown"] == 2.5
    assert set(seconds) == set(REASON_BITS)
    assert sum(seconds.values()) == 5.0


def test_a_gap_without_readings_is_not_counted_as_throttled() -> None:
    """After a gap only the time that one reading of the mask may stand for is added."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    throttle.add(POWER, {}, 100.0)
    throttle.add(POWER, {}, 200.0)

    assert throttle.seconds()["sw_power_cap"] == 2.0


def test_counter_tells_what_the_mask_missed() -> None:
    """What the driver counted between two readings is exact, seen by the mask or not."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    throttle.add(0, {POWER_FIELD: 9e9}, 100.0)
    throttle.add(0, {POWER_FIELD: 9.25e9}, 101.0)  # Between two readings.
    throttle.add(POWER, {POWER_FIELD: 9.75e9}, 102.0)  # Half of the second that the mask says.
    throttle.add(0, {POWER_FIELD: 19.75e9}, 112.0)  # Through a gap in the readings.

    assert throttle.seconds()["sw_power_cap"] == 10.75


def test_seconds_never_jump_when_counters_come_and_go() -> None:
    """A counter that appears, stays away, or starts anew is worth only what it grew since."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    gained = []
    for now, counters in enumerate(
        [{}, {POWER_FIELD: 5e12}, {POWER_FIELD: 5e12 + 5e8}, {}, {POWER_FIELD: 5e12 + 17e8}]
    ):
        before = throttle.seconds()["sw_power_cap"]
        throttle.add(POWER, counters, float(now))
        gained.append(throttle.seconds()["sw_power_cap"] - before)
    assert gained == [0.0, 1.0, 0.5, 1.0, 1.0]

    throttle.add(0, {POWER_FIELD: 7.0}, 5.0)
    assert throttle.seconds()["sw_power_cap"] == sum(gained)


def test_counter_that_stands_still_under_its_reason_is_not_believed() -> None:
    """What the mask shows from one reading to the next has lasted, whatever the counter says."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    for now, reasons in enumerate([0, POWER, POWER, POWER, 0]):
        throttle.add(reasons, {POWER_FIELD: 7e9}, float(now))

    assert throttle.seconds()["sw_power_cap"] == 2.0


@pytest.mark.parametrize("reason", ["sw_thermal_slowdown", "hw_thermal_slowdown"])
@pytest.mark.parametrize("numbering", [0, 1], ids=["12.9 and 13.0", "13.1"])
def test_renumbered_counters_are_read_under_either_number(reason: str, numbering: int) -> None:
    """What has the number in the other numbering is a setting and adds nothing."""
    fields = COUNTER_FIELDS[reason]
    counter, setting = fields[numbering], fields[1 - numbering]
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    throttle.add(0, {counter: 3e9, setting: 0.0}, 100.0)
    throttle.add(0, {counter: 3.5e9, setting: 50.0}, 101.0)
    assert throttle.seconds()[reason] == 0.5

    throttle.add(0, {counter: 3.5e9, setting: 1e12}, 102.0)
    throttle.add(0, {counter: 3.5e9, setting: 0.0}, 103.0)
    assert throttle.seconds()[reason] == pytest.approx(0.5)


def test_mask_and_counters_come_from_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mask and seconds are told together; without the mask there is neither."""
    mask = {"nvmlDeviceGetCurrentClocksEventReasons": POWER}
    entries = (pynvml.c_nvmlFieldValue_t * 8)()
    entries[0].valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG

    def reasons(handle: object) -> int:
        if not mask:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return POWER

    def fields(handle: object, asked: list[Any]) -> Any:
        assert asked[0] == POWER_FIELD
        entries[0].value.ullVal += 250_000_000
        return entries[: len(asked)]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", reasons)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", fields)
    ask, throttle = Ask(0, object(), Calls(60.0, 60.0)), Throttle(2.0)
    throttle.read(ask, 100.0)

    sample = throttle.read(ask, 101.0)
    assert sample["throttle_reasons"] == POWER
    assert sample["throttle_seconds"]["sw_power_cap"] == 0.25
    mask.clear()
    assert throttle.read(ask, 102.0) == {}
