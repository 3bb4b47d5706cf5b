"""What the workers of a real loader do is told from outside, for work that the test knows."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from exporter.processes.worker_states import LateRankProcess, WorkerStates
from tests.exporter.running import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

LOADER = "Corpus.__getitem__ (corpus.py:30)"
# A rank whose loader has two workers; what they do is in the first argument.
PROGRAM = """
import sys, time, threading
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Corpus(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        exec(sys.argv[1])
        return 0

def train():
    batches = iter(DataLoader(Corpus(), 1, num_workers=2, multiprocessing_context="fork"))
    next(batches)
    print(flush=True)
    for _ in batches:
        pass

train()
"""


def first_of(found: WorkerStates) -> str:
    """Return in what the busiest worker spends most of its time."""
    return next((each.state for each in found.of("llama", 3) if each.share > 0.2), "")


@pytest.mark.parametrize(
    ("work", "states"),
    [
        # One of two: the loop waits for it all the same.
        ("time.sleep(0.1 * get_worker_info().id)", {"sleep"}),
        # How long it waits for a CPU is up to what else runs on this machine.
        ("sum(range(1_000_000 * get_worker_info().id))", {"running", "cpu_queue"}),
        ("lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=0.05)", {"lock"}),
    ],
)
def test_busiest_worker_is_told_with_what_it_runs(work: str, states: set[str]) -> None:
    """By its state and its id, so that somebody can look at it."""
    rank = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, work], stdout=subprocess.PIPE
    )
    found = WorkerStates(Path("/proc"))
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        found.follow([LateRankProcess("llama", 3, rank.pid, LOADER)])
        found.start()
        wait_until(lambda: first_of(found) in states)
        slow, workers = found.pid("llama", 3), psutil.Process(rank.pid).children()
    finally:
        found.stop()
        rank.kill()
        rank.communicate()

    if "get_worker_info" in work:
        assert slow == max(worker.pid for worker in workers)  # It was started last.
