"""What every test stands on."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.wire import document
from tests.rank_probe.forks import Zygote
from tests.rank_probe.launch import RUN_AGAIN

# Groups of tests that take longest, and wait most: they begin first.
SLOW = ("e2e", "jobs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with slow groups, so that no worker has one left when the others are done."""
    items.sort(key=lambda item: [mark not in item.keywords for mark in SLOW])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was wrong with real ranks once and right when they ran again."""
    told = [
        line
        for report in terminalreporter.getreports("passed")
        for line in report.capstdout.splitlines()
        if RUN_AGAIN in line
    ]
    if told:
        terminalreporter.section(f"{len(told)} cases were run again")
        for line in told:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process whose forks are ranks."""
    zygote = Zygote()
    yield zygote
    zygote.end()


@pytest.fixture(autouse=True)
def no_failures_of_another_test() -> None:
    """Count the probe's failures anew: it keeps them for the whole process."""
    failures.count = 0


@pytest.fixture(autouse=True)
def every_document_is_as_its_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold what commands print with --json against docs/schemas, whatever a test is about."""

    def dumps(said: dict[str, Any], **options: Any) -> str:
        from tests.printed import check  # Here: few tests print any.

        check(said)
        return json.dumps(said, **options)

    monkeypatch.setattr(document, "json", SimpleNamespace(dumps=dumps))
