"""Tests that the overhead benchmark runs and that its figures can be true."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.optim import optimizer
from torch.utils.data import DataLoader

from benchmarks import overhead, overhead_arms, overhead_push, report
from benchmarks.overhead_blocks import ARMS, BARE, measure
from rank_probe import api


def test_every_arm_trains_and_is_timed() -> None:
    """Each arm that needs no package of its own has a figure for each block."""
    found = measure(ARMS, steps=30, blocks=4)

    assert list(found) == [BARE, *ARMS]
    assert all(len(costs) == 4 for costs in found.values())
    assert min(found[BARE]) > 10
    assert max(found["torch.profiler"]) > 0  # The others may have met pauses of the machine.


@pytest.mark.parametrize("name", ARMS)
def test_arm_leaves_torch_as_it_was(name: str) -> None:
    """After an arm nothing of its tool is in torch's loaders, backward or optimizers."""

    def hooks() -> list[object]:
        functions = [DataLoader.__iter__, torch.autograd.backward, torch.Tensor.backward]
        pre, post = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
        return [*functions, *pre, *post]

    before = hooks()
    with ARMS[name](overhead_arms.Training()) as train:
        train(overhead_arms.batches(2))

    assert hooks() == before


def test_probe_sees_the_steps_that_it_is_charged_for() -> None:
    """An arm of the probe counts every step of its block, else its price is of something else."""
    for arm in (overhead_arms.automatic, overhead_arms.manual):
        with arm(overhead_arms.Training()) as train:
            train(overhead_arms.batches(20))
            assert api._probe is not None
            assert api._probe.timeline.steps.totals().steps in (19, 20)


def test_push_costs_something(tmp_path: Path) -> None:
    """Each push is delivered and takes more than a microsecond of CPU, less than a second."""
    costs = overhead_push.microseconds(tmp_path, pushes=3)

    assert len(costs) == 3
    assert all(1 < cost < 1e6 for cost in costs)


def test_quick_run_shows_every_row_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--quick measures in processes of their own, as the full run does, and writes no result."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["overhead", "--quick"])
    overhead.main()

    shown = capsys.readouterr().out
    assert all(f"added to a step: {name}" in shown for name in ARMS)
    assert "CPU of a push" in shown
    assert list(tmp_path.iterdir()) == []


def test_result_says_what_it_was_measured_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kept result has the rows, the machine and the versions of the packages it names."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write("some", [overhead.row("a step", [1.0, 2.0, 3.0], share=1_000)], ["torch"])

    result = json.loads((tmp_path / "some.json").read_text())
    assert result["machine"]["torch"] == torch.__version__
    assert result["rows"] == [
        {
            "what": "a step",
            "unit": "µs",
            "q1": 1.0,
            "median": 2.0,
            "q3": 3.0,
            "% of a 100 ms step": 0.002,
        }
    ]


def test_failing_arm_says_why() -> None:
    """A process that fails ends the benchmark with what it wrote to stderr."""
    with pytest.raises(RuntimeError, match="no such arm could not be measured"):
        overhead._process(["no such arm"], overhead.QUICK)
