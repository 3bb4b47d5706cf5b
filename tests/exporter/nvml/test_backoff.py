from exporter.nvml.backoff import Backoff


def test_wait_doubles_up_to_the_cap_and_starts_anew_after_success() -> None:
    """What always fails costs little; what works again is tried at once."""
    backoff = Backoff(first_seconds=1.0, cap_seconds=5.0)

    assert [backoff.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0
