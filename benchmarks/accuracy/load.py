"""Processes that burn CPU beside the ranks, which start and stop at random times.

    python -m benchmarks.accuracy.load SEED

When its standard input is closed, it ends with all processes that it has started.
"""

import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Seconds: the mean time between the starts of bursts, and the shortest and longest burst.
GAP_SECONDS: Final = 2.0
SHORTEST, LONGEST = 0.5, 8.0
MOST_AT_ONCE: Final = 4
# It ends by itself if nobody stops it.
MOST_SECONDS: Final = 900.0
BURN: Final = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end: pass
"""


def bursts(seed: int) -> Iterator[tuple[float, float]]:
    """Yield when each burst begins and ends, in seconds, at most MOST_AT_ONCE at a time."""
    draw, now, ends = random.Random(f"load {seed}"), 0.0, [0.0] * MOST_AT_ONCE
    while True:
        now = max(now + draw.expovariate(1 / GAP_SECONDS), min(ends))
        if now >= MOST_SECONDS:
            return
        end = min(now + draw.uniform(SHORTEST, LONGEST), MOST_SECONDS)
        ends[ends.index(min(ends))] = end
        yield now, end


@contextmanager
def beside(seed: int) -> Iterator[None]:
    """Burn CPU in other processes while the block runs."""
    command = [sys.executable, "-m", "benchmarks.accuracy.load", str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE):  # At its end, stdin is closed.
        yield


def main() -> None:
    """Start each burst in its time, until nobody needs them any more."""
    started = time.monotonic()
    burning: list[subprocess.Popen[bytes]] = []
    try:
        for begin, end in bursts(int(sys.argv[1])):
            wait = max(0.0, started + begin - time.monotonic())
            if select.select([sys.stdin], [], [], wait)[0]:
                return
            burning = [each for each in burning if each.poll() is None]
            command = [sys.executable, "-I", "-S", "-c", BURN, str(end - begin)]
            # Linux divides a CPU among sessions: in rank 0's session, only rank 0 would be slow.
            burning.append(subprocess.Popen(command, start_new_session=True))
    finally:
        for each in burning:
            each.kill()
            each.wait()


if __name__ == "__main__":
    main()
