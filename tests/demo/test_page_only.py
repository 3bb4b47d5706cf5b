"""Without Prometheus the built-in page's own verdict is taken, once it has stood for a while."""

from typing import Any

import pytest

from demo.page_only import LATE_SECONDS, PageWatch, what_is_wrong
from demo.scenario import HEALTHY_SECONDS, Scenario
from demo.verdict import Health, Verdict


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


def test_mild_lateness_is_health(now: list[float]) -> None:
    """A rank that is late too little to wake anybody is listed, and no verdict on it."""
    watching = watch(page("healthy", late()))
    watching.verdict()
    now[0] += HEALTHY_SECONDS

    assert isinstance(watching.verdict(), Health)


def test_health_takes_time_and_no_interruption(now: list[float]) -> None:
    """`no straggler` needs an even job for long enough; a doubt in between starts it anew."""
    state = ["healthy"]
    watching = PageWatch(Scenario("none", once=True), lambda: page(state[0]))
    assert watching.verdict() is None

    now[0] += HEALTHY_SECONDS - 1
    state[0] = "not_judgeable"
    assert watching.verdict() is None
    now[0] += 2
    state[0] = "healthy"
    assert watching.verdict() is None
    now[0] += HEALTHY_SECONDS
    verdict = watching.verdict()
    assert isinstance(verdict, Health)
    assert verdict.gpus_lost == 0


@pytest.mark.parametrize(
    ("fault", "stage", "wrong"),
    [
        ("data", "data", None),
        ("forward", "data", "the page names rank 2 in data, but rank 2 in forward was slow"),
        ("none", "data", "the page names rank 2 in data, but no rank was slow"),
    ],
)
def test_wrong_verdicts_are_told(fault: str, stage: str, wrong: str | None) -> None:
    """A verdict that is not what was planted is said to be wrong."""
    verdict = Verdict("demo", "2", stage, 1.0, "none(page)", 30)

    assert what_is_wrong(Scenario(fault, once=True), verdict) == wrong


def test_quiet_page_with_a_fault_is_wrong() -> None:
    """A page that names nobody is right only when nothing was planted."""
    health = Health("demo", 0.0, 90, "none(page)", 120)

    assert what_is_wrong(Scenario("data", once=True), health) == "the page names nobody"
    assert what_is_wrong(Scenario("none", once=True), health) is None
