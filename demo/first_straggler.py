"""A small training on four ranks. One of them is late, and the reason is a line below.

torchrun --nproc-per-node 4 -m rank_probe demo/first_straggler.py
"""

import os
import random
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "100000"))
TOKENS = 64  # of a text, as many as the model takes
WORDS = [f"word{number}" for number in range(1000)]
NUMBERS = {word: number for number, word in enumerate(WORDS)}


class Texts(Dataset[Tensor]):
    """This rank's share of the texts. Most are short; the share of rank 2 is books."""

    def __init__(self, rank: int) -> None:
        words = 60_000 if rank == 2 else 100
        draw = random.Random(rank)
        self.texts = [" ".join(draw.choices(WORDS, k=words)) for _ in range(20)]

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        text = self.texts[index % len(self.texts)]
        tokens = tokenize(text)[:TOKENS]
        return torch.tensor(tokens)


def tokenize(text: str) -> list[int]:
    """Return the number of each word, 0 for one that is unknown."""
    return [NUMBERS.get(word, 0) for word in text.split()]


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = nn.Sequential(nn.EmbeddingBag(len(WORDS), 64), nn.Linear(64, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for tokens in DataLoader(Texts(dist.get_rank()), batch_size=1):
        loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)  # in place of a larger model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
