"""What test_children's jobs run: a script that starts its ranks, or helpers, itself."""

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed import init_process_group  # by name, as in many scripts
from torch.utils.data import DataLoader, Dataset

import rank_probe as probe
from rank_probe import api

STEPS = 3
RANKS = 2


class Rows(Dataset[torch.Tensor]):
    """Batches of which a worker process makes each row."""

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2)


def train(loader: Any) -> None:
    """Train for a few steps, alone or with the process group's other ranks."""
    model: torch.nn.Module = torch.nn.Linear(2, 1)
    if torch.distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def rank(index: int, folder: str, started: str, end: str) -> None:
    """Be one of two ranks; rank 1 ends as *end* says."""
    if started == "target":
        probe.start(automatic=True, job_id="by-hand")
    init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=RANKS)
    train(DataLoader(Rows(), batch_size=2))
    torch.distributed.destroy_process_group()
    if index == 1 and end == "raise":
        raise RuntimeError("theirs")
    if index == 1 and end:
        sys.exit(int(end))


def start_ranks(by: str, *arguments: str) -> list[int | None]:
    """Start two ranks and wait; return their exit codes."""
    if by == "torch":
        start: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]  # public
        method = multiprocessing.get_start_method()
        processes = start(rank, arguments, RANKS, join=False, start_method=method).processes
    else:
        of_rank = [(index, *arguments) for index in range(RANKS)]
        processes = [multiprocessing.Process(target=rank, args=each) for each in of_rank]
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def is_timed(_: int) -> bool:
    """Return whether the probe runs in this process, whatever is called; it imports torch."""
    with probe.stage("forward"):
        probe.step()
    return api.running()


def use_pool() -> None:
    """Ask a process that does not train."""
    with multiprocessing.Pool(1) as pool:
        print("pool", pool.map(is_timed, range(2)))


def use_helpers() -> None:
    """Train with workers, and ask processes that do not train."""
    train(DataLoader(Rows(), batch_size=2, num_workers=1))
    with ProcessPoolExecutor(1) as executor:
        print("executor", list(executor.map(is_timed, range(2))))
    with multiprocessing.Manager() as manager:
        print("manager", list(manager.list([1, 2])))


def fit_with_lightning() -> None:
    """Leave the other rank to Lightning, which runs this script again for it."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    from tests.rank_probe.launch import leave

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    runs: Any = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_steps": STEPS}
    trainer = Trainer(**runs, limit_val_batches=0, **dict.fromkeys(off, False))
    trainer.fit(BoringModel())
    leave()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="")
    parser.add_argument("--method", default="fork")
    parser.add_argument("--by", default="", choices=["", "process", "torch"])
    parser.add_argument("--started", default="", choices=["", "parent", "target", "top"])
    parser.add_argument("--end", default="")
    parser.add_argument("--trains", action="store_true")
    parser.add_argument("--lightning", action="store_true")
    chosen = parser.parse_args()
    if chosen.lightning:
        fit_with_lightning()
    if chosen.started == "parent":
        probe.start(automatic=True)
    multiprocessing.set_start_method(chosen.method)
    if chosen.method == "forkserver":  # "__main__" is the default; torch is imported once.
        multiprocessing.set_forkserver_preload(["__main__", "torch._dynamo"])
    if chosen.by:
        print(start_ranks(chosen.by, chosen.folder, chosen.started, chosen.end))
    use_pool()
    if chosen.trains:
        use_helpers()
    print("done", os.getpid())


if "top" in sys.argv:
    # As in many scripts: without a guard, so spawn's and forkserver's children call it as well.
    probe.start(automatic=True)

if __name__ == "__main__":
    main()
