"""`rankskew replay` reports who was slow in a recorded run, or in one line why it cannot."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from rankskew.__main__ import main
from rankskew.render import render
from rankskew.replay.judge import confidence, longer
from rankskew.replay.replay import ReplayedJob, in_words, replay
from rankskew.replay.traces import read_traces
from tests.exporter.recorded import record
from tests.printed import assert_golden

TRACES: Final = Path(__file__).parents[1] / "fixtures" / "traces"
Capture = pytest.CaptureFixture[str]
Place = Callable[[int, int], bool]


def job(capsys: Capture, *arguments: object, status: int | None = None) -> dict[str, Any]:
    """Return what it prints of a job; its *status* is 0 for nothing, 1 for something found."""
    ended = main(["replay", *map(str, arguments), "--json"])
    assert status in (None, ended)
    (found,) = json.loads(capsys.readouterr().out)["jobs"]
    assert isinstance(found, dict)
    return found


def replayed(path: Path) -> ReplayedJob:
    (run,) = read_traces([path])
    return replay(run)


def without(path: Path, dropped: Place) -> Path:
    """Take the rows of a rank and step out of a trace."""
    header, *rows = path.read_text().splitlines()
    kept = [row for row in rows if not dropped(int(row.split(",")[1]), int(row.split(",")[3]))]
    path.write_text("\n".join([header, *kept, ""]))
    return path


# ---- In words ------------------------------------------------------------------------------------


def is_away(rank: int, step: int) -> bool:
    return (rank >= 6 and step >= 200) or (rank == 5 and step < 400) or (rank + 7 * step) % 97 == 0


# A job, and which of its rows are missing.
QUIET: Final = {"noise": 0.0, "steps": 120}
LATE: Final = QUIET | {"late": lambda rank, step: 0.5 * (rank == 3)}
TINY: Final = {"noise": 0.0, "ranks": 2, "steps": 3}
# Too short for the judge: it is judged as far as it reaches, and that is said.
SHORT: Final = {"steps": 22, "step_seconds": 20.0}
SINCE: Final = {"late": lambda rank, step: 0.5 * (rank == 3 and step >= 11)}
ALWAYS: Final = {"late": lambda rank, step: 0.5 * (rank == 3)}
LONGER: Final = {"late": lambda rank, step: 0.5 * (step >= 12)}
STORIES: Final[dict[str, tuple[dict[str, Any], Place | None]]] = {
    "late rank": (LATE, None),
    "slow node": (QUIET | {"late": lambda rank, step: 0.3 * (rank in (2, 3))}, None),
    "pauses": (
        QUIET | {"late": lambda rank, step: 5.0 * (rank == 3 and step % 50 == 49), "steps": 600},
        None,
    ),
    "rotating": (
        QUIET | {"late": lambda rank, step: 0.5 * (rank == step * 3 % 8), "steps": 400},
        None,
    ),
    "group": (QUIET | {"group_work": (1.0, 1.3), "steps": 400}, None),
    "common": (QUIET | {"communication": 0.8, "steps": 400}, None),
    # Where no rank is late against its peers, what changed is told: stage, group, how much, when.
    "pipeline stage": (
        {
            "late": lambda rank, step: 0.25 * (rank >= 4 and step >= 300),
            "stage": "forward",
            "group_work": (1.0, 1.0),
            "steps": 600,
        },
        None,
    ),
    # Nobody knows who waits, nor what it costs: whose time stands out, from when to when. Nobody is
    # told who always was a little apart.
    "no wait measured": (
        {
            "late": lambda rank, step: 0.5 * (rank == 3 and 200 <= step < 500) + 0.08 * (rank == 6),
            "synced": False,
            "steps": 800,
        },
        None,
    ),
    # Each period with the same ranks is judged; a rank late throughout is one finding.
    "ranks come and go": (ALWAYS | {"steps": 600}, is_away),
    "one step in ten": (ALWAYS | {"steps": 150, "every_seconds": 10.0}, None),
    "steps of half a minute": (
        ALWAYS | {"steps": 33, "every_seconds": 45.0, "step_seconds": 30.0},
        None,
    ),
    "few rows": (LATE, lambda rank, step: rank == 7 and step % 10 > 0),
    # What cannot be accounted for is said, and is no error.
    "a step lacks a rank": (TINY, lambda rank, step: (rank, step) == (1, 2)),
    "none has all": (TINY | {"steps": 2}, lambda rank, step: rank == step),
    "short, healthy": (SHORT, None),
    "short, late": (SHORT | ALWAYS, None),
    "short, late since": (SHORT | SINCE, None),
    "short, late, no wait measured": (SHORT | ALWAYS | {"synced": False}, None),
    "short, late since, no wait measured": (
        SHORT | {"late": lambda rank, step: 0.2 * (rank == 3 and step >= 11), "synced": False},
        None,
    ),
    "short, longer on all ranks": (SHORT | LONGER, None),
    "short, longer, no wait measured": (SHORT | LONGER | {"synced": False}, None),
    "a hundred steps, longer on all ranks": (SHORT | LONGER | {"steps": 100}, None),
    # It has no peers, but a past.
    "single rank": (SHORT | LONGER | {"ranks": 1}, None),
    "too short": (SHORT | ALWAYS | {"steps": 7}, None),
}


def test_stories_are_the_golden_ones(tmp_path: Path) -> None:
    """One line for each finding, and the kinds with the ranks and stages that cost.

    A rank may be late without making the steps longer.
    """
    path = tmp_path / "a.csv"
    texts = {}
    for name, (shape, missing) in STORIES.items():
        record(path, **shape)
        found = replayed(path if missing is None else without(path, missing))
        texts[name] = render(in_words(found))
        if name == "late rank":
            texts["no slowdown"] = render(in_words(replace(found, slowdown=1.004)))
    assert_golden("replay", texts)


# ---- What is found -------------------------------------------------------------------------------


def test_late_rank_is_named_with_time_stage_and_cost(tmp_path: Path, capsys: Capture) -> None:
    """A rank half a step late from step 100 on is named within 20 steps, and what it costs."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3 and 100 <= step < 250),
        steps=400,
    )
    found = job(capsys, path, status=1)

    assert (found["job_id"], found["attempt"], found["ranks"], found["steps"]) == ("j", 0, 8, 400)
    assert (found["source"], found["not_judgeable"]) == ("judge", [])
    (finding,) = found["findings"]
    assert (finding["kind"], finding["severity"]) == ("persistent", "critical")
    assert (finding["rank"], finding["ranks"], finding["peer_group"]) == (3, [3], "pp0")
    assert (finding["instance"], finding["stage"]) == ("node1", "backward")
    assert finding["onset_s"] == pytest.approx(102, abs=3)
    assert 5 < finding["named_s"] - finding["onset_s"] < 37
    assert 102 + 150 * 1.5 < finding["cleared_s"] < 102 + 150 * 1.5 + 45
    assert finding["ratio"] == pytest.approx(0.5, abs=0.05)
    assert finding["gpus_lost"] == pytest.approx(7 * 0.5 / 1.53, rel=0.1)
    assert found["gpus_lost_by_kind"]["persistent"] == pytest.approx(7 * 0.5 * 150 / 480, rel=0.1)
    assert sum(found["gpus_lost_by_kind"].values()) == pytest.approx(found["gpus_lost"])
    assert found["slowdown"] == pytest.approx(475 / 400, rel=0.02)


def test_real_job_with_a_slow_worker(tmp_path: Path, capsys: Capture) -> None:
    """In ByteDance's trace the worker that was slowed down is named, and no other."""
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.decompress((TRACES / "bytedance_AR.csv.gz").read_bytes()))
    found = job(capsys, path)
    (finding,) = found["findings"]

    assert (finding["rank"], finding["kind"], finding["onset_s"]) == (0, "persistent", 0)
    assert found["slowdown"] == pytest.approx(2.168, abs=0.01)


@pytest.mark.parametrize(
    "shape",
    [
        {"steps": 200},
        # Workers on shares of GPUs, a quarter apart for good. The shape of job 2 of Alibaba's
        # mini-batch times: compute alone, a sample every ten seconds.
        {
            "late": lambda rank, step: 0.03 * rank - 0.18,
            **{"ranks": 10, "steps": 250, "every_seconds": 10.0, "synced": False},
        },
        # Ranks that differ by a tenth for good, in as few steps as are judged.
        *(
            SHORT | {"late": lambda rank, step: 0.012 * rank - 0.05, "steps": steps, "synced": sync}
            for steps in (14, 24)
            for sync in (True, False)
        ),
    ],
)
def test_ranks_that_nobody_waits_for_longer_are_nobodys_fault(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    assert replayed(record(tmp_path / "a.csv", **shape)).findings == []


def test_short_trace_can_be_stretched(tmp_path: Path, capsys: Capture) -> None:
    """A rank that is a little late in seconds of fast steps is not believed; in minutes it is."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.07 * (rank == 6),
        step_seconds=0.04,
        steps=160,
        noise=0.01,
    )
    short, long = job(capsys, path), job(capsys, "--time-scale=25", path)

    assert [each for each in short["findings"] if each["kind"] == "persistent"] == []
    assert [(each["rank"], each["stage"]) for each in long["findings"]] == [(6, "backward")]
    assert long["seconds"] == pytest.approx(25 * short["seconds"], rel=1e-3)
    assert long["gpus_lost"] == pytest.approx(short["gpus_lost"])


def test_loss_that_is_not_known_is_not_0(tmp_path: Path, capsys: Capture) -> None:
    """As where no step has all ranks: it cannot tell."""
    path = record(tmp_path / "a.csv", ranks=2, steps=2)
    unknown = job(capsys, without(path, lambda rank, step: rank == step), status=2)

    assert (unknown["whole_steps"], unknown["source"]) == (0, "none")
    assert (unknown["gpus_lost"], unknown["gpus_lost_by_kind"]) == (None, {})
    assert unknown["slowdown"] is None


# ---- Traces too short for the judge --------------------------------------------------------------


def test_few_steps_are_sure_from_sixty_on() -> None:
    assert [confidence(steps) is None for steps in (13, 14, 59, 60)] == [True, False, False, True]


@pytest.mark.parametrize("steps", [15, 22, 44, 150])
def test_steps_that_only_drift_and_vary_are_no_change(steps: int) -> None:
    """All ranks become a fifth slower bit by bit, with tails, and a long first step."""
    for seed in range(10):
        draw = random.Random(seed)
        times = [
            (1 + 0.2 * step / steps) * (1 + 0.02 * draw.gauss(0, 1) / draw.gammavariate(1.5, 2 / 3))
            for step in range(steps)
        ]
        half = [each + 0.4 * (step >= steps // 2) for step, each in enumerate(times)]
        found = longer(half, 0.06)

        assert longer([3.0, *times[1:]], 0.06) is None
        assert found is None or abs(found.at - steps // 2) <= 2
