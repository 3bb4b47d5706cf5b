"""Tests that the overhead benchmark runs and that its figures can be true."""

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import optimizer
from torch.utils.data import DataLoader

from benchmarks import overhead, overhead_arms, overhead_push, report
from benchmarks.overhead_blocks import ADDED, BARE, Cost, Costs, measure
from benchmarks.overhead_loops import ARMS, DDP, LOOPS, PEERS, PLAIN, TEXT, Loop, texts
from benchmarks.overhead_processes import ROOT, Group, Probe, measure_all, probe_of, run
from rank_probe import api
from rank_probe.wire.stages import SYNC

# The least that has an interval.
SMALL = overhead.Size(
    processes=1, blocks=6, blocks_of_others=6, steps=5, hot_calls=50, pushes=3, tools=()
)


def test_every_arm_trains_and_is_timed() -> None:
    """Each arm that needs no package of its own has a figure for each block."""
    found = measure(PLAIN, ARMS, steps=30, blocks=4, order=random.Random(1))

    assert list(found) == [BARE, *(ADDED + name for name in ARMS)]
    assert all(len(costs) == 4 for costs in found.values())
    assert min(found[BARE]) > (10, 10)
    # The others may have met pauses of the machine.
    assert max(found[f"{ADDED}torch.profiler"]) > (0, 0)


def test_figure_is_the_difference_to_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down steadily does not change a figure, and none share a bare block."""
    speed = iter(range(100))

    def block(arm: object, *_: object) -> Cost:
        added = 0 if arm is overhead_arms.bare else 7
        return Cost(100.0 + next(speed) + added, 50.0)

    monkeypatch.setattr("benchmarks.overhead_blocks.block", block)
    arms = {name: arm for name, arm in ARMS.items() if arm is not overhead_arms.bare}
    found = measure(PLAIN, arms, steps=1, blocks=3, order=random.Random(1))

    of_tools = [cost for name, costs in found.items() if name != BARE for cost in costs]
    assert of_tools == [Cost(7.0, 0.0)] * 3 * len(arms)
    assert next(speed) == len(arms) + 3 * (2 * len(arms) + 1)


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
    for arm in (overhead_arms.automatic, overhead_arms.automatic_at_root, overhead_arms.manual):
        with arm(overhead_arms.Training()) as train:
            train(overhead_arms.batches(20))
            assert api._probe is not None
            assert api._probe.timeline.steps.totals().steps in (19, 20)


@pytest.fixture
def with_peers() -> Iterator[None]:
    """Leave no process group behind."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_backward_is_cut_where_its_row_says_so(with_peers: None) -> None:
    """With peers by a parameter's hook, in that arm at its root, and on the plain loop not."""

    def hooked(model: nn.Module) -> bool:
        hooks = (each._post_accumulate_grad_hooks for each in model.parameters())
        return any(hooks)

    for arm, expected in (
        (overhead_arms.automatic, True),
        (overhead_arms.automatic_at_root, False),
    ):
        training = PEERS.training()
        with arm(training) as train:
            train(PEERS.batches(20))
            assert hooked(training.model) is expected
            assert api._probe is not None
            assert api._probe.timeline.steps.spent()[SYNC] > 0
    dist.destroy_process_group()
    with overhead_arms.automatic(overhead_arms.Training()) as train:
        train(PLAIN.batches(20))
        assert api._probe is not None
        assert api._probe.timeline.steps.spent()[SYNC] == 0


def test_probe_counts_what_a_dict_batch_holds() -> None:
    """The text arm's price includes its samples, its tokens and the zeros of its masks."""
    batches = list(texts(20))
    with overhead_arms.automatic(TEXT.training()) as train:
        loader = texts(20)
        train(loader)
        assert api._probe is not None
        samples, tokens, padding = api._probe.work.totals()

    assert samples == 20 * len(batches[0]["labels"])
    assert tokens == 20 * batches[0]["input_ids"].numel()
    assert padding == sum(int((batch["attention_mask"] == 0).sum()) for batch in loader)
    assert padding > 0


def test_probe_that_is_off_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK_PROBE=0 in the environment ends the benchmark, instead of a figure near zero."""
    monkeypatch.setenv("RANK_PROBE", "0")
    with pytest.raises(RuntimeError, match="RANK_PROBE=0"), overhead_arms.probe(automatic=True):
        pass


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
    here = [loop for loop in LOOPS.values() if "CUDA" not in loop.name]
    names = {name for loop in here for name in overhead.loop_names(loop)}
    assert all(name in shown for name in names if "traceml" not in name)
    assert "CPU of a push" in shown
    assert "probe.step() (hot)" in shown
    assert ("CUDA is left out" in shown) is not torch.cuda.is_available()
    assert list(tmp_path.iterdir()) == []


def test_ranks_have_rows_of_their_own() -> None:
    """Both ranks of the DDP loop are in the table, beside their own bare loops."""
    assert list(overhead.loop_names(DDP)) == [
        "a step of the bare loop, DDP, rank 0",
        "added to a step: probe, automatic, DDP, rank 0",
        "a step of the bare loop, DDP, rank 1",
        "added to a step: probe, automatic, DDP, rank 1",
    ]


def test_row_has_an_interval_for_both_times() -> None:
    """A kept row has medians and intervals of wall and CPU time, and the share of a long step."""
    loop = Loop(PLAIN.name, PLAIN.training, PLAIN.batches, {})
    costs: Costs = {f"{ADDED}probe, automatic{loop.name}": [Cost(n, n / 2) for n in range(1, 7)]}
    (row,) = overhead.arm_rows(costs)

    assert row == {
        "what": "added to a step: probe, automatic",
        "unit": "µs",
        "median": 3.5,
        "95 % from": 1,
        "95 % to": 6,
        "CPU median": 1.75,
        "CPU 95 % from": 0.5,
        "CPU 95 % to": 3.0,
        "% of a 100 ms step": 0.0035,
    }


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The ranks of the two ends, from the usual table of the sign test.
    [(5, None, None), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61), (2000, 956, 1045)],
)
def test_interval_of_a_median(count: int, low: int | None, high: int | None) -> None:
    """The interval's ends are the sorted values that a fair coin leaves outside in 5 % of cases."""
    values = [float(number) for number in range(1, count + 1)]
    random.Random(1).shuffle(values)

    found = report.median_interval(values)
    assert found == {"median": (count + 1) / 2, "95 % from": low, "95 % to": high}


def test_result_says_what_it_was_measured_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kept result has the rows, the machine and the versions of the packages it names."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    rows = [overhead.row("a step", [1.0, 2.0, 3.0], share=1_000)]
    report.write("some", rows, ["torch"])

    result = json.loads((tmp_path / "some.json").read_text())
    assert result["machine"]["torch"] == torch.__version__
    assert result["rows"] == rows


@pytest.fixture
def other_checkout(tmp_path: Path) -> Path:
    """Return a checkout with a rank_probe of its own, and with a benchmark that nobody may run."""
    shutil.copytree(ROOT / "rank_probe", tmp_path / "other" / "rank_probe")
    (tmp_path / "other" / "benchmarks").mkdir()
    (tmp_path / "other" / "benchmarks" / "__init__.py").write_text("raise SystemExit('the other')")
    return tmp_path / "other"


@pytest.fixture
def here() -> Iterator[Probe]:
    """Yield the probe of this checkout."""
    with probe_of(ROOT) as found:
        yield found


def test_before_measures_the_probe_of_the_other_checkout(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    other_checkout: Path,
) -> None:
    """--before adds rows with its probe, under the same loops, and keeps them in their own file."""
    groups = [Group("plain", ("probe, manual",), 6)]
    monkeypatch.setattr(overhead.Size, "groups", lambda _: groups)
    monkeypatch.setattr(overhead.Size, "groups_before", lambda _: groups)
    monkeypatch.setattr(overhead, "Size", lambda: SMALL)
    monkeypatch.setattr(overhead, "PACKAGES", ("torch",))
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["overhead", "--before", str(other_checkout)])
    overhead.main()

    shown = capsys.readouterr().out
    assert "before: added to a step: probe, manual" in shown
    kept = json.loads((tmp_path / "results" / "overhead.json").read_text())["rows"]
    assert not any("before" in row["what"] for row in kept)
    before = json.loads((tmp_path / "results" / "overhead_before.json").read_text())["rows"]
    assert [row["what"] for row in before] == [
        "before: a step of the bare loop",
        "before: added to a step: probe, manual",
    ]


def test_process_has_the_probe_of_its_checkout_and_our_benchmark(other_checkout: Path) -> None:
    """A broken probe in the other checkout ends the run, so it was that one which ran."""
    init = other_checkout / "rank_probe" / "__init__.py"
    init.write_text("raise SystemExit('the probe of the other checkout')")
    with pytest.raises(RuntimeError, match="the probe of the other checkout"):
        measure_all({other_checkout: [Group("plain", ("bare, again",), 1)]}, processes=1, steps=1)


def test_wrong_probe_is_noticed(here: Probe, tmp_path: Path) -> None:
    """A process that imported another rank_probe than it should ends the benchmark."""
    wrong = Probe(tmp_path / "rank_probe", here.environment)
    with pytest.raises(RuntimeError, match=r"bare, again: measured .* instead of"):
        run(Group("plain", ("bare, again",), 1), 1, wrong)


def test_checkout_without_a_probe_is_refused(tmp_path: Path) -> None:
    """--before with a folder that is no checkout says so at once."""
    with pytest.raises(FileNotFoundError, match="it has no rank_probe"), probe_of(tmp_path):
        pass


def test_failing_arm_says_why(here: Probe) -> None:
    """A process that fails ends the benchmark with what it wrote to stderr."""
    with pytest.raises(RuntimeError, match=r"could not be measured[\s\S]*no such arm: some tool"):
        run(Group("plain", ("some tool",), 1), 1, here)
