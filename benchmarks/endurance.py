"""Ten million steps through one timeline: the probe's memory does not grow with the job.

The calls are those of torch's hooks, without any work in between. A second thread reads the totals
once a second, as the pusher does. A second holds more steps here than in any job, so the training
thread also has to tidy up on its own. Exits 1 if the process grew.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.report import write
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.report.push import INTERVAL_SECONDS

MILLION = 1_000_000
MILLIONS = 10
# From the end of the first million to the end of the last; allocators keep a little.
MOST_GROWTH_MIB = 1.0


def train(timeline: Timeline, steps: int) -> None:
    """Make the hook calls of *steps* steps."""
    note = timeline.tape.note
    for _ in range(steps):
        note(events.FETCH)
        timeline.work.measure(None)
        note(events.FETCHED)
        note(events.FORWARD_BEGINS)
        note(events.BACKWARD_BEGINS)
        note(events.GRADIENTS_READY)
        note(events.BACKWARD_ENDED)
        note(events.WAIT)
        note(events.RELEASED)
        note(events.OPTIMIZER_BEGINS)
        note(events.OPTIMIZER_ENDED)


@contextmanager
def read_meanwhile(timeline: Timeline) -> Iterator[None]:
    """Read *timeline*'s totals from another thread while the block runs, as the pusher does."""
    done = threading.Event()

    def read() -> None:
        while not done.wait(INTERVAL_SECONDS):
            timeline.steps.totals()
            timeline.steps.floor_seconds()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def measure() -> Iterator[dict[str, Any]]:
    """Yield a row after every million steps."""
    timeline = Timeline(automatic=True)
    process = psutil.Process()
    with read_meanwhile(timeline):
        for million in range(1, MILLIONS + 1):
            started = time.perf_counter()
            train(timeline, MILLION)
            seconds = time.perf_counter() - started
            # The last step ends when the next begins.
            counted = timeline.steps.totals().steps
            if counted != million * MILLION - 1:
                raise RuntimeError(f"{counted} steps were counted after {million} million")
            yield {
                "steps": million * MILLION,
                "RSS MiB": process.memory_info().rss / 2**20,
                "µs a step": seconds,
            }


def main() -> int:
    """Measure, print, and return whether memory stayed constant."""
    rows = list(measure())
    write("endurance", rows)
    growth = rows[-1]["RSS MiB"] - rows[0]["RSS MiB"]
    print(f"grew by {growth:.2f} MiB; {MOST_GROWTH_MIB} is allowed")
    return int(growth > MOST_GROWTH_MIB)


if __name__ == "__main__":
    sys.exit(main())
