"""Tests of counting samples, tokens and padding."""

import subprocess
import sys
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure import work_units
from rank_probe.measure.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED
from rank_probe.measure.work_units import WorkUnits
from tests.rank_probe.fakes import elsewhere

COUNTS = """
import os
import numpy
import torch
from rank_probe.measure import work_units
torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
some = work_units.Masks()
for _ in range(work_units.MASKS_KEPT):
    some.add([torch.ones(32, 8, dtype=torch.long), 32, 256, None])
long = [torch.from_numpy(numpy.ones((64, 2048), dtype=int)), 64, 64 * 2048, None]
some.add(long)
some.count()
print(long[3], len(os.listdir("/proc/self/task")) - before)
"""
ROWS = torch.ones(4, 3)
WORDS = torch.ones(4, 5, dtype=torch.int64)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


def use(work: WorkUnits, *batches: Any) -> None:
    """Train with *batches*: they arrive, and then the events are folded."""
    for batch in batches:
        work.measure(batch)
    work.settle([USED | len(batches) << BATCHES_SHIFT])


class Batch(UserDict[str, Any]):
    """As transformers' BatchEncoding: a mapping that is no dict."""


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (ROWS, (4, None, None)),
        ((ROWS, torch.ones(4)), (4, None, None)),
        ([ROWS], (4, None, None)),
        (np.ones((4, 2)), (4, None, None)),
        ({"pixels": ROWS}, (4, None, None)),
        ({"note": "x", "pixels": ROWS}, (4, None, None)),
        ({"input_ids": WORDS}, (4, 20, None)),
        ({"labels": ROWS[:2], "input_ids": WORDS, "attention_mask": MASK}, (4, 20, 6)),
        (Batch({"input_ids": WORDS, "attention_mask": MASK.bool()}), (4, 20, 6)),
        ({"input_ids": WORDS, "attention_mask": MASK.to("meta")}, (4, 20, None)),
        ({"input_ids": WORDS, "attention_mask": torch.ones(4, 1, 5, 5)}, (4, 20, None)),
        (torch.tensor(1.0), (None, None, None)),
        ((), (None, None, None)),
        ({}, (None, None, None)),
        (None, (None, None, None)),
        (["a", "b"], (None, None, None)),
        (((ROWS, ROWS), ("cat", "dog")), (None, None, None)),
    ],
)
def test_batches_are_understood(batch: Any, expected: tuple[int | None, ...]) -> None:
    """Rows, tokens and padding of each usual kind; what a batch does not say stays None."""
    errors = failures.count
    work = WorkUnits()
    use(work, batch)

    assert work.totals() == expected
    assert failures.count == errors


@pytest.mark.parametrize(
    ("limit", "kept"), [("MASKS_KEPT", 3), ("ELEMENTS_KEPT", 3 * MASK.numel())]
)
def test_masks_do_not_pile_up(monkeypatch: pytest.MonkeyPatch, limit: str, kept: int) -> None:
    """Without a pusher the training thread counts the zeros itself, before memory matters."""
    monkeypatch.setattr(work_units, limit, kept)
    work = WorkUnits()
    for waiting in (1, 2, 3, 0, 1, 2, 3, 0, 1):  # Those that were counted make room.
        work.measure({"input_ids": WORDS, "attention_mask": MASK})
        assert len(work._masks._waiting) == waiting
    work.settle([USED | 9 << BATCHES_SHIFT])

    assert work.totals() == (36, 180, 54)


def test_batches_that_nobody_trained_with_do_not_count() -> None:
    """Neither those of an evaluation, nor what a loader inside a data set delivered."""
    work = WorkUnits()
    for batch in (ROWS, {"input_ids": WORDS, "attention_mask": MASK}, ROWS[:3]):
        work.measure(batch)
    work.settle([OTHER_BATCH | 1 << BATCHES_SHIFT])  # The second one, while the first still waits.
    work.settle([USED | 2 << BATCHES_SHIFT])
    work.measure(ROWS)
    work.settle([UNUSED | 1 << BATCHES_SHIFT])

    assert work.totals() == (4 + 3, None, None)
    assert not work._measured


def test_caller_may_add_from_any_thread() -> None:
    """Into the same counters as batches; one that nobody fed stays None."""
    work = WorkUnits()
    elsewhere(lambda: work.add(samples=3))
    assert work.totals() == (3, None, None)
    use(work, {"input_ids": WORDS, "attention_mask": MASK})
    work.add(samples=1, tokens=10, padding_tokens=2)

    assert work.totals() == (3 + 4 + 1, 20 + 10, 6 + 2)


def test_a_callable_says_what_a_batch_holds() -> None:
    """*measure* takes the place of looking at the batch; one that raises is counted only."""
    errors = failures.count
    work = WorkUnits(lambda batch: (len(batch), None, batch.count("-")))
    use(work, "ab--", ROWS)

    assert work.totals() == (4, None, 2)
    assert failures.count == errors + 1


def test_no_count_is_spread_over_threads() -> None:
    """Whoever counts would wait for them, and the pusher would have threads of its own."""
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True)

    assert done.stdout.split() == ["0", "0"], done.stderr
