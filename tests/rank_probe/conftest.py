"""What several tests of the probe stand on."""

from collections.abc import Iterator

import pytest

from rank_probe.process import runtime


@pytest.fixture(scope="module")
def peers() -> Iterator[None]:
    """Have each backward cut, as in a job of several ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "has_peers", lambda: True)
        yield
