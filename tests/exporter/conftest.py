"""A real exporter process that the tests of a file share."""

from collections.abc import Iterator

import pytest

from tests.exporter.running import RunningExporter, running_exporter


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExporter]:
    """One exporter for the tests that do not end it; each of them uses a job of its own."""
    path = tmp_path_factory.mktemp("exporter") / "made" / "e.sock"
    flags = ("--ingest.listen-address=127.0.0.1:0", "--ingest.socket-mode=0660")
    with running_exporter(path, *flags) as running:
        yield running
