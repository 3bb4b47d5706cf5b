"""From a claim to what is done, written down, remembered and taken back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.errors import StartError
from rankskew.act.actor import Actor
from rankskew.act.audit import AuditLog
from rankskew.act.evidence import NodeEvidence
from rankskew.act.model import Limits
from rankskew.client.prometheus import Prometheus
from tests.rankskew.act.fake_site import FakeSite, FakeTarget, events
from tests.rankskew.act.nodes import HOUR, LIMITS, NOW

N1 = "n1:9917"


class Desk:
    """An actor of *site* and *target*, with its log; begin() again is a restart."""

    def __init__(self, directory: Path, url: str, site: FakeSite) -> None:
        self.path, self.url, self.site = directory / "act.jsonl", url, site
        self.target, self.said = FakeTarget(), list[str]()
        self.log: AuditLog | None = None
        self.begin()

    def begin(self, for_real: bool = True, limits: Limits = LIMITS) -> None:
        self.end()
        self.log = AuditLog(self.path)
        evidence = NodeEvidence(Prometheus(self.url), 24 * HOUR)
        self.actor = Actor(evidence, [self.target], limits, self.log, for_real, self.said.append)

    def end(self) -> None:
        if self.log is not None:
            self.log.close()

    def look(self, *claims: str, minutes: float = 0.0) -> list[str]:
        """Claim, look so many minutes from NOW, and return all that is written by then."""
        self.site.now = NOW + 60 * minutes
        self.actor.claim(claims, self.site.now)
        self.actor.look(self.site.now)
        assert self.log is not None
        return events(self.log.lines())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """n1 is late for an hour from NOW - 40 minutes on, in a cluster of 40 nodes."""
    site = FakeSite()
    for number in range(40):
        site.node(f"n{number}", *(["llama"] if number in (1, 2) else []))
    site.late((NOW - 2400, NOW + 1200))
    with site.serve() as url:
        found = Desk(tmp_path, url, site)
        yield found
        found.end()


def test_confirmed_claim_holds_the_node_once(desk: Desk) -> None:
    """It is written down first, done, and a replay changes nothing."""
    for _ in range(3):
        said = desk.look(N1)

    assert said == ["hold n1 of_node"]
    assert desk.target.told == [("hold", "n1")]


def test_claim_that_prometheus_does_not_share_does_nothing(desk: Desk) -> None:
    """Whoever has the token can name any node; that is said, once, and forgotten."""
    for minutes in (0, 3, 6, 9):
        said = desk.look(*(["n7:9917", "made:up"] if not minutes else []), minutes=minutes)

    assert said == []
    assert desk.target.told == []
    assert desk.said == [
        f"leaves {name!r}: only Alertmanager says that an alert fires on it"
        for name in ("n7:9917", "made:up")
    ]


def test_nobody_is_held_whom_nobody_claims(desk: Desk) -> None:
    """An alert that is silenced in Alertmanager comes to nothing."""
    assert desk.look() == []


def test_claim_is_watched_until_it_is_enough(desk: Desk) -> None:
    """Alertmanager repeats itself after hours; each reason to wait is written down once."""
    desk.site.series.pop("ALERTS")
    desk.site.late((NOW - 600, NOW + 1800))
    for minutes in range(0, 30, 2):
        said = desk.look(*([N1] if not minutes else []), minutes=minutes)

    assert said == ["wait n1 not_yet", "hold n1 of_node"]


def test_watch_survives_a_restart_and_ends_with_the_alert(desk: Desk) -> None:
    desk.site.series.pop("ALERTS")
    desk.site.late((NOW - 600, NOW + 60))
    desk.look(N1)
    desk.begin()

    assert desk.look(minutes=20) == ["wait n1 not_yet", "dismiss n1 quiet"]
    desk.begin()
    assert desk.look(minutes=30) == ["wait n1 not_yet", "dismiss n1 quiet"]


def test_dry_run_says_what_it_would_do_and_touches_nothing(desk: Desk) -> None:
    """Afterwards, for real, nothing is held yet."""
    desk.begin(for_real=False)

    assert desk.look(N1) == ["hold n1 of_node"]
    assert desk.target.told == []
    assert desk.said[-1].endswith(
        "Z fake: hold n1 (dry run): slow GPU (clock) for 40m, 1 time in 1d; last rank 9 on n1:9917 "
        f"of job llama, incident {desk.said[-1][-14:]}"
    )
    desk.begin(for_real=True)
    assert desk.look(N1) == ["hold n1 of_node", "hold n1 of_node"]
    assert desk.target.told == [("hold", "n1")]


def test_held_node_is_remembered_and_freed(desk: Desk) -> None:
    """A restart forgets nothing; once it was judged for an hour and not late, it is freed."""
    desk.look(N1)
    desk.site.add("rankskew_job_coverage_ratio", (NOW, NOW + 10 * HOUR), instance=N1)
    desk.begin()
    assert desk.look(N1, minutes=70) == ["hold n1 of_node"]

    assert desk.look(minutes=85) == ["hold n1 of_node", "free n1 recovered"]
    assert desk.target.told == [("hold", "n1"), ("free", "n1")]
    desk.begin()
    assert desk.look(N1, minutes=86) == ["hold n1 of_node", "free n1 recovered"]


def test_what_a_person_has_changed_is_left_alone(desk: Desk) -> None:
    """And what was before does not count against the node again."""
    desk.look(N1)
    desk.target.held.clear()

    assert desk.look(N1, minutes=1)[1:] == ["gone n1 not_ours"]
    assert desk.look(N1, minutes=5)[2:] == ["wait n1 not_yet"]
    assert desk.target.told == [("hold", "n1")]


def test_what_fails_is_not_held_and_tried_again_later(desk: Desk) -> None:
    """Half of it may be done, so it is taken back."""
    desk.target.fails = "the scheduler is away."
    for minutes in (0, 1, 2):
        said = desk.look(N1, minutes=minutes)
    assert said == ["hold n1 of_node", "failed n1 hold"]
    assert desk.target.told == [("hold", "n1"), ("free", "n1")]
    desk.site.late((NOW - 2400, NOW + 3600))
    desk.target.fails = ""

    assert desk.look(minutes=31)[2:] == ["hold n1 of_node"]
    assert desk.target.held == {"n1"}


def test_node_that_cannot_be_freed_stays_held(desk: Desk) -> None:
    """Since when it was held is not forgotten."""
    desk.begin(limits=replace(LIMITS, again_seconds=2 * HOUR))
    desk.look(N1)
    desk.target.fails = "the scheduler is away."
    assert desk.look(minutes=121)[1:] == ["free n1 again", "failed n1 free"]
    desk.target.fails = ""
    desk.begin(limits=replace(LIMITS, again_seconds=2 * HOUR))

    assert desk.look(minutes=122)[3:] == ["free n1 again"]


def test_limit_holds_over_nodes_and_partitions(desk: Desk) -> None:
    """The third of three nodes waits; so does one whose partition is too small."""
    for name in ("n5", "n6", "n7"):
        desk.site.late((NOW - 2400, NOW + 1200), instance=f"{name}:9917", job_id="bert")
    desk.target.partitions = {"partition small": frozenset({"n5", "n8"})}
    said = desk.look("n5:9917", "n6:9917", "n7:9917", N1)

    assert said == [
        "hold n1 of_node",
        "wait n5 most_percent",
        "hold n6 of_node",
        "wait n7 most_nodes",
    ]


def test_nothing_is_done_without_prometheus(desk: Desk) -> None:
    """No answer proves neither a fault nor a recovery."""
    desk.look(N1)
    desk.site.is_down = True

    assert desk.look("n5:9917", minutes=500) == ["hold n1 of_node"]
    assert "nothing is done" in desk.said[-1]


def test_line_is_on_the_disk_before_it_is_done(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses its power afterwards knows what it holds."""
    told: list[int] = []
    monkeypatch.setattr("rankskew.act.audit.os.fsync", lambda _: told.append(len(desk.target.told)))

    assert desk.look(N1) == ["hold n1 of_node"]
    assert told == [0]


def test_nothing_is_done_that_cannot_be_written_down(desk: Desk) -> None:
    """A full disk ends the command before it acts."""
    assert desk.log is not None
    desk.log.close()
    desk.log = None
    with Path("/dev/full").open("wb") as full:
        desk.actor._log._file = full.fileno()
        desk.actor.claim([N1], NOW)
        with pytest.raises(StartError, match=r"cannot write .*: No space left on device"):
            desk.actor.look(NOW)
    assert desk.target.told == []
