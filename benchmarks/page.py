"""What the live page costs: 64 ranks that push, 16 stub GPUs, and one page that is open.

The exporter's share of a core without and with the page, over real HTTP, after ten minutes, so
that the ranks' strips are full; the bytes of the first visit; and in a real Chromium, how long it
takes until the verdict is on the screen.
"""

import argparse
import gzip
import http.client
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.report import write
from benchmarks.scrape.load import RANK, Family, beside
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from rank_probe.report.push import Pusher
from rank_probe.wire.snapshot import Snapshot
from tests import nvmlstub
from tests.exporter.live.browser import FILES, FLAGS, Served, serving
from tests.exporter.live.busy_node import GPUS, RANKS, STAGES, BusyNode

HISTORY_EVERY: Final = 10
HARNESS: Final = """<!doctype html><meta charset="utf-8"><title>harness</title>
<iframe id="page" src="/node/a/" style="width: 1200px; height: 900px; border: 0"></iframe>
<script>
const win = document.getElementById("page").contentWindow;
const drawn = () => win.document.querySelector("tbody tr");
const look = () =>
  drawn() ? win.requestAnimationFrame(() => setTimeout(tell, 0)) : setTimeout(look, 5);
const tell = () => fetch("/told?" + Math.round(win.performance.now()) + "&" +
  Math.round(win.performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1));
look();
</script>"""


class Rank:
    """A rank that steps, with time in each stage: each push is a new snapshot."""

    def __init__(self, rank: int) -> None:
        self._snapshot = replace(RANK, rank=rank, world_size=RANKS, stage_seconds=dict(STAGES))

    def __call__(self) -> Snapshot:
        before = self._snapshot
        spent = {  # No two ranks alike, or the answers compress far too well.
            stage: total + 2 * STAGES[stage] * random.uniform(0.9, 1.1)
            for stage, total in before.stage_seconds.items()
        }
        self._snapshot = replace(
            before, sequence=before.sequence + 1, steps=before.steps + 2, stage_seconds=spent
        )
        return self._snapshot


def push_for_ever(endpoint: str) -> None:
    """Act as RANKS ranks that each push once a second."""
    for rank in range(RANKS):
        Pusher(endpoint, Rank(rank)).start()
    signal.pause()


class Page:
    """Asks as live.js does: every second, over one connection, for the history now and then."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=10)
        self._polls = 0
        self.sizes: list[int] = []

    def poll(self) -> bytes:
        """Ask once and return the answer, unpacked."""
        history = "" if self._polls % HISTORY_EVERY == 0 else "?history=false"
        self._polls += 1
        headers = {"Accept-Encoding": "gzip"}
        self._connection.request("GET", f"/api/v1/live{history}", headers=headers)
        body = self._connection.getresponse().read()
        self.sizes.append(len(body))
        return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def share(family: Family, seconds: float, page: Page | None = None) -> float:
    """Return the exporter's share of a core over *seconds*, in which *page* is open, if any."""
    before, started = family.cpu_seconds()["exporter"], time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        if page is not None:
            page.poll()
        time.sleep(min(1.0, seconds - elapsed))
    return (family.cpu_seconds()["exporter"] - before) / (time.monotonic() - started)


def measure(directory: Path, warm_seconds: float, seconds: float, rounds: int) -> dict[str, Any]:
    """Return what an open page costs the exporter; rounds without and with it take turns."""
    stub = nvmlstub.environment(nvmlstub.build(directory), gpus=GPUS)
    with (
        ExporterProcess(directory, environment=stub) as exporter,
        beside(push_for_ever, exporter.target),
    ):
        page = Page(exporter.address)
        if wait_for(lambda: page.poll().count(b'"local_rank"') == RANKS or None, 60) is None:
            raise exporter.failure(f"did not show {RANKS} ranks in 60 s")
        time.sleep(warm_seconds)
        family = Family(exporter)
        closed, opened = [], []
        for _ in range(rounds):
            closed.append(share(family, seconds))
            page = Page(exporter.address)  # The exporter has closed the idle connection.
            opened.append(share(family, seconds, page))
        files = sum(map(len, FILES.values()))
        return {
            "ranks": RANKS,
            "GPUs": GPUS,
            "seconds of history": warm_seconds,
            "CPU without a page": statistics.median(closed),
            "CPU with a page": statistics.median(opened),
            "CPU of the page": statistics.median(opened) - statistics.median(closed),
            "bytes of the files": files,
            "bytes of the first answer": page.sizes[0],
            "bytes of a poll": statistics.median(page.sizes[-8:]),
        }


def painted() -> dict[str, int | None]:
    """Return when Chromium has painted something, and the verdict, in ms from the start."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return {"first paint ms": None, "verdict drawn ms": None}
    served = Served([BusyNode().view.json()], HARNESS)
    with (
        serving(served) as url,
        tempfile.TemporaryDirectory(
            ignore_cleanup_errors=True  # Chromium goes on writing for a moment.
        ) as folder,
    ):
        command = [chromium, *FLAGS.split(), "--remote-debugging-port=0"]
        quiet = subprocess.DEVNULL
        browser = subprocess.Popen(
            [*command, f"--user-data-dir={folder}", f"{url}/harness"], stdout=quiet, stderr=quiet
        )
        try:
            told = wait_for(lambda: next((p for p in served.asked if "/told" in p), None), 30)
        finally:
            browser.terminate()
            browser.wait()
    if told is None:
        return {"first paint ms": None, "verdict drawn ms": None}
    drawn, paint = told.partition("?")[2].split("&")
    return {"first paint ms": int(paint), "verdict drawn ms": int(drawn)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm-seconds", type=float, default=620.0)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        costs = measure(Path(directory), options.warm_seconds, options.seconds, options.rounds)
    write("page", [costs | painted()])


if __name__ == "__main__":
    main()
