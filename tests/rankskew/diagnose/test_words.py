"""Times and causes as people say them."""

from rankskew.diagnose.model import Finding
from rankskew.diagnose.words import rows


def test_incident_that_is_over_has_an_end() -> None:
    """At a time of day, or in a trace that has none."""
    over = Finding("gc", "It was.", since_seconds=600.0, until_seconds=300.0)

    assert dict(rows(over, 1_795_420_800.0))["Since"].endswith(" UTC) until 5 min ago")
    assert dict(rows(over, None))["Since"] == "10 min before the end until 5 min before it"


def test_cause_that_is_not_known_accounts_for_nothing() -> None:
    """A share of 0% would be one more number to wonder about."""
    found = Finding("unknown", "It was.", cause="unknown", cause_text="nothing explains it")

    assert dict(rows(found, None))["Cause"] == "not known: nothing explains it."
