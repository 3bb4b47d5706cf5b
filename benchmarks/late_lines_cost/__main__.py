"""What sampling a stack costs the rank that is sampled, beside a rank that is not.

Two gloo ranks on the CPU; in each block of two seconds one of them is sampled, in turn, so that
what sets the two apart otherwise cancels out. Exits 1 if a sampled rank's own step is more than
0.5 % longer.

    python -m benchmarks.late_lines_cost [--minutes 10]
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.report import broken, write
from devstack.parts import ROOT
from rank_probe.lines.loop_frames import TrainingLoop, stack_of
from rank_probe.lines.sampling import line_of
from rank_probe.lines.user_code import of_this_process

MOST_PERCENT: Final = 0.5
SAMPLES: Final = 2_000
# Of normal values: from the median deviation to the standard one, and from a mean's to a median's.
ERROR_OF_MEDIAN: Final = 1.4826 * 1.2533
FRAMES: Final = 40  # of a model with nested modules


def longer(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return by how many percent the sampled rank's step is longer, and the standard error.

    *pairs* has the time of rank 0 and rank 1 in each block; rank 0 is sampled in the even ones.
    Two neighbours give one value, in which what the ranks always differ by cancels out. The median
    of these counts, because other loads of the machine come and go.
    """
    logs = [math.log(one / other) for one, other in pairs]
    values = [50 * (even - odd) for even, odd in zip(logs[::2], logs[1::2], strict=False)]
    middle = statistics.median(values)
    spread = statistics.median(abs(value - middle) for value in values)
    return middle, ERROR_OF_MEDIAN * spread / math.sqrt(len(values))


def sample_microseconds() -> float:
    """Return the time that one sample of a stack of FRAMES frames holds the interpreter."""
    done = threading.Event()
    thread = threading.Thread(target=_wait_below, args=(FRAMES, done))
    thread.start()
    time.sleep(0.1)
    code = of_this_process()
    loop = TrainingLoop(tuple, code.has)
    ident = thread.ident or 0
    times = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        stack = stack_of(sys._current_frames().get(ident))
        line_of(stack, code.has)
        loop.is_fetching(stack)
        times.append(time.perf_counter() - began)
    done.set()
    thread.join()
    return statistics.median(times) * 1e6


def _wait_below(frames: int, done: threading.Event) -> None:
    if frames:
        _wait_below(frames - 1, done)
    else:
        done.wait()


def measure(seconds: float) -> list[dict[str, Any]]:
    """Run the ranks and return the figures."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command = [*launcher, "-m", "benchmarks.late_lines_cost.job", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    wall, wall_error = longer(told["wall"])
    cpu, cpu_error = longer(told["cpu"])
    blocks = len(told["wall"])
    step = statistics.median(time for pair in told["wall"] for time in pair)
    taken = told["samples"]
    return [
        _row("minutes", seconds / 60),
        _row("blocks of a sampled rank beside one that is not", blocks),
        _row("own time of a step, median ms", step),
        _row("samples", taken),
        _row("samples a second of the sampled rank", taken / (seconds or 1)),
        _row("one sample, µs (hot)", sample_microseconds()),
        _row("own time of a step, longer by %", wall, wall_error, MOST_PERCENT),
        _row("CPU of the training thread, longer by %", cpu, cpu_error),
    ]


def _row(
    what: str, measured: float, error: float | None = None, most: float | None = None
) -> dict[str, Any]:
    return {"what": what, "measured": measured, "standard error": error, "most allowed": most}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What does sampling a stack cost its rank?")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    rows = measure(60 * options.minutes)
    write("late_lines_cost", rows, ("torch",))
    return int(bool(broken(rows)))


if __name__ == "__main__":
    sys.exit(main())
