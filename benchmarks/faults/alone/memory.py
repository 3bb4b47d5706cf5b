"""An exporter at the memory that its unit allows it, asked for far more than it may hold."""

import http.client
import resource
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from benchmarks.faults.alone.pushing import BACK_SECONDS, pushing
from benchmarks.report import Row, row
from benchmarks.scrape.load import RANK
from devstack.parts import ExporterProcess
from devstack.process import get, wait_for
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import SNAPSHOT_PATH

# MemoryMax of deploy/systemd.
MOST_MEBIBYTES: Final = 512
LOAD_SECONDS: Final = 5.0
# More than the exporter may hold, with the longest names that it takes.
RANKS: Final = 200
# Fewer than one user may have open.
CONNECTIONS: Final = 100


def capped(directory: Path) -> list[Row]:
    """Cap its memory, ask for far more, and see that it answers and goes on."""
    answers: Counter[int] = Counter()
    with (
        ExporterProcess(directory, flags=["--path.state="]) as exporter,
        pushing(exporter) as ranks,
    ):
        ranks.back_after()
        process = psutil.Process(exporter.pid)
        memory = process.memory_info()
        # The kernel limits addresses, of which more are reserved than are in use.
        cap = memory.vms - memory.rss + (MOST_MEBIBYTES << 20)
        process.rlimit(resource.RLIMIT_AS, (cap, cap))
        until = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < until:
            answers += _load(exporter)
        died = int(exporter.exit_code is not None)
        mebibytes = 0 if died else process.memory_info().rss >> 20
        back = ranks.back_after() if not died else 3 * BACK_SECONDS
        page = wait_for(lambda: _page(exporter), BACK_SECONDS)
        ranks.stop()
        differ = ranks.differ()
        tracebacks = exporter.log.read_text().count("Traceback")
    return [
        row("memory cap: pushes beside those of 4 ranks", sum(answers.values())),
        row(
            "memory cap: refused with a reason",
            sum(n for s, n in answers.items() if 400 <= s < 500),
        ),
        row("memory cap: answered 500 or not at all", answers[500] + answers[0], 0),
        row("memory cap: MiB in use", mebibytes, MOST_MEBIBYTES),
        row("memory cap: exporter died", died, 0),
        row("memory cap: no page afterwards", int(page is None), 0),
        row("memory cap: ranks are served after, s", back, BACK_SECONDS),
        row("memory cap: ranks whose last counter is another", differ, 0),
        row("memory cap: tracebacks in the log", tracebacks, 0),
    ]


def _load(exporter: ExporterProcess) -> Counter[int]:
    """Push for many ranks over many connections, most open at once; count the statuses."""
    statuses: Counter[int] = Counter()
    connections = [open_connection(exporter.target) for _ in range(CONNECTIONS)]
    for number, connection in enumerate(connections):
        snapshot = replace(
            RANK,
            job_id=f"{number % 20:0128}",
            peer_group="x" * 128,
            rank=number % RANKS,
            world_size=RANKS,
        )
        try:
            connection.request("POST", SNAPSHOT_PATH, snapshot.to_json())
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException):
            statuses[0] += 1
    for connection in connections:
        with suppress(OSError):
            connection.close()
    _page(exporter)
    return statuses


def _page(exporter: ExporterProcess) -> bytes | None:
    try:
        return get(f"{exporter.url}/metrics", timeout_seconds=5)
    except OSError:
        return None
