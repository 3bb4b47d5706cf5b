"""What A..B means, and what it is found to be in a Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from exporter.errors import UsageError
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.compare.choose import compare_recorded, periods, two_parts
from tests.rankskew.client.servers import Answer, json_answer, serving


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

    before, after = found.before, found.after
    assert before is not None
    assert after is not None
    assert (before.job_id, after.begin, after.end) == ("llama", 2000, 2600)
    assert str(found.why).startswith("Before (1970-01-01 00:06:40 to 00:16:40 UTC) is not wholly")


@pytest.mark.parametrize(
    ("jobs", "job_id", "message"),
    [
        ([], None, "No job ran at the end of both periods"),
        ([], "x", "No job 'x' ran at the end of both periods"),
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


def test_one_job_and_a_time_are_refused() -> None:
    with knowing() as prometheus, pytest.raises(UsageError, match="takes two jobs"):
        compare_recorded(prometheus, "job:old..-5m", 600, now=3000)


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
    wanted = [(NOW + begin, NOW + end) for begin, end in (before, after)]

    assert list(periods(asked, 600, NOW)) == wanted


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
        periods((before, after), 600, NOW)
