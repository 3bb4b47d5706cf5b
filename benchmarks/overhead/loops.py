"""The loops of the benchmark: the plain one, batches of text, two DDP ranks, a GPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu_check.training import cycles_per_ms
from benchmarks.overhead import arms
from benchmarks.overhead.arms import LABELS, ROWS, WIDTH, Arm, Batches, Training

WORDS, VOCABULARY = 8, 256
RANKS = 2
BUSY_MS = 100.0

ARMS: dict[str, Arm] = {
    "bare, again": arms.bare,
    "probe, automatic": arms.automatic,
    "probe, manual": arms.manual,
    "Prometheus histograms by hand": arms.histograms,
    "torch.profiler": arms.torch_profiler,
}
PROBE: dict[str, Arm] = {"probe, automatic": arms.automatic}
CUTS = PROBE | {"probe, automatic, backward cut at its root": arms.automatic_at_root}


class TextNetwork(nn.Module):
    """A model that is called like those of Hugging Face: it takes a batch and returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, LABELS))
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of the mean of each text's words."""
        mask = attention_mask.unsqueeze(2)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        loss: torch.Tensor = self.loss(self.layers(mean), labels)
        return loss


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Ready batches of padded texts: the probe counts their samples, tokens and padding."""

    def __init__(self, steps: int) -> None:
        lengths = torch.randint(1, WORDS, (steps, ROWS, 1))
        self._words = torch.randint(VOCABULARY, (steps, ROWS, WORDS))
        self._masks = (torch.arange(WORDS) < lengths).long()
        self._labels = torch.randint(LABELS, (steps, ROWS))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self._words[index],
            "attention_mask": self._masks[index],
            "labels": self._labels[index],
        }


def texts(steps: int) -> Batches:
    """Return a loader of *steps* batches of texts."""
    return DataLoader(Texts(steps), batch_size=None)


@dataclass
class TextTraining(Training):
    """The loop on batches of text."""

    model: nn.Module = field(default_factory=TextNetwork)

    def run(self, loader: Batches) -> None:
        """Train as usual; nothing in here knows of a tool."""
        for batch in loader:
            self.optimizer.zero_grad()
            self.model(**batch).backward()
            self.optimizer.step()


def training_with_peers() -> Training:
    """Return the plain loop in a process group of two ranks, the other of which does not exist.

    The probe then cuts each backward, and no other rank adds noise.
    """
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    return Training()


def rank_training() -> Training:
    """Return the plain loop under DistributedDataParallel; needs a process group."""
    return Training(model=DistributedDataParallel(arms.network()))


def gpu_training() -> Training:
    """Return the plain loop on a GPU, which waits for the host: each kernel takes microseconds."""
    return Training(model=arms.network().to("cuda"))


class BusyTraining(Training):
    """The loop on a GPU that has BUSY_MS of work a step: the host runs ahead of it."""

    def __init__(self) -> None:
        super().__init__(model=arms.network().to("cuda"))
        self._cycles = int(BUSY_MS * cycles_per_ms())

    def run(self, loader: Batches) -> None:
        """Train as usual, and wait for the GPU at the end of the block only."""
        for rows, labels in loader:
            self.optimizer.zero_grad()
            loss = self.loss(self.model(rows), labels)
            torch.cuda._sleep(self._cycles)
            loss.backward()
            self.optimizer.step()
        torch.cuda.synchronize()


def gpu_batches(steps: int) -> Batches:
    """Return a loader of *steps* batches that are on the GPU already."""
    return arms.batches(steps, device="cuda")


@dataclass(frozen=True)
class Loop:
    """A loop, and the arms that can be measured on it.

    *name* is appended to the names of its arms. *get_ready* is called before each timed block to
    wait for the other ranks or for the GPU. A loop of several *ranks* runs in as many processes.
    """

    name: str
    training: Callable[[], Training]
    batches: Callable[[int], Batches]
    arms: Mapping[str, Arm]
    get_ready: Callable[[], object] = lambda: None
    ranks: int = 1


PLAIN = Loop("", Training, arms.batches, ARMS)
TEXT = Loop(", dict batches", TextTraining, texts, PROBE)
PEERS = Loop(", with peers", training_with_peers, arms.batches, CUTS)
DDP = Loop(", DDP", rank_training, arms.batches, PROBE, dist.barrier, RANKS)
CUDA = Loop(", CUDA", gpu_training, gpu_batches, PROBE, torch.cuda.synchronize)
BUSY = Loop(f", CUDA, {BUSY_MS:g} ms of work", BusyTraining, gpu_batches, PROBE)
LOOPS = {"plain": PLAIN, "dict": TEXT, "peers": PEERS, "DDP": DDP, "CUDA": CUDA, "busy CUDA": BUSY}
