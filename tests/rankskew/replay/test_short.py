"""Traces too short for the judge are judged as far as they reach, and that is said."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rankskew.render import render
from rankskew.replay.judge import confidence, longer
from rankskew.replay.replay import ReplayedJob, in_words, replay
from rankskew.replay.traces import read_traces
from tests.exporter.recorded import record

Late = Callable[[int, int], float]


def judged(path: Path, late: Late, **shape: float) -> ReplayedJob:
    """Return the replay of a trace of steps of 20 s."""
    path = record(path / "a.csv", late=late, step_seconds=20.0, **({"steps": 22} | shape))  # type: ignore[arg-type]
    (run,) = read_traces([path])
    return replay(run)


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("steps", [22, 100])
def test_stage_that_takes_longer_on_all_ranks_is_told(
    tmp_path: Path, synced: bool, steps: int
) -> None:
    one = judged(tmp_path, lambda rank, step: 0.5 * (step >= 12), steps=steps, synced=synced)
    (change,) = one.findings

    assert (change.kind, change.rank, change.stage) == ("change", None, "backward")
    assert change.ratio == pytest.approx(2.0, abs=0.1)
    assert change.onset_s == pytest.approx(12 * 21, abs=15)
    assert change.cleared_s is None
    assert list(one.not_judgeable) == ([] if synced else ["no_sync"])


def test_confidence_is_said_in_words(tmp_path: Path) -> None:
    """Where nothing was found, it is said as well."""
    said = render(in_words(judged(tmp_path, lambda rank, step: 0.0)))

    assert "Nothing found.\nSeen in 22 steps only; surer after 60.\n" in said
    assert [confidence(steps) is None for steps in (13, 14, 59, 60)] == [True, False, False, True]


@pytest.mark.parametrize(
    ("late", "synced", "onset"),
    [
        pytest.param(lambda rank, step: 0.5 * (rank == 3), True, 0, id="always"),
        pytest.param(lambda rank, step: 0.5 * (rank == 3 and step >= 11), True, 231, id="since"),
        pytest.param(lambda rank, step: 0.5 * (rank == 3), False, 0, id="always, no sync"),
        pytest.param(
            lambda rank, step: 0.2 * (rank == 3 and step >= 11), False, 231, id="since, no sync"
        ),
    ],
)
def test_late_rank_is_told(tmp_path: Path, late: Late, synced: bool, onset: float) -> None:
    """With its cost, if the waits were measured."""
    one = judged(tmp_path, late, synced=synced)
    (finding,) = one.findings

    assert (finding.rank, finding.stage) == (3, "backward")
    kind, source = ("persistent", "judge") if synced else ("unsynced", "none")
    assert (finding.kind, one.source) == (kind, source)
    assert finding.onset_s == pytest.approx(onset, abs=35)
    if synced:
        assert finding.gpus_lost == pytest.approx(7 * 0.5 / 1.5, rel=0.1)
    else:
        assert finding.gpus_lost is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("steps", [15, 22, 44, 150])
def test_steps_that_only_drift_and_vary_are_no_change(steps: int, seed: int) -> None:
    """All ranks become a fifth slower bit by bit, with tails, and a long first step."""
    draw = random.Random(seed)
    times = [
        (1 + 0.2 * step / steps) * (1 + 0.02 * draw.gauss(0, 1) / draw.gammavariate(1.5, 2 / 3))
        for step in range(steps)
    ]

    assert longer([3.0, *times[1:]], 0.06) is None
    half = [each + 0.4 * (step >= steps // 2) for step, each in enumerate(times)]
    found = longer(half, 0.06)
    assert found is None or abs(found.at - steps // 2) <= 2


@pytest.mark.parametrize("synced", [True, False])
def test_healthy_short_trace_tells_nothing(tmp_path: Path, synced: bool) -> None:
    """Ranks that differ by a tenth for good, in 14 to 24 steps."""
    for steps in (14, 18, 24):
        one = judged(tmp_path, lambda rank, step: 0.012 * rank - 0.05, steps=steps, synced=synced)

        assert one.findings == []


def test_fewer_steps_are_too_few(tmp_path: Path) -> None:
    one = judged(tmp_path, lambda rank, step: 0.5 * (rank == 3), steps=7)

    assert (list(one.not_judgeable), list(one.findings)) == (["warming_up"], [])
    assert one.confidence is None


def test_single_rank_has_no_peers_but_a_past(tmp_path: Path) -> None:
    one = judged(tmp_path, lambda rank, step: 0.5 * (step >= 11), ranks=1)

    assert list(one.not_judgeable) == ["no_peers"]
    assert [finding.kind for finding in one.findings] == ["change"]
