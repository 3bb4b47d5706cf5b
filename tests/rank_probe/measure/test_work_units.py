"""Tests of counting samples, tokens and padding."""

import sys
import threading
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure import masks
from rank_probe.measure.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED
from rank_probe.measure.work_units import WorkUnits

ROWS = torch.ones(4, 3)
WORDS = torch.ones(4, 5, dtype=torch.int64)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


def use(work: WorkUnits, *batches: Any) -> None:
    """Train with *batches*: they arrive, and then the events are folded."""
    for batch in batches:
        work.measure(batch)
    work.settle(USED | len(batches) << BATCHES_SHIFT)


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


def test_counts_add_up() -> None:
    """Batches and what the caller adds go into the same counters."""
    work = WorkUnits()
    for _ in range(3):
        use(work, {"input_ids": WORDS, "attention_mask": MASK})
    work.add(samples=1, tokens=10, padding_tokens=2)

    assert work.totals() == (13, 70, 20)


def test_nothing_added_is_no_reading() -> None:
    """A counter that nobody fed stays None, also when another was."""
    work = WorkUnits()
    work.add(samples=3)

    assert work.totals() == (3, None, None)


def test_a_callable_says_what_a_batch_holds() -> None:
    """*measure* takes the place of looking at the batch."""
    work = WorkUnits(lambda batch: (len(batch), None, batch.count("-")))
    use(work, "ab--")

    assert work.totals() == (4, None, 2)


def test_a_callable_that_raises_does_not_reach_training() -> None:
    """The failure is counted instead."""
    errors = failures.count
    use(WorkUnits(lambda batch: batch.nonsense), ROWS)

    assert failures.count == errors + 1


def test_masks_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pusher the training thread counts the zeros itself, before memory matters."""
    monkeypatch.setattr(masks, "MASKS_KEPT", 3)
    work = WorkUnits()
    for _ in range(10):
        work.measure({"input_ids": WORDS, "attention_mask": MASK})
        assert len(work._masks._waiting) <= 3
    work.settle(USED | 10 << BATCHES_SHIFT)

    assert work.totals() == (40, 200, 60)


def test_masks_of_different_shapes_are_counted_together() -> None:
    """Dynamic padding makes batches of different lengths."""
    work = WorkUnits()
    use(
        work,
        *(
            {"input_ids": WORDS[:rows], "attention_mask": MASK[:rows]}
            for rows in (1, 2, 3, 4, 1, 2, 3, 4)
        ),
    )

    assert work.totals() == (20, 100, 2 * (0 + 2 + 6 + 6))


def test_large_masks_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is their size that matters."""
    monkeypatch.setattr(masks, "ELEMENTS_KEPT", 3 * MASK.numel())
    work = WorkUnits()
    for waiting in (1, 2, 3, 0, 1, 2, 3, 0, 1):  # Those that were counted make room.
        work.measure({"input_ids": WORDS, "attention_mask": MASK})
        assert len(work._masks._waiting) == waiting


def test_batches_that_nobody_trained_with_do_not_count() -> None:
    """Neither those of an evaluation, nor what a loader inside a data set delivered."""
    work = WorkUnits()
    for batch in (ROWS, {"input_ids": WORDS, "attention_mask": MASK}, ROWS[:3]):
        work.measure(batch)
    work.settle(OTHER_BATCH | 1 << BATCHES_SHIFT)  # The second one, while the first still waits.
    work.settle(USED | 2 << BATCHES_SHIFT)
    work.measure(ROWS)
    work.settle(UNUSED | 1 << BATCHES_SHIFT)

    assert work.totals() == (4 + 3, None, None)
    assert not work._measured


def test_large_masks_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is large enough for torch to spread it over threads, and none is lost."""
    monkeypatch.setattr(masks, "ELEMENTS_AT_ONCE", 7)
    work = WorkUnits()
    use(work, {"input_ids": WORDS, "attention_mask": MASK})

    assert work.totals() == (4, 20, 6)


def test_other_threads_may_add() -> None:
    """A thread that prepares batches knows what they hold."""
    work = WorkUnits()
    thread = threading.Thread(target=work.add, kwargs={"samples": 1})
    thread.start()
    thread.join()

    assert work.totals() == (1, None, None)


def test_reading_while_counting_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pusher may read at any moment."""
    monkeypatch.setattr(masks, "MASKS_KEPT", 5)
    work = WorkUnits()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            work.totals()
            work._masks.count()

    reader = threading.Thread(target=read)
    reader.start()
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # Else the reader keeps the interpreter for most of a minute.
    for _ in range(2_000):
        use(work, *[{"input_ids": WORDS, "attention_mask": MASK}] * 6)
    sys.setswitchinterval(switch_seconds)
    done.set()
    reader.join()

    assert work.totals() == (48_000, 240_000, 72_000)
