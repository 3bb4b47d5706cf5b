from itertools import pairwise
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


def gained(*readings: tuple[float, int, float | None]) -> list[float]:
    """Return by how much the power's seconds grow with each: time, mask and counter in ns."""
    throttle, seconds = ThrottleSeconds(longest_gap_seconds=2.0), [0.0]
    for now, reasons, counter in readings:
        throttle.add(reasons, {} if counter is None else {POWER_FIELD: counter}, now)
        seconds.append(throttle.seconds()["sw_power_cap"])
    return [after - before for before, after in pairwise(seconds)]


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


@pytest.mark.parametrize(
    ("readings", "seconds"),
    [
        # After a gap only the time that one reading of the mask may stand for is added.
        ([(100.0, POWER, None), (200.0, POWER, None)], [0.0, 2.0]),
        # What the driver counted is exact: between two readings, half of what the mask says, and
        # through a gap.
        (
            [(0.0, 0, 9e9), (1.0, 0, 9.25e9), (2.0, POWER, 9.75e9), (12.0, 0, 19.75e9)],
            [0.0, 0.25, 0.5, 10.0],
        ),
        # A counter that appears, stays away, or starts anew is worth only what it grew since.
        (
            [
                (0.0, POWER, None),
                (1.0, POWER, 5e12),
                (2.0, POWER, 5e12 + 5e8),
                (3.0, POWER, None),
                (4.0, POWER, 5e12 + 17e8),
                (5.0, 0, 7.0),
            ],
            [0.0, 1.0, 0.5, 1.0, 1.0, 0.0],
        ),
        # One that stands still while the mask shows its reason at both ends is not believed.
        ([(float(n), POWER * (0 < n < 4), 7e9) for n in range(5)], [0.0, 0.0, 1.0, 1.0, 0.0]),
    ],
    ids=["gap", "exact", "comes and goes", "stands still"],
)
def test_counter_is_believed_before_the_mask(
    readings: list[tuple[float, int, float | None]], seconds: list[float]
) -> None:
    assert gained(*readings) == seconds


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
