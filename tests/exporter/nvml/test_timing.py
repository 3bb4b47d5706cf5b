"""How often the worker reads, and how long is waited for it and after its failures."""

import pytest

from exporter.nvml.backoff import Backoff
from exporter.nvml.process import END_SECONDS
from exporter.nvml.timing import Timing


def test_flags_carry_every_setting_to_the_worker() -> None:
    """The worker runs with exactly the timing that its supervisor has."""
    timing = Timing(0.25, 2.5, 30.0, 7.0, 12.0)

    assert Timing.from_arguments(timing.to_arguments()) == timing
    assert Timing.from_arguments([]) == Timing()


def test_slow_readings_are_not_stale_before_the_next_one() -> None:
    """Reading the GPUs seldom does not make every sample stale."""
    assert Timing(interval_seconds=1.0, stale_seconds=5.0).patience_seconds == 5.0
    assert Timing(interval_seconds=15.0, stale_seconds=5.0).patience_seconds == 45.0


def test_hung_call_is_mended_within_ten_seconds() -> None:
    """What may pass before a hung worker is replaced leaves a second for the new one to start."""
    timing = Timing()

    assert timing.interval_seconds + timing.patience_seconds + 2 * END_SECONDS <= 9


def test_wrong_flag_ends_the_worker_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is not a number is refused in one line."""
    with pytest.raises(SystemExit) as end:
        Timing.from_arguments(["--interval-seconds=often"])

    assert end.value.code == 2
    assert "invalid float value: 'often'" in capsys.readouterr().err


def test_wait_doubles_up_to_the_cap_and_starts_anew_after_success() -> None:
    """What always fails costs little; what works again is tried at once."""
    backoff = Backoff(first_seconds=1.0, cap_seconds=5.0)

    assert [backoff.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0
