"""What happens to the whole stack for a while: no Prometheus, a clock that is set, no CPU to spare.

Each is called with the site up and its job training, and returns its rows.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.faults.pages import others
from benchmarks.faults.parts import POLL_SECONDS, Site, recoveries
from benchmarks.report import Row, row
from devstack.process import get

# A rank is silent after ten seconds without a push; a scrape and two evaluations later it shows.
SILENT_SECONDS = 14.0
HOUR_SECONDS = 3600.0
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long each lasts, in seconds."""

    prometheus_down: float = 600.0
    clock: float = SILENT_SECONDS
    busy: float = 60.0


def prometheus_is_down(site: Site, lengths: Lengths) -> list[Row]:
    """Keep Prometheus down, and see what it makes of the gap when it is back."""
    pages = len(others(site.webhook))
    site.keeper.kept_down.add(site.prometheus)
    site.prometheus.kill()
    time.sleep(lengths.prometheus_down)
    back = time.time()
    site.keeper.kept_down.clear()
    parts = [part for part in site.parts() if part.name == "Prometheus"]
    seconds = recoveries(parts, back)["Prometheus"]
    time.sleep(SILENT_SECONDS if lengths.prometheus_down > SILENT_SECONDS else 3.0)
    return [
        row("Prometheus down: seconds", lengths.prometheus_down),
        row("Prometheus down: back after, s", seconds, 10.0),
        row("Prometheus down: pages once it is back", len(others(site.webhook)) - pages, 0),
    ]


def clock_jumps(site: Site, lengths: Lengths) -> list[Row]:
    """Set the wall clock of the exporter and of rank 1 an hour ahead, and an hour back."""
    pages = len(others(site.webhook))
    found: list[Row] = []
    for name, seconds in (("an hour ahead", HOUR_SECONDS), ("an hour back", -HOUR_SECONDS)):
        site.clock.set(seconds)
        states, falls = _watch(site, lengths.clock)
        found += [
            row(f"clock {name}: looks that said hung, silent or missing", len(states), 0),
            row(f"clock {name}: steps that fell or stood still", falls, 0),
        ]
    site.clock.set(0.0)
    found.append(row("clock set: pages", len(others(site.webhook)) - pages, 0))
    return found


def no_cpu_to_spare(site: Site, lengths: Lengths) -> list[Row]:
    """Keep every CPU busy with two processes more, at the same priority."""
    pages = len(others(site.webhook))
    with busy(2 * (os.cpu_count() or 1)):
        states, falls = _watch(site, lengths.busy)
        unanswered = _unanswered(site)
    return [
        row("all CPUs busy: looks that said hung, silent or missing", len(states), 0),
        row("all CPUs busy: steps that fell or stood still", falls, 0),
        row("all CPUs busy: scrapes unanswered in 10 s, of 5", unanswered, 0),
        row("all CPUs busy: pages", len(others(site.webhook)) - pages, 0),
    ]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Have that many *processes* compute while the block runs."""
    with ExitStack() as undo:
        for _ in range(processes):
            process = subprocess.Popen([sys.executable, "-c", BUSY])
            undo.callback(process.wait)
            undo.callback(process.kill)
        yield


def _unanswered(site: Site, scrapes: int = 5) -> int:
    failed = 0
    for _ in range(scrapes):
        try:
            get(f"{site.exporter.url}/metrics", timeout_seconds=10)
        except OSError:
            failed += 1
    return failed


def _watch(site: Site, seconds: float) -> tuple[list[str], int]:
    """Look at the exporter for *seconds*.

    Return the bad states that it said of the job, and how many ranks' steps fell meanwhile or are
    not more at the end.
    """
    states: list[str] = []
    falls = 0
    first = last = site.steps()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(10 * POLL_SECONDS)
        if (state := site.state()) in ("hung", "ranks_missing"):
            states.append(state)
        now = site.steps()
        falls += sum(now[rank] < steps for rank, steps in last.items() if rank in now)
        last = now or last
    return states, falls + sum(last.get(rank, 0) <= steps for rank, steps in first.items())
