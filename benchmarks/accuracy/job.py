"""One rank of the accuracy benchmark: trains segment after segment, each as its own job.

    torchrun --nproc-per-node 4 -m benchmarks.accuracy.job PLAN.json DIRECTORY

The probe writes the steps to RANK_PROBE_TRACE. The rank's real delays go to DIRECTORY/RANK.json, in
seconds by job_id and step. A late rank prints when its delay begins.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import rank_probe
from benchmarks.accuracy import load
from benchmarks.accuracy.plan import CHECKPOINT, GARBAGE, LOAD, NICENESS, SHARES, Segment
from demo.train import BATCH, FEATURES, Work, matrix_work

# A healthy rank's own time in a step, emulated by sleeping.
STEP_SECONDS = 0.05
WARM_UP = "warm-up"
WARM_UP_SEGMENT = Segment("", 1, 0, "none", 0.0, 0, 30)


class Pace:
    """Spends the time for each place in a step, and records which part was a delay."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.work: Work = sleep
        self.step_seconds = STEP_SECONDS  # of a whole healthy step, waiting included
        self.delayed: dict[int, float] = {}
        self.begin(Segment("", 1, 0, "none"))

    def begin(self, segment: Segment) -> None:
        """Continue with the first step of *segment*."""
        self._segment = segment
        self.delayed = {}
        self._step = -1

    def next_step(self) -> None:
        """Continue with the next step; called when a step's batch is requested."""
        self._step += 1
        noise = self._segment.noise(self._rank, self._step)
        factors = zip(SHARES.items(), noise, self._segment.paces(self._rank), strict=True)
        self._usual = {place: share * STEP_SECONDS * n * own for (place, share), n, own in factors}
        self._delay = self._segment.delay(self._rank, self._step)

    def spend(self, place: str) -> None:
        """Spend the time for *place* in this step."""
        self.work(self._usual.get(place, 0.0))
        if self._delay is not None and self.is_due(place):
            if not self.delayed:
                print(f"{self._segment.key} delayed from {time.time():.3f}", flush=True)
            started = time.perf_counter()
            self.work(self._delay[1] * self.step_seconds)
            self.delayed[self._step] = time.perf_counter() - started

    def is_due(self, place: str) -> bool:
        """Whether a delay in *place* is due in this step."""
        return self._delay is not None and self._delay[0] == place

    def at_collection(self, phase: str, _info: dict[str, int]) -> None:
        """Simulate a collection of millions of objects: one of gc's callbacks."""
        if phase == "start" and self.is_due(GARBAGE):
            self.spend(GARBAGE)


class Matrices:
    """Work as matrix products: as many as should take the given time, by a calibrated estimate."""

    def __init__(self) -> None:
        self._matrix = torch.rand(128, 128) / 128
        self._seconds_each = 1.0
        self._asked = self._spent = 0.0
        for _ in range(3):  # The first call is slow, and its estimate rough.
            self(200 * self._seconds_each)
            self.calibrate()

    def __call__(self, seconds: float) -> None:
        """Multiply for *seconds* of an idle core."""
        started = time.perf_counter()
        for _ in range(round(seconds / self._seconds_each)):
            torch.mm(self._matrix, self._matrix)
        self._asked += seconds
        self._spent += time.perf_counter() - started

    def calibrate(self) -> None:
        """Adjust the estimate to the calls since the last time; they must be undisturbed ones."""
        self._seconds_each *= self._spent / self._asked
        self._asked = self._spent = 0.0


class Busy(torch.autograd.Function):
    """Pass a tensor on, and spend the time of forward, and of backward on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace) -> Tensor:
        ctx.pace = pace
        pace.spend("forward")
        if pace.is_due(GARBAGE):
            gc.collect()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.pace.spend("backward")
        return gradients[0], None


class Block(nn.Module):
    """One layer, and all of a step's compute."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)
        self._pace = pace

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(Busy.apply(self.linear(x), self._pace))  # type: ignore[no-untyped-call]


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """Batches, each of which takes the time of `data`."""

    def __init__(self, count: int, pace: Pace) -> None:
        self._count, self._pace = count, pace

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= self._count:
            raise IndexError(index)
        self._pace.next_step()
        self._pace.spend("data")
        inputs = torch.randn(BATCH, FEATURES)
        return inputs, inputs.mean(dim=1, keepdim=True)


class Optimizer(torch.optim.SGD):
    """SGD that takes the time of `optimizer`, inside torch's own step hooks."""

    def __init__(self, parameters: Any, pace: Pace) -> None:
        super().__init__(parameters, lr=0.01)
        self._pace = pace

    def step(self, closure: Any = None) -> Any:
        self._pace.spend("optimizer")
        return super().step(closure)


class SlowFile:
    """A file on a slow disk that nobody reads."""

    def __init__(self, pace: Pace) -> None:
        self._pace: Pace | None = pace

    def write(self, data: Any) -> int:
        """Discard *data*; the first write takes the time of a checkpoint."""
        if self._pace is not None:
            self._pace.spend(CHECKPOINT)
        self._pace = None
        return len(data)

    def flush(self) -> None:
        """Do nothing."""


def ddp(pace: Pace) -> nn.Module:
    """DistributedDataParallel."""
    return DistributedDataParallel(nn.Sequential(Block(pace), nn.Linear(FEATURES, 1)))


def fsdp2(pace: Pace) -> nn.Module:
    """fully_shard on the block and on the whole."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = nn.Sequential(Block(pace), nn.Linear(FEATURES, 1))
    for module in (model[0], model):
        fully_shard(module, mesh=mesh)
    return model


WAYS: dict[str, Callable[[Pace], nn.Module]] = {"ddp": ddp, "fsdp2": fsdp2}


def train(model: nn.Module, segment: Segment, pace: Pace, job_id: str) -> float:
    """Train *segment* as *job_id*, without probe calls in the loop; return its seconds."""
    pace.begin(segment)
    optimizer = Optimizer(model.parameters(), pace)
    loader = DataLoader(Batches(segment.steps, pace), batch_size=None)
    dist.barrier()
    # The probe's own gc callback comes after ours, but its counts are not used here.
    rank_probe.start(automatic=True, job_id=job_id)
    hogged = segment.fault == "hog" and dist.get_rank() == 0
    hog = None
    started = time.perf_counter()
    for step, (inputs, targets) in enumerate(loader):
        if hogged and step == segment.healthy_steps:
            hog = start_hog(segment)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if pace.is_due(CHECKPOINT):
            torch.save({"weight": torch.zeros(1)}, SlowFile(pace))  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    rank_probe.finish()
    if hog is not None:
        hog.kill()
        hog.wait()
    dist.barrier()
    return seconds


def start_hog(segment: Segment) -> subprocess.Popen[bytes]:
    """Start a process that competes for rank 0's core, at the niceness for the segment's size."""
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(hog.pid, os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, hog.pid, NICENESS[segment.size])
    return hog


@contextmanager
def pinned() -> Iterator[None]:
    """Keep rank 0 alone on the first core and the others off it, while the block runs."""
    cores = os.sched_getaffinity(0)
    first = {min(cores)}
    os.sched_setaffinity(0, first if dist.get_rank() == 0 else (cores - first or first))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def main() -> None:
    """Train all segments of a plan."""
    plan, folder = Path(sys.argv[1]), Path(sys.argv[2])
    segments = [Segment(**each) for each in json.loads(plan.read_text())]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gc.disable()  # Each collection here is simulated, and has nothing to collect.
    pace = Pace(dist.get_rank())
    gc.callbacks.append(pace.at_collection)
    model = WAYS[segments[0].way](pace)
    _calibrate(model, pace)
    gc.freeze()
    delayed = {}
    for segment in segments:
        pace.work = sleep
        if segment.fault == "hog":
            _train_beside_a_hog(model, segment, pace)
        else:
            if segment.fault == "compute":
                pace.work = matrix_work()
            with ExitStack() as stack:
                if segment.fault == LOAD and dist.get_rank() == 0:
                    stack.enter_context(load.beside(segment.seed))
                train(model, segment, pace, segment.key)
        delayed[segment.key] = pace.delayed
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(delayed))
    dist.destroy_process_group()


def _train_beside_a_hog(model: nn.Module, segment: Segment, pace: Pace) -> None:
    """Train beside a hog; only rank 0 multiplies, because ranks must not compete for cores."""
    with pinned():
        if dist.get_rank() == 0:
            pace.work = work = Matrices()
        train(model, WARM_UP_SEGMENT, pace, WARM_UP)
        if dist.get_rank() == 0:
            work.calibrate()
        train(model, segment, pace, segment.key)


def _calibrate(model: nn.Module, pace: Pace) -> None:
    """Measure a whole healthy step: sizes are fractions of it."""
    train(model, WARM_UP_SEGMENT, pace, WARM_UP)
    seconds = torch.tensor([train(model, WARM_UP_SEGMENT, pace, WARM_UP) / WARM_UP_SEGMENT.steps])
    dist.broadcast(seconds, src=0)
    pace.step_seconds = seconds.item()


if __name__ == "__main__":
    main()
