"""One process of a job that forms its process group anew; run by test_elastic.py.

reform_job.py ANSWERS: torchrun's agent of two ranks, which are forks; the last one dies in the
first attempt, and in the second one each leaves ANSWERS/<rank>.json.

reform_job.py PORT ANSWERS NAME: the process is one of those in GROUPS, in each of which its place
is its rank. All meet at the store at PORT. In each group, one rank is late; after STEPS steps the
process leaves ANSWERS/<group>-<NAME>.json: the verdict. It ends without a word unless it is in the
last group.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from rank_probe import api, step
from rank_probe.api import stage
from rank_probe.join import store
from rank_probe.probe import Probe

# The same ranks again, more of them, rank 0 gone, another rank 0, a rank 0 that never stepped: on
# a new store and on the old one.
GROUPS: Final = ("ABC", "ABC", "ABCD", "BCD", "DBC", "EBC", "FCEB")
STEPS: Final = 30
WORK: Final = {"data": 0.005, "forward": 0.005, "backward": 0.005}
LATE_STAGE: Final = "backward"
DELAY: Final = 0.03
PERIOD: Final = 0.1
PATIENCE: Final = 5.0


def late_rank(group: int) -> int:
    """Return which rank of *group* is late; never the one of the group before."""
    return (2 * group + 1) % len(GROUPS[group])


def form(meeting: TCPStore, group: int, name: str) -> None:
    """Form *group*: on the old store under the same name, every other time on a new store."""
    rank, ranks = GROUPS[group].index(name), len(GROUPS[group])
    if group % 2:
        if rank == 0:
            port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
            meeting.set(f"port/{group}", str(port))
        address = f"tcp://127.0.0.1:{meeting.get(f'port/{group}').decode()}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
        return
    if rank == 0:
        # Gloo would read the addresses of the group before.
        for key in meeting.list_keys():
            if "job" in key and "rankskew" not in key:
                meeting.delete_key(key)
        meeting.set(f"clean/{group}", "")
    meeting.wait([f"clean/{group}"])
    store = PrefixStore("job", TCPStore("127.0.0.1", meeting.port, wait_for_workers=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def train(late: int) -> None:
    """Run the steps, each of which ends with the ranks together; rank *late* is."""
    gradient = torch.ones(4)
    is_late = dist.get_rank() == late
    for _ in range(STEPS):
        for name, seconds in WORK.items():
            with stage(name):
                time.sleep(seconds + DELAY * (is_late and name == LATE_STAGE))
        dist.all_reduce(gradient)
        step()


def answer(probe: Probe, path: Path) -> None:
    """Wait until every rank has the last verdict, and leave it."""
    until = time.monotonic() + PATIENCE
    join = probe._parts.join
    while time.monotonic() < until:
        if (verdict := join.verdict) is not None and verdict["reason"] is None:
            break
        time.sleep(PERIOD / 4)
    dist.barrier()
    time.sleep(5 * PERIOD)
    path.write_text(json.dumps(join.verdict))


def be_restarted(answers: Path) -> None:
    """Start two ranks as torchrun does, and once more when one dies."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="elastic",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        start_method="fork",
    )
    elastic_launch(config, be_replaced)(answers)


def be_replaced(answers: Path) -> None:
    """Train; in the first attempt until the last rank dies."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store.PERIODS = ((ranks, PERIOD),)  # short enough for a test
    api.start()
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    train(late=0 if is_first else 1)
    if is_first and rank == ranks - 1:
        os._exit(17)
    probe = api._probe
    assert probe is not None
    if not is_first:
        answer(probe, answers / f"{rank}.json")
    dist.barrier()
    api.finish()


def take_part(port: int, answers: Path, name: str) -> None:
    """Take part in each group that has this process."""
    store.PERIODS = ((max(map(len, GROUPS)), PERIOD),)  # short enough for a test
    meeting = TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=120))
    api.start()
    probe = api._probe
    assert probe is not None
    mine = [group for group, names in enumerate(GROUPS) if name in names]
    for group in mine:
        if group:  # Not before all have left the group before.
            meeting.wait([f"left/{group - 1}/{other}" for other in GROUPS[group - 1]])
        form(meeting, group, name)
        train(late_rank(group))
        answer(probe, answers / f"{group}-{name}.json")
        dist.barrier()
        dist.destroy_process_group()
        meeting.set(f"left/{group}/{name}", "")
    if name in GROUPS[-1]:
        api.finish()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 2:
        be_restarted(Path(sys.argv[1]))
    else:
        take_part(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    os._exit(0)  # gloo's threads may outlive its groups: pytorch/pytorch#179291
