"""Efficiency is a line with a hole where it is not known."""

import re
from collections.abc import Sequence

import pytest

from exporter.report.history import Grid
from exporter.report.job import JobReport, Point
from exporter.report.losses import Loss
from exporter.report.pictures import efficiency_picture

STEP = 15.0


def job(long: float, lost: Sequence[Point]) -> JobReport:
    """Return a job of eight GPUs that ran so *long*."""
    gpus = [(n * STEP, 8.0) for n in range(round(long / STEP))]
    return JobReport(
        job_id="llama",
        cluster="eu",
        times=Grid(0, long, STEP),
        alive=[(0.0, long)],
        is_running=False,
        unseen_seconds=0.0,
        world_size=8,
        gpus=gpus,
        lost=lost,
        losses=[Loss("late", sum(value for _, value in lost) * STEP)],
        is_counted=False,
        gauge_seconds=0.0,
        states={},
        standstill={},
        restarts=[],
        price=None,
        incidents=[],
    )


def lines(report: JobReport) -> list[list[tuple[float, float]]]:
    """Return the coordinates of each line."""
    picture = efficiency_picture(report)
    assert picture is not None
    found = re.findall(r'<polyline class="line" points="([^"]*)"', picture.svg)
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in f.split())] for f in found]


@pytest.mark.parametrize("minutes", [1, 10, 60, 14 * 24 * 60])
def test_line_has_no_hole_where_all_is_known(minutes: int) -> None:
    """Of a short job each value is drawn, of a long one means."""
    long = minutes * 60.0
    (line,) = lines(job(long, [(n * STEP, 2.0) for n in range(round(long / STEP))]))

    assert len({y for _, y in line}) == 1
    assert line[-1][0] - line[0][0] > 0.7 * (720 - 46 - 12)
    assert len(line) <= 241


def test_unknown_is_a_hole() -> None:
    """Not 100 %, and not a straight line across."""
    lost = [(n * STEP, 8.0 if n > 30 else 0.0) for n in range(40) if not 10 <= n < 20]
    first, second = lines(job(600.0, lost))

    assert (first[0][1], second[-1][1]) == (10.0, 174.0)  # All of the GPUs, and none.
    assert second[0][0] - first[-1][0] > 100


def test_picture_says_what_it_shows() -> None:
    """In words, for those who cannot see it."""
    picture = efficiency_picture(job(600.0, [(n * STEP, 2.0) for n in range(40)]))

    assert picture is not None
    assert picture.says == (
        "Efficiency over time from 1970-01-01 00:00 to 1970-01-01 00:10 UTC: mean 75%, least 75%"
    )


def test_job_that_was_never_judged_has_no_picture() -> None:
    """An empty chart says nothing."""
    assert efficiency_picture(job(600.0, [])) is None
