"""What is done to one exporter while ranks push: no count is lost, and all go on."""

import http.client
import os
import random
import resource
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
import pytest

from benchmarks.report import Row
from devstack.load import RANK, Rank
from devstack.parts import ExporterProcess
from devstack.process import answers, get, wait_for
from rank_probe.process.identity import for_rank
from rank_probe.report.endpoint import open_connection
from rank_probe.report.trace import TraceFile
from rank_probe.wire.snapshot import SNAPSHOT_PATH, Snapshot
from tests import nvmlstub
from tests.nightly.figures import full_or_short, hold, row
from tests.nightly.pushing import BACK_SECONDS, Pushing, page_steps, tracebacks

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

NO_STATE: Final = "--path.state="


def can_mount() -> bool:
    """Whether this process may mount a disk."""
    command = ["mount", "--fake", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0


@contextmanager
def full_disk(directory: Path) -> Iterator[Path]:
    """Mount a disk of 64 KiB at *directory* while the block runs; yield the file that fills it."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "rankskew", str(directory)]
    subprocess.run(mount, check=True)
    filler = directory / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 512)
        yield filler
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.mark.e2e
@pytest.mark.skipif(not can_mount(), reason="a disk of one's own needs root: mount(8)")
def test_full_and_read_only_disks_cost_no_count(tmp_path: Path) -> None:
    """An exporter starts on either and serves its ranks; a rank's trace stops quietly."""
    stub = nvmlstub.environment(nvmlstub.build(tmp_path), gpus=1)
    with full_disk(tmp_path / "disk") as filler:
        disk = filler.parent
        exporter = ExporterProcess(tmp_path, flags=[f"--path.state={disk}"], environment=stub)
        with exporter, Pushing(exporter) as ranks:
            full = _serves_on("full disk", exporter, ranks)
            trace = TraceFile(str(disk), "faults", 0)
            trace.write(for_rank({}, 0, 1), [(n, float(n), [0.1] * 10) for n in range(100)])
            exporter.kill()
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            exporter.start()
            read_only = _serves_on("read-only disk", exporter, ranks)
            ranks.stop()
            rows = [
                *full,
                row("full disk: traces that did not stop quietly", int(not trace.stopped), 0),
                *read_only,
                row("disks: ranks whose last counter is another", ranks.differ(), 0),
                row("disks: tracebacks in the log", tracebacks(exporter), 0),
            ]
    hold("faults", rows)


def _serves_on(name: str, exporter: ExporterProcess, ranks: Pushing) -> list[Row]:
    back = ranks.back_after()
    ready = wait_for(lambda: answers(exporter.ready_url or "") or None, BACK_SECONDS)
    return [
        row(f"{name}: exporter started on it serves ranks after, s", back, BACK_SECONDS),
        row(f"{name}: exporter is not ready", int(not ready), 0),
    ]


@pytest.mark.e2e
def test_removed_socket_is_listened_on_anew(tmp_path: Path) -> None:
    """Connected ranks notice nothing, and new ones find the socket."""
    directory = tmp_path / "socket"
    directory.mkdir()
    flags = [NO_STATE, f"--ingest.socket={directory / 'exporter.sock'}"]
    exporter = ExporterProcess(tmp_path, flags=flags)
    exporter.socket = directory / "exporter.sock"
    with exporter:
        with Pushing(exporter) as before:
            before.back_after()
            shutil.rmtree(directory)
            stayed = before.back_after()
            wait_for(lambda: exporter.socket.exists() or None, BACK_SECONDS)
            before.stop()
            missed = before.differ()
        # Of more ranks, all of which connect: the ranks before are among them.
        with Pushing(exporter, 8) as after:
            connected = after.back_after()
    what = "socket directory removed:"
    rows = [
        row(f"{what} connected ranks are served after, s", stayed, BACK_SECONDS),
        row(f"{what} new ranks are served after, s", connected, BACK_SECONDS),
        row(f"{what} ranks whose last counter is another", missed, 0),
    ]
    hold("faults", rows)


def disorder(snapshots: int) -> list[Snapshot]:
    """Return *snapshots* of a rank and as many of its successor, each twice, many out of order."""
    draw, rank = random.Random(1), Rank(0)
    of_first = [rank() for _ in range(snapshots)]
    second = replace(RANK, started_timestamp_seconds=RANK.started_timestamp_seconds + 60)
    of_second = [replace(second, sequence=n, steps=10 * n) for n in range(1, snapshots + 1)]
    sent = 2 * list(enumerate([*of_first, *of_second]))
    # By up to forty places too late.
    return [each for _, each in sorted(sent, key=lambda pair: pair[0] + draw.uniform(0, 40))]


@pytest.mark.e2e
def test_disorder_costs_no_count(tmp_path: Path) -> None:
    """Snapshots that come twice, late or from a process before never turn a counter back."""
    snapshots = int(full_or_short(200, 40))
    statuses: Counter[int] = Counter()
    shown: list[float] = []
    with ExporterProcess(tmp_path, flags=[NO_STATE]) as exporter:
        connection = open_connection(exporter.target)
        for snapshot in disorder(snapshots):
            connection.request("POST", SNAPSHOT_PATH, snapshot.to_json())
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
            shown.append(page_steps(exporter)[0])
        connection.close()
    falls = sum(after < before for before, after in pairwise(shown))
    assert statuses[409] > 0
    rows = [
        row("pushes twice and out of order", statuses.total()),
        row("of these refused, by a process that was replaced", statuses[409]),
        row("of these answered otherwise", statuses.total() - statuses[409] - statuses[200], 0),
        row("times that the counter fell but for the restart", falls - 1, 0),
        row("last counter is not the last counted", int(shown[-1] != 10 * snapshots), 0),
    ]
    hold("faults", rows)


# MemoryMax of deploy/systemd.
MOST_MEBIBYTES: Final = 512


def test_memory_is_bounded(tmp_path: Path) -> None:
    """At the memory that its unit allows, asked for far more than it may hold, it goes on."""
    statuses: Counter[int] = Counter()
    with ExporterProcess(tmp_path, flags=[NO_STATE]) as exporter, Pushing(exporter) as ranks:
        ranks.back_after()
        process = psutil.Process(exporter.pid)
        memory = process.memory_info()
        # The kernel limits addresses, of which more are reserved than are in use.
        cap = memory.vms - memory.rss + (MOST_MEBIBYTES << 20)
        process.rlimit(resource.RLIMIT_AS, (cap, cap))
        until = time.monotonic() + 5
        while time.monotonic() < until:
            statuses += push_for_many(exporter)
        exporter.check_alive()
        mebibytes = process.memory_info().rss >> 20
        back = ranks.back_after()
        ranks.stop()
        refused = sum(count for status, count in statuses.items() if 400 <= status < 500)
        rows = [
            row("memory cap: pushes beside those of 4 ranks", statuses.total()),
            row("memory cap: refused with a reason", refused),
            row("memory cap: answered 500 or not at all", statuses[500] + statuses[0], 0),
            row("memory cap: MiB in use", mebibytes, MOST_MEBIBYTES),
            row("memory cap: ranks are served after, s", back, BACK_SECONDS),
            row("memory cap: ranks whose last counter is another", ranks.differ(), 0),
            row("memory cap: tracebacks in the log", tracebacks(exporter), 0),
        ]
    hold("faults", rows)


def push_for_many(exporter: ExporterProcess) -> Counter[int]:
    """Push for more ranks than it may hold, over a hundred connections, most open at once.

    Fewer than one user may have open. Return how often there was each status, 0 for none.
    """
    statuses: Counter[int] = Counter()
    connections = [open_connection(exporter.target) for _ in range(100)]
    for number, connection in enumerate(connections):
        snapshot = replace(
            RANK,
            job_id=f"{number % 20:0128}",
            peer_group="x" * 128,
            rank=number,
            world_size=len(connections),
        )
        try:
            connection.request("POST", SNAPSHOT_PATH, snapshot.to_json())
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException):
            statuses[0] += 1
    for connection in connections:
        connection.close()
    with suppress(OSError):
        get(f"{exporter.url}/metrics", timeout_seconds=5)
    return statuses


# A rank that is not back by then has not recovered.
MOST_RECOVERY_SECONDS: Final = 5.0


def test_killed_exporter_costs_no_step(tmp_path: Path) -> None:
    """64 ranks push through nine kills: each is back at once, and no step is lost or doubled."""
    kills, calm_seconds = int(full_or_short(9, 2)), full_or_short(60.0, 2.0)
    recoveries: list[float] = []
    with ExporterProcess(tmp_path) as exporter, Pushing(exporter, 64) as ranks:
        ranks.back_after()
        for _ in range(kills):
            time.sleep(calm_seconds)
            exporter.kill()
            time.sleep(3)
            exporter.start()
            recoveries.append(ranks.back_after())
            # Pages while all push on: none is behind the one before, or lacks a rank.
            pages = [page_steps(exporter) for _ in range(20)]
            assert all(len(page) == 64 for page in pages)
            assert not any(
                page[rank] < steps
                for before, page in pairwise(pages)
                for rank, steps in before.items()
            )
        ranks.stop()
        # Itself and its NVML child, which is replaced now and then.
        wait_for(lambda: len(exporter.family()) <= 2 or None, 5)
        rows = [
            row("ranks", len(ranks.ranks)),
            row("kills", kills),
            row("steps the ranks counted", round(sum(ranks.counted.values()))),
            row("of these on the last page", round(sum(page_steps(exporter).values()))),
            row("ranks whose last counter is another", ranks.differ(), 0),
            row("pushes failed, while it was down", ranks.failed),
            row("until every rank is back, median s", statistics.median(recoveries)),
            row("until every rank is back, most s", max(recoveries), MOST_RECOVERY_SECONDS),
            row("processes left behind", max(0, len(exporter.family()) - 2), 0),
        ]
    hold("restarts", rows)
