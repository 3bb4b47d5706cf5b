"""One Alertmanager for all tests of what it sends."""

from collections.abc import Iterator

import pytest

from tests.alerts.receivers import Receivers, Sender


@pytest.fixture(scope="session")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    """The shipped configuration, with local receivers."""
    with Receivers() as receivers:
        sender = Sender(tmp_path_factory.mktemp("alertmanager"), receivers)
        with sender.process:
            yield sender
