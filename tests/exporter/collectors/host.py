"""A node's /proc and /sys as files, and what a scrape of some collectors shows of it.

Two sockets, NVMe disks, Ethernet and InfiniBand.
"""

import shutil
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter.collectors.base import Collector
from exporter.collectors.node.files import Mounts
from exporter.scrape.sampling import Scrape
from exporter.settings import Settings

FIXTURES: Final = Path(__file__).parents[2] / "fixtures"
HOST: Final = Mounts(FIXTURES / "proc", FIXTURES / "sys")
# A change of files, each below proc or sys: its new text, None for one that is gone, or REFUSED.
Files = dict[str, str | None]
REFUSED: Final = "it is there, and cannot be read"


def copy_of_host(folder: Path) -> Mounts:
    """Return a copy of the node in *folder* that a test may change."""
    return Mounts(
        shutil.copytree(HOST.procfs, folder / "proc"), shutil.copytree(HOST.sysfs, folder / "sys")
    )


def mounted(host: Mounts, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """Return *host*, with psutil reading its /proc, as with --path.procfs."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(host.procfs))
    return host


def settings_of(host: Mounts, **flags: Any) -> Settings:
    """Return the settings of an exporter on *host*."""
    return Settings(path_procfs=str(host.procfs), path_sysfs=str(host.sysfs), **flags)


def write(path: Path, text: str) -> None:
    """Write *text* to *path* and make the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def change(host: Mounts, files: Files) -> None:
    """Change *files* of the node."""
    for name, text in files.items():
        path = host.procfs.parent / name
        if text is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif text == REFUSED:
            path.unlink(missing_ok=True)
            path.mkdir(parents=True)
        else:
            write(path, text)


def disk(name: str, sectors: int, reads: int = 1, read_ms: int = 1, busy_ms: int = 1) -> str:
    """Return a line of /proc/diskstats: *sectors* read and written (Linux' iostats.rst)."""
    return f" 259 99 {name} {reads} 0 {sectors} {read_ms} 1 0 {sectors} 1 0 {busy_ms} 1\n"


def expose(*collectors: Collector) -> str:
    """Return the whole page with *collectors* alone on it."""
    registry = CollectorRegistry()
    registry.register(Scrape(list(collectors)))
    return generate_latest(registry).decode()


def page(*collectors: Collector) -> str:
    """Return the page of *collectors* as in a golden file: without the series about collectors."""
    lines = expose(*collectors).splitlines(keepends=True)
    return "".join(line for line in lines if "rankskew_collector_" not in line)


def series(page: str) -> list[str]:
    """Return the sample lines of *page*, without what the scrape adds for each collector."""
    return [line for line in page.splitlines() if not line.startswith(("#", "rankskew_collector_"))]


def shown(collector: Collector, start: str = "") -> list[str]:
    """Return the series of *collector* that begin with *start*; it must not have failed."""
    page = expose(collector)
    assert "rankskew_collector_success{" not in page or f'"{collector.name}"}} 1.0' in page
    return [line for line in series(page) if line.startswith(start)]
