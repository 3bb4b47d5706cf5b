"""The benchmark of the audit cannot call a missed plant found."""

from typing import Any

import pytest

from benchmarks.audit.__main__ import row
from benchmarks.audit.plants import PLANTS, RANKS, Plant, node_of
from rank_probe.audit.report import CHECKS


def document(**statuses: str) -> dict[str, Any]:
    """Return what an audit prints, with a finding for each check."""
    return {
        "checks": [
            {"check": check, "status": status, "findings": [{"status": status, "reason": "why"}]}
            for check, status in statuses.items()
        ]
    }


@pytest.mark.parametrize(
    ("check", "said", "found", "others"),
    [
        ("mtu", document(mtu="warn", numa="ok"), "yes", None),
        ("mtu", document(mtu="ok", numa="fail"), "NO", "numa"),
        ("mtu", document(mtu="not_checked"), "NO", None),
        ("", document(mtu="ok", cpus="warn"), None, "cpus"),
    ],
)
def test_row_says_what_was_found(
    check: str, said: dict[str, Any], found: str | None, others: str | None
) -> None:
    """A warning or failure of the planted check, and those of others beside it."""
    told = row(Plant("x", check), said)

    assert (told["found"], told["others found"]) == (found, others)


def test_every_check_but_none_is_planted() -> None:
    """Each check has a plant under a real launcher, after one launch without any."""
    assert {plant.check for plant in PLANTS} == {"", *(check.__name__ for check in CHECKS)}
    assert PLANTS[0].check == ""
    assert [node_of(rank) for rank in range(RANKS)] == ["node-a", "node-a", "node-b", "node-b"]
