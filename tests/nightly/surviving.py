"""A data-parallel training whose ranks survive the death of their peers, and what they count.

    python -m rank_probe tests/nightly/surviving.py DIRECTORY 127.0.0.1:STORE_PORT    one rank

When a peer dies, the others leave the process group, wait for its successor and continue in a new
group. Their processes live on, with what the probe has counted in them. They exit cleanly once
DIRECTORY/stop exists. Each step sleeps for about 100 ms, as in demo/train.py: a machine with two
cores pauses a rank for 10 ms now and then, which must stay below what the alerts warn of.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from demo.train import FEATURES, Batches, Block, TimedSGD
from devstack.process import StackProcess, wait_for

JOB_ID: Final = "faults"
RANKS: Final = 4
GENERATION: Final = "generation"
END_SECONDS: Final = 30.0
STEP_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.02
# Longer than any collective here; only this detects a peer that died while the group formed.
TIMEOUT: Final = timedelta(seconds=3)


class Job:
    """RANKS ranks, each a process that reports to *exporter*; a context manager."""

    def __init__(self, directory: Path, exporter: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
        )
        self._store.set(GENERATION, "0")
        command = [sys.executable, "-m", "rank_probe", __file__, str(directory)]
        command.append(f"127.0.0.1:{self._store.port}")
        common = {
            "WORLD_SIZE": str(RANKS),
            "RANKSKEW_EXPORTER": exporter,
            "RANKSKEW_JOB_ID": JOB_ID,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self.ranks = []
        for rank in range(RANKS):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            log = directory / f"rank{rank}.log"
            self.ranks.append(StackProcess(f"rank {rank}", command, log, common | own))

    def counted(self) -> list[tuple[int, int]]:
        """Return rank and steps of each process that has trained, the last of a rank last."""
        files = sorted(self._directory.glob("*.steps"), key=lambda path: path.stat().st_mtime)
        found = [(int(path.stem.partition("-")[0]), path.stat().st_size) for path in files]
        return [(rank, steps) for rank, steps in found if steps]

    def end(self) -> None:
        """Stop the ranks; raises StackError if one does not exit cleanly."""
        (self._directory / "stop").touch()
        for rank in self.ranks:
            code = wait_for(lambda rank=rank: rank.exit_code, END_SECONDS)  # type: ignore[misc]
            if code != 0:
                raise rank.failure(f"ended with {code}")

    def __enter__(self) -> "Job":
        for rank in self.ranks:
            rank.start()
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.stop()


# ---- One rank ------------------------------------------------------------------------------------


def meet(store: Store, stop: Path, rank: int) -> int | None:
    """Wait until every rank is ready for one generation; None if it is time to stop."""
    mine = -1
    while not stop.exists():
        generation = int(store.get(GENERATION))
        if generation != mine:
            if store.check([f"ready/{generation}/{rank}"]):  # This rank's previous process was.
                advance(store, generation)
                continue
            store.set(f"ready/{generation}/{rank}", "")
            mine = generation
        if store.check([f"ready/{generation}/{each}" for each in range(RANKS)]):
            return generation
        time.sleep(POLL_SECONDS)
    return None


def advance(store: Store, generation: int) -> None:
    """End *generation*, if nobody else has."""
    store.compare_set(GENERATION, str(generation), str(generation + 1))


def train(stop: Path, step_ended: Callable[[], object]) -> None:
    """Run the loop until told to stop; raises RuntimeError when a peer is gone."""
    part = STEP_SECONDS / 10
    blocks = [Block(time.sleep, part, 2 * part, False) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(FEATURES, 1)))
    optimizer = TimedSGD(model.parameters(), time.sleep, part)
    batches = Batches(1 << 30, time.sleep, 2 * part)
    for inputs, targets in DataLoader(batches, batch_size=None, shuffle=False):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        step_ended()
        if stop.exists():
            return


def main() -> None:
    """Train in one group after the other until told to stop."""
    directory, address = Path(sys.argv[1]), sys.argv[2]
    stop, rank = directory / "stop", int(os.environ["RANK"])
    torch.set_num_threads(1)
    host, _, port = address.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)
    # One byte per step, unbuffered, so that it outlives the process.
    own_steps = (directory / f"{rank}-{os.getpid()}.steps").open("wb", buffering=0)
    while (generation := meet(store, stop, rank)) is not None:
        own = PrefixStore(f"group{generation}", store)
        try:
            dist.init_process_group("gloo", store=own, rank=rank, world_size=RANKS, timeout=TIMEOUT)
            train(stop, lambda: own_steps.write(b"."))
        except RuntimeError as error:  # torch's, if a peer has closed its connection.
            print(f"rank {rank} leaves generation {generation}: {str(error)[:150]}", flush=True)
        finally:
            advance(store, generation)
            if dist.is_initialized():
                dist.destroy_process_group()


if __name__ == "__main__":
    main()
