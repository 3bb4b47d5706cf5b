"""What the demo prints while it waits, and when it takes what page or alert say as the verdict."""

from collections.abc import Iterator
from typing import Any

import pytest

from demo.__main__ import (
    HEALTHY_SECONDS,
    LATE_SECONDS,
    STRAGGLER,
    AlertWatch,
    Demo,
    PageWatch,
    Verdict,
)
from devstack.webhook import ReceivedAlert

STARTED = 990.0


class Parts:
    """The exporter, Prometheus and the webhook: they answer what the test sets."""

    url = "http://127.0.0.1"

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None
        self.received: list[ReceivedAlert] = []
        self.active: list[dict[str, Any]] = []
        self.is_judged = True

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        return self.job

    def pages(self, alert: str | None = None, status: str | None = None) -> list[ReceivedAlert]:
        return [page for page in self.received if page.matches(alert, status, {})]

    def active_alerts(self) -> list[dict[str, Any]]:
        return self.active

    def query(self, expression: str) -> list[bool]:
        return [True] if self.is_judged else []

    def value(self, expression: str) -> float:
        return 0.031


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the demo's clock, for the test to turn."""
    seconds = [1000.0]
    monkeypatch.setattr("demo.__main__.time.monotonic", lambda: seconds[0])
    return seconds


def page_watch(parts: Any) -> PageWatch:
    return PageWatch(parts)


def alert_watch(parts: Any, fault: str = "data") -> AlertWatch:
    return AlertWatch(fault, parts, parts, parts, parts)


def live(state: str, *ranks: int, sentence: str = "It is so.", **more: Any) -> dict[str, Any]:
    """Return the page's data about a job whose *ranks* are late in data."""
    late = [
        {"rank": rank, "stage": "data", "kind": "persistent", "gpus_lost": 0.964, "cause": None}
        | more
        for rank in ranks
    ]
    return {"verdict": {"state": state, "reason": None, "sentence": sentence, "late": late}}


def page(status: str = "firing", **labels: str) -> ReceivedAlert:
    named = {"alertname": STRAGGLER, "job_id": "demo", "rank": "2", "stage": "data"}
    return ReceivedAlert(status, named | labels, {"summary": "Rank 2 is late."}, 1037.4)


# ---- The built-in page ---------------------------------------------------------------------------


def test_rank_that_stays_named_on_the_page_is_the_verdict(now: list[float], parts: Parts) -> None:
    """It is taken once it has lasted, with the page's own cost; another name starts it anew."""
    watch = page_watch(parts)
    assert watch.verdict(STARTED) is None  # The job is not known yet.
    for rank in (1, 2):
        parts.job = live("straggler", rank)
        assert watch.verdict(STARTED) is None
        now[0] += LATE_SECONDS - 1
        assert watch.verdict(STARTED) is None
    now[0] += 1
    verdict = watch.verdict(STARTED)

    assert verdict is not None
    assert verdict.line() == (
        "verdict: job=demo rank=2 stage=data gpus_lost=0.96 alert=none(page) after=19s"
    )


@pytest.mark.parametrize("ranks", [(), (2,)])
def test_health_takes_time_and_no_interruption(
    now: list[float], parts: Parts, ranks: tuple[int, ...]
) -> None:
    """An even job must stay even; a doubt starts it anew, a rank too mild to wake anybody not."""
    watch = page_watch(parts)
    for state, passes in (("healthy", HEALTHY_SECONDS - 1), ("not_judgeable", 2), ("healthy", 0)):
        parts.job = live(state, *ranks)
        assert watch.verdict(STARTED) is None
        now[0] += passes
        assert watch.verdict(STARTED) is None
    now[0] += HEALTHY_SECONDS
    verdict = watch.verdict(STARTED)

    assert verdict is not None
    assert not verdict.rank
    assert verdict.gpus_lost == pytest.approx(0.964 * len(ranks))


# ---- The alert -----------------------------------------------------------------------------------


def test_first_page_of_the_straggler_is_the_verdict(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank, stage and alert are its labels, the cost is its alert's value; each page is printed."""
    parts.received = [page(alertname="RankskewNodeDown"), page()]
    others = {"labels": page(rank="3").labels, "value": "3e+00"}
    parts.active = [others, {"labels": page().labels, "value": "1.134e+01"}]
    verdict = alert_watch(parts).verdict(1000.0)

    assert verdict is not None
    assert verdict.line() == (
        "verdict: job=demo rank=2 stage=data gpus_lost=11.34 alert=RankskewStraggler after=37s"
    )
    assert "PAGE after 37 s: RankskewStraggler\n  Rank 2 is late." in capsys.readouterr().out


def test_quiet_minute_is_health_and_any_page_is_not(now: list[float], parts: Parts) -> None:
    """Where no rank is slow the job must be judged without a break, and nobody paged."""
    watch = alert_watch(parts, fault="none")
    for is_judged, passes in ((True, HEALTHY_SECONDS - 1), (False, HEALTHY_SECONDS + 1), (True, 0)):
        parts.is_judged = is_judged
        assert watch.verdict(STARTED) is None
        now[0] += passes
        assert watch.verdict(STARTED) is None
    now[0] += HEALTHY_SECONDS
    verdict = watch.verdict(STARTED)
    assert verdict is not None
    assert verdict.line() == (
        "verdict: job=demo no straggler gpus_lost=0.03 judged=60s alert=none after=190s"
    )

    parts.received = [page(alertname="RankskewNodeDown")]
    verdict = watch.verdict(STARTED)
    assert verdict is not None
    assert verdict.what_is_wrong("none") is not None


def test_other_names_are_wrong(parts: Parts) -> None:
    """A page for another rank or another stage is wrong; a resolved one or another alert is not."""
    parts.received = [
        page(),
        page(rank="3"),
        page(stage="forward"),
        page(status="resolved", rank="4"),
        page(alertname="RankskewCommunicationBound", rank="5"),
    ]

    assert alert_watch(parts).wrong_names() == ["rank 3 in data", "rank 2 in forward"]


# ---- Both ----------------------------------------------------------------------------------------

NAMED = Verdict(rank="2", stage="data", gpus_lost=1.0, alert="none(page)", after_seconds=30)
HEALTH = Verdict(gpus_lost=0.0, alert="none(page)", judged_seconds=90, after_seconds=120)


@pytest.mark.parametrize(
    ("fault", "verdict", "wrong"),
    [
        ("data", NAMED, None),
        ("forward", NAMED, "none(page) names rank 2 in data, but rank 2 in forward was slow"),
        ("none", NAMED, "none(page) names rank 2 in data, but no rank was slow"),
        ("data", HEALTH, "none(page) names nobody, but rank 2 in data was slow"),
        ("none", HEALTH, None),
    ],
)
def test_wrong_verdicts_are_told(fault: str, verdict: Verdict, wrong: str | None) -> None:
    """A verdict that is not what was planted is said to be wrong."""
    assert verdict.what_is_wrong(fault) == wrong


def test_page_is_repeated_when_it_says_something_else(
    monkeypatch: pytest.MonkeyPatch, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each new state, name or cause, none for figures or while nothing is known."""
    monkeypatch.setattr("demo.__main__.time.sleep", lambda seconds: None)
    monkeypatch.setattr("demo.__main__.time.monotonic", lambda: 7.0)
    said: Iterator[dict[str, Any] | None] = iter(
        [
            None,
            live("starting", sentence="Cannot judge this job yet."),
            live("starting", sentence="Cannot judge this job yet."),
            live("straggler", 2, sentence="Rank 2 is slow loading data: 0.9 GPUs."),
            live("straggler", 2, sentence="Rank 2 is slow loading data: 1.0 GPUs."),
            live("straggler", 2, sentence="Rank 2 is slow.", cause={"sentence": "it sleeps"}),
            live("straggler", 2, 3, sentence="Ranks 2 and 3 are slow loading data."),
        ]
    )
    watch = page_watch(parts)
    answers = iter([None] * 6 + [HEALTH])
    monkeypatch.setattr(watch, "live", lambda: next(said))
    monkeypatch.setattr(watch, "verdict", lambda started: next(answers))

    assert Demo("data", once=True).wait(watch) is HEALTH
    assert [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "Cannot judge this job yet.",
        "Rank 2 is slow loading data: 0.9 GPUs.",
        "Rank 2 is slow. Cause: it sleeps.",
        "Ranks 2 and 3 are slow loading data.",
    ]
