"""What several tests of the probe stand on."""

from collections.abc import Iterator

import pytest

from rank_probe.torch_hooks import process_group


@pytest.fixture(scope="module")
def peers() -> Iterator[None]:
    """Have each backward cut, as in a job of several ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "has_peers", lambda: True)
        yield
