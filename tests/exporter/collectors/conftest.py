"""The node whose collectors are tested."""

from pathlib import Path

import pytest

from exporter.collectors.node.files import Mounts
from tests.exporter.collectors.host import copy_of_host, mounted


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """A node that a test may change; psutil reads its /proc."""
    return mounted(copy_of_host(tmp_path / "host"), monkeypatch)
