"""What a look at the ranks' processes costs, and each reading beside psutil's.

`python -m benchmarks.host_look` prints a table; CPU time of one thread, medians.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from exporter.processes import usage
from exporter.processes.host_watch import INTERVAL_SECONDS, Followed, HostWatch
from exporter.processes.process import Process
from exporter.processes.worker_states import LateRankProcess, WorkerStates

PROC: Final = Path("/proc")
LOOKS: Final = 15
RANK: Final = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print(flush=True)
time.sleep(600)
"""


def main() -> None:
    """Measure, and print the results."""
    print("| what | CPU time |\n| --- | --- |")
    for ranks, workers in ((8, 8), (1, 2000)):
        milliseconds, left_out = look(ranks, workers)
        share = milliseconds / 1000 / INTERVAL_SECONDS
        print(
            f"| a look at {ranks} ranks with {workers} workers each "
            f"({left_out} left out) | {milliseconds:.1f} ms, {100 * share:.3f} % of a core |"
        )
    with started(1, 8) as (rank,):
        print(f"| a look at 8 workers of a late rank | {_worker_milliseconds(rank):.2f} ms |")
    pid = os.getpid()
    process, folder = psutil.Process(pid), f"{PROC}/{pid}"
    for name, ours, theirs in (
        ("bytes", lambda: usage._read_bytes(folder), process.io_counters),
        ("CPU time", lambda: usage.stat(PROC, pid), process.cpu_times),
        (
            "both, ours with the run queue",
            lambda: usage.usage(PROC, pid),
            lambda: _oneshot(process),
        ),
    ):
        print(f"| {name}: ours | {_microseconds(ours):.1f} µs |")
        print(f"| {name}: psutil's | {_microseconds(theirs):.1f} µs |")


def look(ranks: int, workers: int) -> tuple[float, int]:
    """Return the milliseconds of a look at sleeping ranks, and how many processes it left out."""
    with started(ranks, workers) as pids:
        return _milliseconds(pids)


@contextmanager
def started(ranks: int, workers: int) -> Iterator[list[int]]:
    """Start so many sleeping ranks with so many sleeping workers each; yields their ids."""
    command = [sys.executable, "-c", RANK, str(workers)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(ranks)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _worker_milliseconds(rank: int) -> float:
    states = WorkerStates(PROC)
    states.follow([LateRankProcess("j", 0, rank)])
    took = []
    for _ in range(LOOKS):
        time.sleep(0.2)
        before = time.thread_time()
        states.look()
        took.append(1000 * (time.thread_time() - before))
    assert states.of("j", 0)
    return statistics.mean(took)


def _milliseconds(pids: list[int]) -> tuple[float, int]:
    watch = HostWatch(PROC, Path("/sys"))
    watch.follow([Followed(("j", "all", str(pid)), _process(pid)) for pid in pids])
    watch.look()
    took = []
    for _ in range(LOOKS):
        time.sleep(0.5)  # So that the caches are as cold as between two looks of an exporter.
        before = time.thread_time()
        watch.look()
        took.append(1000 * (time.thread_time() - before))
    latest = watch.latest()
    assert latest is not None
    assert len(latest.costs) == len(pids)
    return statistics.median(took), latest.left_out


def _process(pid: int) -> Process:
    found = usage.stat(PROC, pid)
    assert found is not None
    return Process(pid, found.start_ticks, "python")


def _oneshot(process: psutil.Process) -> None:
    with process.oneshot():
        process.cpu_times()
        process.num_ctx_switches()
        process.io_counters()


def _microseconds(call: Callable[[], Any], calls: int = 500) -> float:
    took = []
    for _ in range(LOOKS):
        before = time.thread_time()
        for _ in range(calls):
            call()
        took.append(1e6 * (time.thread_time() - before) / calls)
    return statistics.median(took)


if __name__ == "__main__":
    main()
