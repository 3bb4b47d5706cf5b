"""Tests of the h2d stage, with the device `meta` as the accelerator."""

import importlib
from typing import Any

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.torch_hooks import copies
from rank_probe.wire.stages import H2D, OTHER, SYNC
from tests.rank_probe.fake_time import elsewhere
from tests.rank_probe.torch_hooks.recorded import marks, recorded

META = torch.device("meta")
ROWS = torch.ones(2)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("accelerate.data_loader", "send_to_device"),
        ("lightning.fabric.wrappers", "move_data_to_device"),
        ("lightning.pytorch.strategies.strategy", "move_data_to_device"),
    ],
)
@pytest.mark.parametrize("by_name", [True, False])
def test_frameworks_that_move_a_batch_are_h2d(module: str, name: str, by_name: bool) -> None:
    """What they call on a batch is timed; to the CPU it is not."""
    move_in = importlib.import_module(module)
    original = getattr(move_in, name)
    timeline = recorded(automatic=True)
    patches = copies.attach(timeline, {"meta"})
    move = getattr(move_in, name)
    moved = move([ROWS], device=META) if by_name else move([ROWS], META)
    move([ROWS], torch.device("cpu"))
    patches.undo()

    assert moved[0].is_meta
    assert marks(timeline) == [H2D, OTHER]
    assert getattr(move_in, name) is original


@pytest.mark.parametrize("device", ["meta", "meta:0", META])
def test_batches_of_a_tokenizer_are_h2d(device: Any) -> None:
    """BatchEncoding.to moves every tensor in it, as one copy."""
    transformers = importlib.import_module("transformers.tokenization_utils_base")
    timeline = recorded(automatic=True)
    patches = copies.attach(timeline, {"meta"})
    batch = transformers.BatchEncoding({"input_ids": ROWS, "attention_mask": ROWS}).to(device)
    patches.undo()

    assert batch["input_ids"].is_meta
    assert marks(timeline) == [H2D, OTHER]


def test_number_is_an_accelerators() -> None:
    """Of which kind torch does not know before it asks the driver; here it finds none."""
    accelerate = importlib.import_module("accelerate.data_loader")
    timeline, before = recorded(automatic=True), failures.count
    patches = copies.attach(timeline)
    with pytest.raises(RuntimeError):
        accelerate.send_to_device([ROWS], 0)
    patches.undo()

    assert marks(timeline) == [H2D, OTHER]
    assert failures.count == before


def test_waits_and_other_threads_are_not_h2d() -> None:
    """What a collective copies for itself is part of it; a thread that copies ahead is not ours."""
    accelerate = importlib.import_module("accelerate.data_loader")
    timeline = recorded(automatic=True)
    patches = copies.attach(timeline, {"meta"})
    timeline.tape.note(events.WAIT)
    accelerate.send_to_device([ROWS], META)
    timeline.tape.note(events.WAITED)
    elsewhere(lambda: accelerate.send_to_device([ROWS], META))
    patches.undo()

    assert marks(timeline) == [SYNC, OTHER]
