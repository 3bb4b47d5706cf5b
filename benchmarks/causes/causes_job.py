"""A small training in which one rank is late for a real cause.

    torchrun --nproc-per-node 4 -m rank_probe causes_job.py CAUSE FOLDER --steps 900

CAUSE is one of CAUSES. A step takes about 100 ms. Ranks sleep to emulate a device, and compute on
their CPUs if the cause needs that. The late rank becomes late after HEALTHY_STEPS steps. It then
writes its process ID to the file FOLDER/late, and faults that come from outside begin.
"""

import argparse
import gc
import logging
import mmap
import os
import threading
import time
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

import rank_probe

CAUSES = (
    "none",
    "hog",  # other processes want its CPU all the time
    "quota",  # its cgroup may use a seventh of a CPU
    "disk",  # it reads its samples from a throttled disk
    "network",  # it fetches its samples over a slow link
    "workers",  # its loader's workers are too slow
    "tokens",  # its batches have 1.5 times as many tokens
    "gc",  # it collects garbage for a long time
    "checkpoint",  # it writes checkpoints to a slow file system
    "line",  # it logs to a slow file system in each step
    "sleep",  # it sleeps for each sample, as a client that has to retry later
    "lock",  # another of its threads holds the lock of its sample cache
    "slow_worker",  # one of its loader's two workers sleeps
    "slow_mount",  # it reads its samples from a slow file system
    "decode",  # its samples are large, and decoded on its CPU
)
LATE_RANK = 2
HEALTHY_STEPS = 150
LATE_FILE, SAMPLES_FILE = "late", "samples"
# Where each rank that computes on its CPU writes one line per step: the time, the seconds that it
# worked, and how many of those it waited for a CPU.
DIARY_FILE = "steps-"
DATA, FORWARD, BACKWARD, OPTIMIZER = 0.015, 0.04, 0.03, 0.01
STEP = DATA + FORWARD + BACKWARD + OPTIMIZER
DELAY = 0.05
FEATURES = 8
TOKENS = 4096
MORE_TOKENS = 1.5
RANKS = 4
# CPU share of a device's time. Ranks take turns, so that three can share a CPU without waiting.
CPU_SHARE = 1 / RANKS
BLOCK_BYTES = 1 << 20
GC_EVERY, CHECKPOINT_EVERY = 4, 10
MOST_CYCLES = 2_000_000
# How many workers the late rank's loader has, by cause.
WORKERS = {"workers": 1, "slow_worker": 2}
READ_BYTES = 1 << 14
ENCODED = zlib.compress(os.urandom(1 << 12) * 64)

log = logging.getLogger("training")


def spin(seconds: float) -> None:
    """Compute until this thread has had a CPU for *seconds*."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def seconds_queued() -> float:
    """Return for how long this thread has wanted a CPU and had none."""
    return 1e-9 * int(Path("/proc/thread-self/schedstat").read_text().split()[1])


class Fault:
    """What is wrong with this rank, by *cause*, from step HEALTHY_STEPS on."""

    def __init__(self, cause: str, folder: Path) -> None:
        self.folder = folder
        self.cause = cause if int(os.environ["RANK"]) == LATE_RANK else "none"
        # On all ranks: otherwise the late one would have more work.
        self._needs_cpu = cause in ("hog", "quota")
        self.step = 0
        self._cycles: list[Any] = []
        self._worked = self._waited = 0.0
        self._diary = (folder / f"{DIARY_FILE}{os.environ['RANK']}").open("w", buffering=1)

    def has(self, cause: str, step: int | None = None) -> bool:
        """Return whether the fault is *cause* and has begun by *step*, by default the current."""
        return self.cause == cause and (self.step if step is None else step) >= HEALTHY_STEPS

    def next_step(self) -> None:
        """Count a step; the late rank says when it becomes late."""
        self.step += 1
        print(time.monotonic(), self._worked, self._waited, file=self._diary)
        self._worked = self._waited = 0.0
        if int(os.environ["RANK"]) == LATE_RANK and self.step == HEALTHY_STEPS:
            partial = self.folder / f"{LATE_FILE}.partial"
            partial.write_text(str(os.getpid()))
            partial.rename(self.folder / LATE_FILE)

    def compute(self, seconds: float) -> None:
        """Emulate *seconds* of device time, partly on the CPU if the fault takes CPU time away."""
        seconds *= MORE_TOKENS if self.has("tokens") else 1.0
        if not self._needs_cpu:
            time.sleep(seconds)
            return
        began, queued = time.perf_counter(), seconds_queued()
        before = CPU_SHARE * seconds * int(os.environ["RANK"])
        time.sleep(before)
        spin(CPU_SHARE * seconds)
        time.sleep((1 - CPU_SHARE) * seconds - before)
        self._worked += time.perf_counter() - began
        self._waited += seconds_queued() - queued

    def collect_garbage(self) -> None:
        """Collect again and again, as with a cache of small objects that grows."""
        until = time.perf_counter() + DELAY * GC_EVERY
        while time.perf_counter() < until:
            self._cycles += ([] for _ in range(50_000))
            gc.collect()
            if len(self._cycles) > MOST_CYCLES:
                self._cycles.clear()


class Corpus(Dataset[Tensor]):
    """Samples, which the late rank reads from a disk or a server."""

    def __init__(self, fault: Fault, url: str) -> None:
        self._fault = fault
        self._url = url
        self._cache = threading.Lock()
        if fault.cause == "lock":
            threading.Thread(target=self._keep_cache, daemon=True).start()

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(DATA)
        if self._fault.has("disk", index):
            read_directly(self._fault.folder / SAMPLES_FILE, index)
        if self._fault.has("network", index):
            with urllib.request.urlopen(self._url, timeout=60) as response:
                response.read()
        if self._fault.has("workers", index):
            spin(STEP + DELAY)
        if self._fault.has("slow_worker", index) and is_second_worker():
            time.sleep(2 * (STEP + DELAY))
        if self._fault.has("sleep", index):
            time.sleep(DELAY)
        if self._fault.has("lock", index):
            self._cache.acquire()
            self._cache.release()
        if self._fault.has("slow_mount", index):
            read(self._fault.folder / SAMPLES_FILE)
        if self._fault.has("decode", index):
            decode(DELAY)
        return torch.randn(FEATURES)

    def _keep_cache(self) -> None:
        """Hold the lock nearly always, for longer than the rest of a step takes."""
        while True:
            with self._cache:
                time.sleep(STEP + DELAY)
            time.sleep(0.002)


def is_second_worker() -> bool:
    """Return whether this process is the second worker of a loader."""
    worker = get_worker_info()
    return worker is not None and worker.id == 1


def read(path: Path) -> None:
    """Read a sample from the file at *path*."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.pread(handle, READ_BYTES, 0)
    finally:
        os.close(handle)


def decode(seconds: float) -> None:
    """Decompress for *seconds* of CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        torch.frombuffer(bytearray(zlib.decompress(ENCODED)), dtype=torch.uint8).float().mean()


def read_directly(path: Path, index: int) -> None:
    """Read a block of the file at *path* from its disk, not from the page cache."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        blocks = os.fstat(handle).st_size // BLOCK_BYTES
        with mmap.mmap(-1, BLOCK_BYTES) as aligned:
            os.preadv(handle, [aligned], index % blocks * BLOCK_BYTES)
    finally:
        os.close(handle)


class Device(torch.autograd.Function):
    """Pass a tensor on, and take a while on the way forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: Fault) -> Tensor:
        ctx.fault = fault
        fault.compute(FORWARD)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.fault.compute(BACKWARD)
        return gradients[0], None


class Model(nn.Module):
    """One layer."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)
        self._fault = fault

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        y: Tensor = Device.apply(self.layer(x), self._fault)  # type: ignore[no-untyped-call]
        return y


class SlowFile:
    """A file on a slow file system."""

    def write(self, data: bytes) -> int:
        """Take a while, once for each checkpoint."""
        return len(data)

    def flush(self) -> None:
        """Take a while."""
        time.sleep(DELAY * CHECKPOINT_EVERY)


class SlowLog(logging.Handler):
    """A log on a slow file system."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a while."""
        time.sleep(DELAY)


def train(fault: Fault, steps: int, url: str) -> None:
    """Train for that many steps."""
    model = DistributedDataParallel(Model(fault))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    workers = WORKERS.get(fault.cause, 0)
    batches = DataLoader(Corpus(fault, url), 1, num_workers=workers)
    for _, batch in zip(range(steps), batches, strict=False):
        fault.next_step()
        rank_probe.count(tokens=round(TOKENS * (MORE_TOKENS if fault.has("tokens") else 1)))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(OPTIMIZER)
        if fault.has("gc") and fault.step % GC_EVERY == 0:
            fault.collect_garbage()
        if fault.step % CHECKPOINT_EVERY == 0 and fault.has("checkpoint"):
            torch.save({"weight": torch.zeros(1)}, SlowFile())  # type: ignore[arg-type]
        if fault.has("line"):
            log.warning("step %d", fault.step)


def main() -> None:
    """Join the process group, train, leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cause", choices=CAUSES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--url", default="", help="where samples are to be had")
    options = parser.parse_args()
    log.propagate = False
    log.addHandler(SlowLog())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(Fault(options.cause, options.folder), options.steps, options.url)
    rank_probe.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
