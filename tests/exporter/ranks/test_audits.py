"""The last audits of the jobs on this node, with room for all users."""

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.audits import KEPT_SECONDS, MOST_AUDITS, Audits
from exporter.ranks.store import Forbidden
from tests.exporter.clock import Clock

USER, OTHER = Peer(1000), Peer(1001)


def jobs(audits: Audits) -> list[str]:
    """Return the jobs whose audits are held."""
    return [one.job_id for one in audits.latest()]


def test_later_audit_replaces_the_earlier() -> None:
    """A check that was mended is shown as it is now."""
    audits = Audits(Clock())
    audits.put("a", {"mtu": "warn"}, USER)
    audits.put("a", {"mtu": "ok"}, USER)

    assert [one.statuses for one in audits.latest()] == [{"mtu": "ok"}]


def test_audit_is_forgotten_after_a_day() -> None:
    """What was true yesterday is not a fact."""
    clock = Clock()
    audits = Audits(clock)
    audits.put("a", {})
    clock.seconds += KEPT_SECONDS
    assert audits.age_seconds(audits.latest()[0]) == KEPT_SECONDS
    clock.seconds += 1

    assert audits.latest() == []


def test_audit_of_another_user_is_not_replaced() -> None:
    """Nobody can call another's job healthy."""
    audits = Audits(Clock())
    audits.put("a", {"mtu": "warn"}, USER)

    with pytest.raises(Forbidden, match="set RANKSKEW_JOB_ID to a unique name"):
        audits.put("a", {"mtu": "ok"}, OTHER)
    assert audits.latest()[0].statuses == {"mtu": "warn"}


def test_user_with_many_audits_makes_room() -> None:
    """One user's thousand jobs cannot drop another's audit."""
    audits = Audits(Clock())
    audits.put("theirs", {}, OTHER)
    for number in range(10):
        audits.put(f"job-{number}", {}, USER)

    assert jobs(audits) == ["job-9", "theirs"]
    assert len(jobs(audits)) == MOST_AUDITS
