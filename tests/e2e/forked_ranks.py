"""The ranks of several jobs as forks of one process, so that torch is imported once for all.

Twenty ranks that import torch for themselves keep two cores busy for half a minute. Takes the
number of ranks of each job and, as JSON, the arguments of demo/train.py by job_id. Nothing here may
start a thread: a fork takes over the locks that it holds, and waits for them for good.
"""

import json
import os
import runpy
import socket
import sys

import torch._dynamo  # an optimizer imports it, and so would every fork
import torch.nn.parallel
import torch.utils.data  # noqa: F401 - the same of a loader


def be_rank(rank: int, ranks: int, job_id: str, port: int, arguments: list[str]) -> None:
    """Run one rank as torchrun would, under the probe, and end with it."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANKSKEW_JOB_ID": job_id,
    }
    sys.argv = ["rank_probe", "demo/train.py", *arguments]
    status = 1
    try:
        runpy.run_module("rank_probe", run_name="__main__", alter_sys=True)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)  # Never back into the loop that forks.


def free_ports(count: int) -> list[int]:
    """Return as many loopback ports that nobody listens on, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


def main(ranks: int, jobs: dict[str, list[str]]) -> None:
    """Start every rank of *jobs*, and wait for them."""
    for (job_id, arguments), port in zip(jobs.items(), free_ports(len(jobs)), strict=True):
        for rank in range(ranks):
            if os.fork() == 0:
                be_rank(rank, ranks, job_id, port, arguments)
    for _ in range(ranks * len(jobs)):
        os.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
