"""What a push costs: CPU of the pusher's thread, for a rank of 100 ms steps."""

import time
from pathlib import Path

from benchmarks.overhead import arms
from rank_probe.probe import Probe
from rank_probe.report.push import Pusher
from tests.rank_probe.sink import listening

STEPS_A_SECOND = 10
RANK = {"RANKSKEW_JOB_ID": "overhead", "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}


def microseconds(directory: Path, pushes: int) -> list[float]:
    """Return the CPU time of each of *pushes* pushes to a server on a socket in *directory*.

    Between two pushes the timed loop does the steps of a second, and then ten times as much untimed
    work, so that a push finds its code and data as cold as in a job. The server is a thread of this
    process; its CPU time is not included.
    """
    training = arms.Training()
    timed = arms.batches(STEPS_A_SECOND)
    untimed = arms.batches(10 * STEPS_A_SECOND)
    probe = Probe(automatic=True, environment=RANK)
    path = directory / "exporter.sock"
    costs = []
    with listening(path):
        pusher = Pusher(f"unix:{path}", probe.snapshot)
        for _ in range(pushes + 1):
            probe.attach()
            training.run(timed)
            probe.detach()
            training.run(untimed)
            costs.append(_push(pusher))
        pusher.stop()
    arms.assert_it_works()
    if pusher.failed_pushes:
        raise RuntimeError(f"{pusher.failed_pushes} pushes failed, so their cost says nothing")
    return costs[1:]  # The first one connects.


def _push(pusher: Pusher) -> float:
    started = time.thread_time_ns()
    pusher.push()
    return (time.thread_time_ns() - started) / 1e3
