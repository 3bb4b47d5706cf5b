"""What A..B means, and what it is found to be in a trace and in a Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from exporter.errors import UsageError
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.compare.choose import (
    compare_recorded,
    compare_traces,
    moment_of_run,
    periods,
    two_parts,
)
from rankskew.compare.comparison import IMPROVED, NO_WORSE, WORSE, ComparedSide, Comparison
from rankskew.replay.traces import Run, read_traces
from rankskew.times import Period, moment
from tests.exporter.recorded import record
from tests.rankskew.client.servers import Answer, json_answer, serving


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A job of which rank 3 is late until step 200, at 252 s; it ends at 547 s."""
    path = record(
        tmp_path_factory.mktemp("trace") / "job.csv",
        late=lambda rank, step: 0.2 if rank == 3 and step < 200 else 0.0,
        ranks=4,
        steps=480,
    )
    return read_traces([path])[0]


def ask(run: Run, asked: str, window_seconds: float = 600) -> Comparison:
    return compare_traces([run], asked, window_seconds)


def sides(found: Comparison) -> tuple[ComparedSide, ComparedSide]:
    assert found.before is not None
    assert found.after is not None
    return found.before, found.after


def test_ranges_of_steps_are_compared(run: Run) -> None:
    """Both ends of a range belong to it; ranges may be in any order."""
    found = ask(run, "0-199..200-399")

    assert (found.verdict, ask(run, "200-399..0-199").verdict) == (IMPROVED, WORSE)
    assert [side.steps for side in sides(found)] == [200, 200]
    assert found.cost is not None
    assert found.cost.ratio is not None
    assert found.cost.ratio.value == pytest.approx(1.08 / 1.26, abs=0.02)


def test_times_of_the_run_are_compared(run: Run) -> None:
    found = ask(run, "4m..5m", window_seconds=200)

    assert found.verdict == IMPROVED
    times = [at for side in sides(found) for at in (side.begin, side.end)]
    assert times == pytest.approx([40, 240, 300, 500], abs=3)
    said = ask(run, "4m..5m", window_seconds=60).why
    assert str(said).startswith("Before (0:03:00 to 0:04:00) has only 51 steps")


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("0-199..5m", "two ranges of steps"),
        ("job:j..job:x", "no job 'x'; there are: j"),
        ("job:j..5m", "two jobs"),
        ("400-100..200-300", "400-100 ends before it begins"),
        ("14:05..5m", "'14:05' is not a time of a recorded run"),
    ],
)
def test_what_cannot_be_compared_is_refused(run: Run, asked: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ask(run, asked)


def test_two_jobs_are_compared_without_their_first_steps(tmp_path: Path) -> None:
    """Both are taken whole, less the steps that fill caches."""
    runs = [
        read_traces([record(tmp_path / f"{name}.csv", ranks=2, steps=205, step_seconds=seconds)])[0]
        for name, seconds in (("old", 1.0), ("new", 0.9))
    ]
    runs[1].job_id = "new"
    found = compare_traces(runs, "job:j..job:new", 600)

    assert found.verdict == IMPROVED
    assert [(side.job_id, side.steps) for side in sides(found)] == [("j", 200), ("new", 200)]


def test_of_several_jobs_one_must_be_named(run: Run, tmp_path: Path) -> None:
    other = read_traces([record(tmp_path / "b.csv", steps=20)])[0]
    other.job_id = "new"
    with pytest.raises(UsageError, match="name one with --job: j, new"):
        compare_traces([run, other], "0-199..200-399", 600)
    assert compare_traces([run, other], "200-359..320-479", 600, "j").verdict == NO_WORSE


@contextmanager
def knowing(*jobs: dict[str, str]) -> Iterator[Prometheus]:
    """A Prometheus that knows these *jobs* at any time, and nothing of them."""

    def answer(path: str, form: dict[str, str]) -> Answer:
        asks = "group by (cluster, job_id)" in form["query"]
        result = [{"metric": job, "value": [1, "1"]} for job in jobs if asks]
        return json_answer({"status": "success", "data": {"result": result}})

    with serving(answer) as url:
        yield Prometheus(url)


def test_the_only_job_needs_no_name() -> None:
    with knowing({"job_id": "llama"}) as prometheus:
        found = compare_recorded(prometheus, "1000..2000", 600, now=3000)

    before, after = sides(found)
    assert (before.job_id, after.begin, after.end) == ("llama", 2000, 2600)
    assert str(found.why).startswith("Before (1970-01-01 00:06:40 to 00:16:40 UTC) is not wholly")


@pytest.mark.parametrize(
    ("jobs", "job_id", "message"),
    [
        ([], None, "No job ran at the end of both periods"),
        ([], "x", "no steps of a job 'x' at the end of both periods"),
        ([{"job_id": "a"}, {"job_id": "b"}], None, "Give --job; these ran in both periods: a, b"),
        (
            [{"job_id": "a", "cluster": "x"}, {"job_id": "a", "cluster": "y"}],
            "a",
            "Several clusters have a job 'a'; give --cluster: x, y",
        ),
    ],
)
def test_a_job_that_is_none_or_many_is_refused(
    jobs: list[dict[str, str]], job_id: str | None, message: str
) -> None:
    with knowing(*jobs) as prometheus, pytest.raises(Trouble, match=message):
        compare_recorded(prometheus, "1000..2000", 600, now=3000, job_id=job_id)


# ---- What A..B says ----------------------------------------------------------------------------


NOW = datetime(2026, 3, 4, 15, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["14:05", "14:05..", "..14:05", "a..b..c", ""])
def test_anything_but_two_parts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not A\.\.B, such as 14:05\.\.14:20"):
        two_parts(text)


@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        # A change between A and B is in neither window.
        (("14:05", "14:20"), (-3900, -3300), (-2400, -1800)),
        # What has not happened yet is cut off.
        (("-30m", "-5m"), (-2400, -1800), (-300, 0)),
        # Now is the last window, but it does not begin before A.
        (("-30m", "now"), (-2400, -1800), (-600, 0)),
        (("-5m", "now"), (-900, -300), (-300, 0)),
        (("13:50/14:05", "14:20/-10m"), (-4200, -3300), (-2400, -600)),
    ],
)
def test_windows_end_with_a_and_begin_with_b_and_periods_stay(
    asked: tuple[str, str], before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Times are relative to now, in seconds."""
    wanted = [Period(NOW + begin, NOW + end) for begin, end in (before, after)]

    assert list(periods(asked, 600, NOW, moment)) == wanted


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("14:20", "14:05", "begins before"),
        ("14:05/14:00", "14:20", "ends before it begins"),
        ("-20m", "2026-03-04T15:30", "later than all data"),
        ("-20m", "-10m/2026-03-04T15:30", "later than all data"),
        ("yesterday", "now", "'yesterday' is not a time; give 14:05"),
        ("25:00", "now", "is not a time"),
        ("-5", "now", "is not a time"),
    ],
)
def test_bad_periods_are_refused_in_a_sentence(before: str, after: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        periods((before, after), 600, NOW, moment)


def test_times_of_a_recorded_run_count_from_its_begin_or_its_end() -> None:
    """They are written as durations, or as `rankskew replay` prints them."""
    times = [moment_of_run(text, 3600) for text in ("10m", "0:10:00", "-10m", "now")]

    assert times == [600, 600, 3000, 3600]
