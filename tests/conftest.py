"""What every test stands on."""

import pytest

from rank_probe.guest.guard import failures


@pytest.fixture(autouse=True)
def no_failures_of_another_test() -> None:
    """Count the probe's failures anew: it keeps them for the whole process."""
    failures.count = 0
