"""What every test stands on."""

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

# Groups of tests that take longest, and wait most: they begin first.
SLOW = ("e2e", "jobs")
# Files that wait for long, and how many files that compute follow each that waits.
LONGEST, BETWEEN = ("test_paged.py", "test_frameworks.py", "test_loops.py"), 3


@pytest.hookimpl(trylast=True)  # Once -m has left out the others.
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
    """Do not look for garbage in what is imported, then or later: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
