"""A disk that is full, or read-only: of the exporter's state, and of a rank's trace."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.faults.alone.pushing import BACK_SECONDS, pushing
from benchmarks.report import Row, row
from devstack.parts import ExporterProcess
from devstack.process import get, wait_for
from rank_probe.process.identity import for_rank
from rank_probe.report.trace import TraceFile
from tests import nvmlstub

KIBIBYTES: Final = 64
NEEDS_ROOT: Final = "a disk of one's own needs root: mount(8)"


def can_mount() -> bool:
    """Whether this process may mount a disk."""
    if os.geteuid() != 0:
        return False
    return (
        subprocess.run(["mount", "--fake", "-t", "tmpfs", "none", "/mnt"], check=False).returncode
        == 0
    )


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a disk of KIBIBYTES at *directory* while the block runs."""
    directory.mkdir()
    size = f"size={KIBIBYTES}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "rankskew", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def remount(directory: Path, how: str) -> None:
    """Make the disk at *directory* read-only (*how* ro) or not (rw)."""
    subprocess.run(["mount", "-o", f"remount,{how}", directory], check=True)


def fill(directory: Path) -> Path:
    """Write until the disk of *directory* is full; return the file that fills it."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            return filler


def disks(directory: Path, gpus: bool = True) -> list[Row]:
    """Return what a full and then a read-only disk do to an exporter and to a trace.

    Without *gpus* the exporter has none to remember.
    """
    with small_disk(directory / "disk") as disk:
        stub = nvmlstub.environment(nvmlstub.build(directory), gpus=1) if gpus else {}
        exporter = ExporterProcess(directory, flags=[f"--path.state={disk}"], environment=stub)
        filler = fill(disk)
        with exporter, pushing(exporter) as ranks:
            full = _trial("full disk", exporter, ranks.back_after())
            trace = _trace(disk)
            exporter.kill()
            remount(disk, "ro")
            exporter.start()
            read_only = _trial("read-only disk", exporter, ranks.back_after())
            remount(disk, "rw")
            filler.unlink()
            ranks.stop()
            differ = ranks.differ()
            tracebacks = exporter.log.read_text().count("Traceback")
    return [
        *full,
        row("full disk: traces that did not stop quietly", trace, 0),
        *read_only,
        row("disks: ranks whose last counter is another", differ, 0),
        row("disks: tracebacks in the log", tracebacks, 0),
    ]


def _trial(name: str, exporter: ExporterProcess, back_seconds: float) -> list[Row]:
    ready = wait_for(lambda: _is_ready(exporter), BACK_SECONDS)
    return [
        row(f"{name}: exporter started on it serves ranks after, s", back_seconds, BACK_SECONDS),
        row(f"{name}: exporter is not ready", int(ready is None), 0),
        row(f"{name}: warnings in the log", exporter.log.read_text().count(" WARNING ")),
    ]


def _is_ready(exporter: ExporterProcess) -> bool | None:
    try:
        return bool(get(exporter.ready_url or "")) or None
    except OSError:
        return None


def _trace(disk: Path) -> int:
    """Write to a trace on the full *disk*; return 1 unless it stops without an error."""
    file = TraceFile(str(disk), "faults", 0)
    rows = [(step, float(step), [0.1] * 10) for step in range(100)]
    file.write(for_rank({}, 0, 1), rows)
    return int(not file.stopped)
