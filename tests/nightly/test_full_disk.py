"""An exporter on a disk that is full, or read-only: it serves its ranks, and a trace stops."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from devstack.load import RANKS, pushing, scrape, steps_on
from devstack.parts import ExporterProcess
from devstack.process import answers, wait_for
from rank_probe.process.identity import for_rank
from rank_probe.report.trace import TraceFile
from tests import nvmlstub


def can_mount() -> bool:
    """Whether this process may mount a disk."""
    command = ["mount", "--fake", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not can_mount(), reason="a disk of one's own needs root: mount(8)"),
]


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Mount a disk of 64 KiB at *directory* while the block runs, and fill it."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "rankskew", str(directory)]
    subprocess.run(mount, check=True)
    try:
        filler = (directory / "filler").open("wb", buffering=0)
        with filler as file, suppress(OSError):
            while True:
                file.write(b"x" * 512)
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def assert_serves(exporter: ExporterProcess) -> None:
    """Assert that it is ready, and shows steps of each rank that are new."""
    before = steps_on(scrape(exporter.address))

    def moved_on() -> bool | None:
        now = steps_on(scrape(exporter.address))
        return (len(now) == RANKS and all(now[r] > before.get(r, 0) for r in now)) or None

    assert wait_for(moved_on, 30), before
    assert wait_for(lambda: answers(str(exporter.ready_url)) or None, 30)


def test_full_and_read_only_disks_cost_nothing(tmp_path: Path) -> None:
    """An exporter starts on either and serves its ranks; a rank's trace stops quietly."""
    disk = tmp_path / "disk"
    stub = nvmlstub.environment(nvmlstub.build(tmp_path), gpus=1)
    exporter = ExporterProcess(tmp_path, flags=[f"--path.state={disk}"], environment=stub)
    with full_disk(disk), exporter, pushing(exporter):
        assert_serves(exporter)
        trace = TraceFile(str(disk), "faults", 0)
        trace.write(for_rank({}, 0, 1), [(n, float(n), [0.1] * 10) for n in range(100)])
        assert trace.stopped
        exporter.kill()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        exporter.start()
        assert_serves(exporter)
        assert "Traceback" not in exporter.log.read_text()
