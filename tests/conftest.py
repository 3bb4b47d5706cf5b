"""What every test stands on."""

from collections.abc import Iterator

import pytest

from rank_probe.guard import failures


@pytest.fixture(autouse=True)
def no_failures_of_another_test() -> Iterator[None]:
    """Count the probe's failures anew: it keeps them for the whole process."""
    failures.count = 0
    yield
