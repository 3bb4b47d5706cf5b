"""One of a few ranks with sleeps for work, of which one is late; run by test_ranks.py.

join_job.py ANSWERS leaves ANSWERS/<rank>.json: the last snapshot before the end, and all step
vectors.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rank_probe import api, step
from rank_probe.api import stage
from rank_probe.join import store as join_store

STEPS = 40
WORK = {"data": 0.008, "forward": 0.008, "backward": 0.008}
LATE_RANK = 2
LATE_STAGE = "backward"
DELAY = 0.03
PERIOD = 0.2
PATIENCE = 20.0


def train(rank: int) -> None:
    """Run the steps, each of which ends with the ranks together."""
    gradient = torch.ones(4)
    for _ in range(STEPS):
        for name, seconds in WORK.items():
            late = rank == LATE_RANK and name == LATE_STAGE
            with stage(name):
                time.sleep(seconds + DELAY * late)
        dist.all_reduce(gradient)
        step()


def main() -> None:
    """Train under the probe, wait until the last steps are joined, and answer."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    join_store.PERIODS = ((ranks, PERIOD),)  # short enough for a test
    api.start()
    probe = api._probe
    assert probe is not None
    kept = probe.timeline.steps.keep()
    train(rank)
    vectors = kept.take()
    joinable = sum(sum(vector.nanoseconds) for vector in vectors[2:]) / 1e9
    until = time.monotonic() + PATIENCE
    snapshot = probe.snapshot()
    while snapshot is not None and time.monotonic() < until:
        if snapshot.join_coverage == 0 or (snapshot.joined_seconds or 0) > joinable:
            break
        time.sleep(PERIOD / 4)
        snapshot = probe.snapshot()
    dist.barrier()
    api.finish()
    assert snapshot is not None
    answer = {"snapshot": json.loads(snapshot.to_json()), "vectors": vectors}
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
