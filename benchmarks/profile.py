"""What a profile of two ranks costs the job: in steps around it, and in those that it has.

Four gloo ranks train on the CPU, and a profile of five steps of two of them is ordered again and
again. Of one of these, steps while it waits for the first step, and after the trace is written, are
held against those before the order, of the same round. What waiting costs is too little to be seen
so on a busy machine, so the events of a step are also timed alone, waiting and not, in turns. Exits
1 if waiting costs a step over 50 µs.

    python -m benchmarks.profile [--rounds 20]
"""

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import Row, broken, row, write
from fleet_simulator.stack.parts import ROOT
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rankskew.__main__ import main as rankskew

STEPS: Final = 5
STEP_SECONDS: Final = 0.02
# Of a round, before the order.
QUIET_SECONDS: Final = 4.0
# In each of the three parts of a round.
COMPARED: Final = 50
# The trace is written in the first ones after it.
AFTER: Final = 15
MOST_MICROSECONDS: Final = 50.0
BLOCKS: Final = 400
STEPS_A_BLOCK: Final = 100
# Of a step under DDP with a loader.
STEP_EVENTS: Final = (
    *(events.FETCH, events.FETCHED, events.FORWARD_BEGINS, events.BACKWARD_BEGINS),
    *(events.GRADIENTS_READY, events.BACKWARD_ENDED),
    *(events.OPTIMIZER_BEGINS, events.OPTIMIZER_ENDED),
)
# From the median deviation to the standard one, and from a mean's to a median's.
ERROR_OF_MEDIAN: Final = 1.4826 * 1.2533


def slower(ratios: Sequence[float]) -> tuple[float, float]:
    """Return by how many percent steps are slower, by the median of *ratios*, and its error."""
    percent = [100 * (ratio - 1) for ratio in ratios]
    middle = statistics.median(percent)
    spread = statistics.median(abs(each - middle) for each in percent)
    return middle, ERROR_OF_MEDIAN * spread / math.sqrt(len(percent))


def rounds_of(took: Sequence[float], starts: Sequence[int]) -> list[list[float]]:
    """Return of each round the medians before the order, waiting and after, and what else it took.

    That is: how much longer than usual the profiled steps took together, and those in which the
    trace was made. *took* has step 1, 2, and so on.
    """
    rounds = []
    for start in starts:
        first, end = start - 1, start - 1 + STEPS
        waiting = took[first - COMPARED : first]
        before = took[first - 5 * COMPARED : first - 4 * COMPARED]
        after = took[end + AFTER : end + AFTER + COMPARED]
        usual = statistics.median(before)
        profiled = sum(took[first:end]) - STEPS * usual
        made = sum(took[end : end + AFTER]) - AFTER * usual
        rounds.append([usual, statistics.median(waiting), statistics.median(after), profiled, made])
    return rounds


def rows_of(took: Sequence[Sequence[float]], starts: Sequence[int]) -> list[Row]:
    """Return the figures of a run."""
    rows = [row("profiles", len(starts))]
    for what, place in (("CPU", 1), ("time", 0)):
        rounds = rounds_of([each[place] for each in took], starts)
        before, waiting, after, profiled, made = (list(each) for each in zip(*rounds, strict=True))
        rows.append(row(f"{what} of a step, median ms", statistics.median(before)))
        for when, those in (("before the profile", waiting), ("after it", after)):
            ratios = [one / other for one, other in zip(those, before, strict=True)]
            percent, error = slower(ratios)
            rows.append(row(f"{what} of steps {when}, more by %", percent))
            rows.append(row(f"{what} of steps {when}, standard error of that", error))
        rows.append(row(f"{what} of the five steps, more by ms", statistics.median(profiled)))
        rows.append(row(f"{what} of those after them, more by ms", statistics.median(made)))
    return rows


def waiting_microseconds() -> float:
    """Return how much longer the events of a step take while a rank waits for its first step.

    These are the medians of blocks of steps in turns; the fold of each block is not counted.
    """
    quiet, waiting = Timeline(automatic=True), Timeline(automatic=True)
    for code in 2 * STEP_EVENTS:
        waiting.tape.note(code)
    waiting.at_each_step(lambda number: True)
    took: list[list[float]] = [[], []]
    for _ in range(BLOCKS):
        for each, timeline in zip(took, (quiet, waiting), strict=True):
            note = timeline.tape.note
            began = time.perf_counter()
            for _ in range(STEPS_A_BLOCK):
                for code in STEP_EVENTS:
                    note(code)
            each.append(1e6 * (time.perf_counter() - began) / STEPS_A_BLOCK)
            timeline.steps.fold()
    return statistics.median(took[1]) - statistics.median(took[0])


def measure(rounds: int) -> list[Row]:
    """Run the job and return the figures."""
    with tempfile.TemporaryDirectory() as directory:
        rows = rows_of(*_run(Path(directory), rounds))
    what = "events of a step while a rank waits, longer by µs"
    return [row(what, waiting_microseconds(), MOST_MICROSECONDS), *rows]


def _run(directory: Path, rounds: int) -> tuple[list[list[float]], list[int]]:
    ending, ingest, operator = directory / "end", directory / "e", directory / "o"
    command = [sys.executable, "-m", "rankskew", "exporter", "--path.state="]
    sockets = [f"--ingest.socket={ingest}", f"--operator.socket={operator}"]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
    script = ["tests/rank_probe/jobs/profile_job.py", str(ending), str(STEP_SECONDS)]
    environment = os.environ | {
        "RANKSKEW_EXPORTER": f"unix:{ingest}",
        "RANKSKEW_JOB_ID": "profiled",
        "RANK_PROBE_TRACE": str(directory / "traces"),
        "OMP_NUM_THREADS": "1",
    }
    web = "--web.listen-address=127.0.0.1:0"
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen([*command, *sockets, web], cwd=ROOT, stdout=log, stderr=log) as serves,
        subprocess.Popen(
            [*ranks, "-m", "rank_probe", *script],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        ) as job,
    ):
        try:
            time.sleep(30.0)  # Until it trains, and past its slow first steps.
            starts = [_start(operator) for _ in range(rounds)]
            time.sleep(QUIET_SECONDS)
        finally:
            ending.touch()
            job.wait(60)
            serves.terminate()
    took: list[list[float]] = json.loads(ending.read_text())
    return took, starts


def _start(operator: Path) -> int:
    """Wait, then order a profile; return its first step."""
    time.sleep(QUIET_SECONDS)
    said = io.StringIO()
    order = ["control", "--profile", "profiled", "2", f"--exporter=unix:{operator}", "--json"]
    with contextlib.redirect_stdout(said):
        status = rankskew([*order, f"--steps={STEPS}"])
    if status:
        raise SystemExit(said.getvalue())
    start: int = json.loads(said.getvalue())["start"]
    return start


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What does a profile cost the job?")
    parser.add_argument("--rounds", type=int, default=20)
    rows = measure(parser.parse_args().rounds)
    write("profile", rows, ("torch",))
    return int(bool(broken(rows)))


if __name__ == "__main__":
    sys.exit(main())
