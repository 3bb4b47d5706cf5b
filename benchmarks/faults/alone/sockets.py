"""The directory of the ingest socket is removed, and made again, while ranks push."""

import shutil
from pathlib import Path

from benchmarks.faults.alone.pushing import BACK_SECONDS, pushing
from benchmarks.report import Row, row
from devstack.parts import ExporterProcess
from devstack.process import wait_for


def socket_directory(directory: Path) -> list[Row]:
    """Return how soon ranks that push, and ranks that connect anew, are served again."""
    room = directory / "socket"
    room.mkdir()
    flags = ["--path.state=", f"--ingest.socket={room / 'exporter.sock'}"]
    with ExporterProcess(directory, flags=flags) as exporter:
        exporter.socket = room / "exporter.sock"
        with pushing(exporter) as before:
            before.back_after()
            shutil.rmtree(room)
            stayed = before.back_after()
            wait_for(lambda: exporter.socket.exists() or None, BACK_SECONDS)
            before.stop()
            missed = before.differ()
        # Of more ranks, all of which connect: the ranks before are among them.
        with pushing(exporter, 8) as after:
            connected = after.back_after()
    return [
        row("socket directory removed: connected ranks are served after, s", stayed, BACK_SECONDS),
        row("socket directory removed: new ranks are served after, s", connected, BACK_SECONDS),
        row("socket directory removed: ranks whose last counter is another", missed, 0),
    ]
