"""Trains with Ray Train on a cluster that this process starts; started by test_frameworks.py.

Arguments: a directory for all of Ray's files, then the names of the cases. The first case is a
separate run; the others share the workers of a second run. Rank 1 is late where the case's name
says.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

import ray
import ray.train.collective
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader

from demo.train import Batches, TimedSGD
from rank_probe.integrations.ray_train import with_probe
from tests.rank_probe.jobs.parallel_arms import network, planted
from tests.rank_probe.jobs.test_frameworks import EVERY, STEPS


def train_loop(config: dict[str, Any]) -> None:
    """Train a small model, slow where the case's name says."""
    case, context = config["case"], ray.train.get_context()
    if case == "raises":
        raise ArithmeticError("the user's own")
    place = "other" if case == "barrier" else case
    seconds = planted(place if context.get_world_rank() == 1 else "")
    model = prepare_model(network(seconds))
    optimizer = TimedSGD(model.parameters(), sleep, seconds["optimizer"])
    # The workers share the items.
    batches = Batches(STEPS * context.get_world_size(), sleep, seconds["data"])
    loader = prepare_data_loader(DataLoader(batches, batch_size=1))
    gc.freeze()  # Collecting Ray's imports takes 0.2 s, once, on an arbitrary rank.
    ray.train.collective.barrier()  # Otherwise the first step waits for the later rank.
    for step, (inputs, targets) in enumerate(loader, start=1):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        sleep(seconds["other"])
        if case == "barrier":
            ray.train.collective.barrier()
        elif step % EVERY == 0:
            report(model, seconds["checkpoint"])


def report(model: nn.Module, seconds: float) -> None:
    """Report this rank's part of a checkpoint, which takes *seconds* to upload."""

    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        sleep(seconds)
        storage = ray.train.get_context().get_storage()
        return storage.persist_current_checkpoint(checkpoint, name)

    with tempfile.TemporaryDirectory() as directory:
        rank = ray.train.get_context().get_world_rank()
        torch.save(model.state_dict(), Path(directory, f"{rank}.pt"))
        checkpoint = Checkpoint.from_directory(directory)
        ray.train.report({"rank": rank}, checkpoint=checkpoint, checkpoint_upload_fn=upload)


def train_loops(config: dict[str, Any]) -> None:
    """Train once for each case, as a job of its own."""
    for case in config["cases"]:
        os.environ["RANK_PROBE"] = "0" if case == "off" else "1"
        with suppress(ArithmeticError):
            with_probe(train_loop, job_id=case)({"case": case})


def fit(name: str, directory: str, loop: Callable[..., Any], config: dict[str, Any]) -> None:
    """Run *loop* on two workers."""
    TorchTrainer(
        loop,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(name=name, storage_path=directory),
    ).fit()


def main(directory: str, first: str, *others: str) -> None:
    """Start a cluster, train, and take it down again."""
    # How often Ray takes a report from each worker, 2 s by default; a second one waits for that.
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"
    names = ("RANKSKEW_EXPORTER", "OMP_NUM_THREADS")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80_000_000,  # the least that Ray takes is enough
        _temp_dir=directory,
        runtime_env={"env_vars": {name: os.environ[name] for name in names}},
    )
    try:
        storage = f"{directory}/storage"
        fit(first, storage, with_probe(train_loop), {"case": first})
        fit("others", storage, train_loops, {"cases": others})
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
