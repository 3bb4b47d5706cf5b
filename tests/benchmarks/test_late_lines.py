"""The benchmark of slow lines judges what was shown, and what sampling costs, correctly."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.late_lines.__main__ import HEALTHY, JOB, planted, row
from benchmarks.late_lines.late_lines_job import PLACES
from benchmarks.late_lines_cost.__main__ import longer


def shown(at: float, *lines: str, rank: int = 2) -> dict[str, Any]:
    told = [{"stage": "data", "place": f"f ({line})", "share": 0.7} for line in lines]
    return {"at": at, "rank": rank, "stage": "data", "lines": told}


def told(folder: Path, *samples: int) -> None:
    for rank, count in enumerate(samples):
        ranks = {"samples": count, "fetching": {"data": 1.0}}
        (folder / f"{rank}.json").write_text(json.dumps(ranks))


@pytest.mark.parametrize("place", PLACES)
def test_each_place_has_its_slow_line(place: str) -> None:
    """The line is where the job says it is."""
    name, number = planted(place).split(":")

    assert name == JOB.name
    assert "time.sleep(DELAY)" in JOB.read_text().splitlines()[int(number) - 1]


def test_planted_line_is_right(tmp_path: Path) -> None:
    """The time is that of the first line, the share that of the last."""
    told(tmp_path, 0, 0, 400, 0)
    slow = planted("dataset")
    found = row("dataset", [shown(2.0), shown(4.0, slow), shown(9.0, slow, "other.py:1")], tmp_path)

    assert found["right"]
    assert (found["rank named after, s"], found["line shown after, s"]) == (2.0, 4.0)
    assert (found["samples on it"], found["on the others"]) == (400, 0)
    assert found["fetching, share"] == 1.0


@pytest.mark.parametrize(
    ("samples", "first_lines"),
    [
        ((0, 0, 400, 0), ["other.py:1"]),
        ((0, 0, 400, 0), ["other.py:1", planted("dataset")]),
        ((0, 0, 400, 0), [planted("dataset") + "0"]),
        ((0, 0, 400, 0), []),
        ((5, 0, 400, 0), [planted("dataset")]),
    ],
)
def test_any_other_line_or_sampled_rank_is_wrong(
    samples: tuple[int, ...], first_lines: list[str], tmp_path: Path
) -> None:
    """A line that was wrong for a moment is wrong, and so is a sample of a healthy rank."""
    told(tmp_path, *samples)

    assert not row("dataset", [shown(4.0, line) for line in first_lines], tmp_path)["right"]


def test_healthy_job_is_right_without_a_sample(tmp_path: Path) -> None:
    """Nobody is named there, and nobody sampled."""
    told(tmp_path, 0, 0, 0, 0)
    assert row(HEALTHY, [], tmp_path)["right"]
    told(tmp_path, 0, 1, 0, 0)
    assert not row(HEALTHY, [], tmp_path)["right"]


def test_difference_between_the_ranks_cancels_out() -> None:
    """Rank 1 is a tenth slower by itself; sampling makes either 1 % slower."""
    fast, slow = 10.0, 11.0
    percent, error = longer([(fast * 1.01, slow), (fast, slow * 1.01)] * 3)

    assert percent == pytest.approx(100 * math.log(1.01))
    assert error == pytest.approx(0, abs=1e-9)
    assert longer([(fast, slow), (fast, slow)])[0] == pytest.approx(0)
