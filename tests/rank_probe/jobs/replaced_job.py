"""A rank under torchrun, of which one is killed in the first attempt; run by test_reform.py.

replaced_job.py ANSWERS: in the second attempt the ranks train as a group of reform_job.py does.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from rank_probe import api
from rank_probe.join import store
from tests.rank_probe.jobs.reform_job import PERIOD, answer, train


def main() -> None:
    """Train; in the first attempt until the last rank dies."""
    torch.set_num_threads(1)
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
        answer(probe, Path(sys.argv[1], f"{rank}.json"))
    dist.barrier()
    api.finish()
    os._exit(0)


if __name__ == "__main__":
    main()
