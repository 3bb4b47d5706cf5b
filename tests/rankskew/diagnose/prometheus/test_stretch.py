"""A job over a stretch of time."""

import pytest

from rankskew.diagnose.model import CannotTell, Report
from rankskew.diagnose.prometheus.stretch import read_stretch
from tests.rankskew.diagnose.prometheus.jobs import straggler
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.fake_prometheus import FakePrometheus, Series, series

LOST = "rank:rankskew_gpus_lost:sum"


def over(samples: list[Series], seconds: float, **values: list[float]) -> Report:
    """Return the report on the last *seconds*, in which the late rank cost *values*."""
    times = {LOST: values["lost"]} if "lost" in values else {}
    with FakePrometheus(samples, over_time=times).serve() as url:
        return read_stretch(url, None, None, seconds)


def test_rank_is_told_with_its_share_of_the_time() -> None:
    """It was late in five of the ten minutes: half of what it cost then, over all of them."""
    said = over(straggler(), 600.0, lost=[1.6] * 20)
    (finding,) = said.findings

    assert (said.covers_seconds, said.state) == (600.0, "straggler")
    assert finding.facts == ("Late for 5 min of the 10 min.",)
    assert finding.gpus_lost == pytest.approx(0.8)
    assert said.sentence == "It was straggler for 10 min."
    assert said.loss is not None
    assert said.loss.gpus == pytest.approx(2.0)
    assert said.loss.gpus == pytest.approx(sum(part.gpus for part in said.loss.parts))


def test_start_within_a_healthy_stretch_is_no_finding() -> None:
    """It could not be judged for a while, and then it was balanced."""
    started = series("job:rankskew_state:info", state="starting")
    said = over([*fake.job(), started], 600.0)

    assert (said.outcome, said.state, said.findings) == ("balanced", "healthy", ())
    assert over(fake.job(state="starting"), 600.0).outcome == "cannot_tell"


def test_empty_stretch_is_one_sentence() -> None:
    """There may have been no such job, or no job at all, or several."""
    with pytest.raises(CannotTell, match=r"has recorded nothing of any job in the last 10 min\."):
        over([], 600.0)
    with pytest.raises(CannotTell, match=r"There are 2 jobs; name one with --job: a, b\."):
        over([*fake.job("a"), *fake.job("b")], 600.0)
