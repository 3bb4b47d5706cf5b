from exporter.nvml.throttle import REASON_BITS, ThrottleSeconds


def test_each_active_reason_gains_the_time_since_the_last_reading() -> None:
    """Reasons that are active together both count the whole time, the others none."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    for now in (100.0, 101.0, 102.5):
        throttle.add(REASON_BITS["sw_power_cap"] | REASON_BITS["hw_thermal_slowdown"], now)
    throttle.add(REASON_BITS["gpu_idle"], 103.0)

    seconds = throttle.seconds()
    assert seconds["sw_power_cap"] == seconds["hw_thermal_slowdown"] == 2.5
    assert seconds["gpu_idle"] == 0.5
    assert set(seconds) == set(REASON_BITS)
    assert sum(seconds.values()) == 5.5


def test_a_gap_without_readings_is_not_counted_as_throttled() -> None:
    """After a gap only the time that one reading may stand for is added."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    throttle.add(REASON_BITS["sw_power_cap"], 100.0)
    throttle.add(REASON_BITS["sw_power_cap"], 200.0)

    assert throttle.seconds()["sw_power_cap"] == 2.0
