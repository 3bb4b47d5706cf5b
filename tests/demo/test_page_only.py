"""Without Prometheus the built-in page's own verdict is taken, once it has stood for a while."""

from typing import Any

import pytest

from demo.page_only import LATE_SECONDS, PageWatch, what_is_wrong
from demo.scenario import HEALTHY_SECONDS, Scenario
from demo.verdict import Conclusion, Health, NamedRank

NAMED = NamedRank("demo", "2", "data", 1.0, "none(page)", 30)
HEALTH = Health("demo", 0.0, 90, "none(page)", 120)


def page(state: str, *late: dict[str, Any]) -> dict[str, Any]:
    """Return the page's data about the demo's job."""
    return {"verdict": {"state": state, "sentence": "A sentence.", "late": list(late)}}


def late(rank: int = 2) -> dict[str, Any]:
    return {"rank": rank, "stage": "data", "gpus_lost": 0.964, "late_for_seconds": 60.0}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the demo's clock, for the test to turn."""
    seconds = [1000.0]
    monkeypatch.setattr("demo.page_only.time.monotonic", lambda: seconds[0])
    return seconds


def watch(summary: dict[str, Any]) -> PageWatch:
    return PageWatch(Scenario("data", once=True), lambda: summary)


def test_verdict_is_what_the_page_says(now: list[float]) -> None:
    """A rank named for long enough gives the verdict, with the page's own cost."""
    watching = watch(page("straggler", late()))
    assert watching.verdict() is None  # However long the judge says that it has been late.

    now[0] += LATE_SECONDS
    verdict = watching.verdict()
    assert verdict is not None
    assert verdict.line().startswith(
        "verdict: job=demo rank=2 stage=data gpus_lost=0.96 alert=none(page) after="
    )


def test_page_that_changes_its_mind_is_asked_on(now: list[float]) -> None:
    """Another rank starts the wait anew."""
    summary = page("straggler", late(rank=1))
    watching = watch(summary)
    assert watching.verdict() is None
    now[0] += LATE_SECONDS - 1
    summary |= page("straggler", late(rank=2))
    assert watching.verdict() is None
    now[0] += LATE_SECONDS - 1
    assert watching.verdict() is None


def test_job_that_is_not_known_yet_has_no_verdict() -> None:
    """Before its first rank reports there is nothing to be said."""
    assert PageWatch(Scenario("data", once=True), lambda: None).verdict() is None


@pytest.mark.parametrize("listed", [[], [late()]])
def test_health_takes_time_and_no_interruption(
    now: list[float], listed: list[dict[str, Any]]
) -> None:
    """An even job must stay even; a doubt starts it anew, a rank too mild to wake anybody not."""
    summary = page("healthy", *listed)
    watching = watch(summary)
    assert watching.verdict() is None

    now[0] += HEALTHY_SECONDS - 1
    summary |= page("not_judgeable")
    assert watching.verdict() is None
    now[0] += 2
    summary |= page("healthy", *listed)
    assert watching.verdict() is None
    now[0] += HEALTHY_SECONDS
    verdict = watching.verdict()
    assert isinstance(verdict, Health)
    assert verdict.gpus_lost == pytest.approx(0.964 * len(listed))


@pytest.mark.parametrize(
    ("fault", "verdict", "wrong"),
    [
        ("data", NAMED, None),
        ("forward", NAMED, "the page names rank 2 in data, but rank 2 in forward was slow"),
        ("none", NAMED, "the page names rank 2 in data, but no rank was slow"),
        ("data", HEALTH, "the page names nobody"),
        ("none", HEALTH, None),
    ],
)
def test_wrong_verdicts_are_told(fault: str, verdict: Conclusion, wrong: str | None) -> None:
    """A verdict that is not what was planted is said to be wrong."""
    assert what_is_wrong(Scenario(fault, once=True), verdict) == wrong
