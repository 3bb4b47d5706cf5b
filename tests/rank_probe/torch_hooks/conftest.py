"""What the tests of torch's hooks share."""

from collections.abc import Iterator

import pytest

from rank_probe.measure.timeline import Timeline
from tests.rank_probe.torch_hooks.hooked import attached


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """An automatic timeline with every patch in torch."""
    with attached(Timeline(automatic=True)) as timeline:
        yield timeline
