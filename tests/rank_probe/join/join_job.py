"""One of a few ranks with sleeps for work, of which one is late; run by test_ranks.py.

join_job.py PORT ANSWERS [halt], with RANK and WORLD_SIZE in the environment. Connects to the store
at PORT, and leaves ANSWERS/<rank>.json: the last snapshot before the end, and all step vectors.
With `halt` rank 0 makes the file ANSWERS/half when half of the steps are done and each rank has
heard of joined ones, and goes on once there is ANSWERS/go.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from rank_probe import api, step
from rank_probe.api import stage
from rank_probe.join import store as join_store
from rank_probe.probe import Probe

STEPS = 40
WORK = {"data": 0.008, "forward": 0.008, "backward": 0.008}
LATE_RANK = 2
LATE_STAGE = "backward"
DELAY = 0.03
PERIOD = 0.2
PATIENCE = 20.0


def train(rank: int, steps: int) -> None:
    """Run the steps, each of which ends with the ranks together."""
    gradient = torch.ones(4)
    for _ in range(steps):
        for name, seconds in WORK.items():
            late = rank == LATE_RANK and name == LATE_STAGE
            with stage(name):
                time.sleep(seconds + DELAY * late)
        dist.all_reduce(gradient)
        step()


def halt(probe: Probe, answers: Path) -> None:
    """Let the test do something to ranks that have all heard of joined steps."""
    while not ((snapshot := probe.snapshot()) and snapshot.joined_seconds):
        time.sleep(PERIOD / 4)
    dist.barrier()
    if dist.get_rank() == 0:
        (answers / "half").touch()
        while not (answers / "go").exists():
            time.sleep(PERIOD / 4)


def main() -> None:
    """Train under the probe, wait until the last steps are joined, and answer."""
    port, answers = int(sys.argv[1]), Path(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join_store.PERIODS = ((ranks, PERIOD),)  # short enough for a test
    store = PrefixStore("job", TCPStore("127.0.0.1", port, wait_for_workers=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    api.start()
    probe = api._probe
    assert probe is not None
    kept = probe.timeline.steps.keep()
    train(rank, STEPS // 2)
    if "halt" in sys.argv:
        halt(probe, answers)
    train(rank, STEPS - STEPS // 2)
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
    (answers / f"{rank}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
