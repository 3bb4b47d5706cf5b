"""Hooks and fixtures for all tests."""

import gc
import json
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.wire import document
from tests.rank_probe.forks import Zygote
from tests.rank_probe.launch import RUN_AGAIN

# Groups of tests that take longest and wait most: they start first.
SLOW = ("e2e", "jobs")
# The files that wait longest, and how many computing files follow each waiting one.
LONGEST, BETWEEN = ("test_paged.py", "test_frameworks.py", "test_loops.py"), 3


@pytest.hookimpl(trylast=True)  # After -m has deselected tests.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and let something compute while something waits."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = {path for path, own in files.items() if any(set(SLOW) & set(i.keywords) for i in own)}
    waits = [path for path in files if path in slow and path.parent.name in SLOW]
    waits.sort(key=lambda path: path.name not in LONGEST)
    rest = iter(sorted(files.keys() - set(waits), key=lambda path: (path not in slow, path)))
    order: list[Path] = []
    for path in waits:
        order += [path, *islice(rest, BETWEEN)]
    items[:] = [item for path in (*order, *rest) for item in files[path]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep imported objects, which stay anyway, out of garbage collection for good."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the cases of real ranks that failed once and passed when they were run again."""
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
    """Reset the count of the probe's failures, which it keeps for the whole process."""
    failures.count = 0


@pytest.fixture(autouse=True)
def every_document_is_as_its_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validate what commands print with --json against docs/schemas, in every test."""

    def dumps(said: dict[str, Any], **options: Any) -> str:
        from tests.printed import check  # Imported here: few tests print a document.

        check(said)
        return json.dumps(said, **options)

    monkeypatch.setattr(document, "json", SimpleNamespace(dumps=dumps))
