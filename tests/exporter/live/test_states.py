"""The states of a job are one closed set, and each one that needs somebody has a runbook."""

from alerts import build_index
from exporter.live.states import ALERTING, RUNBOOKS, STATES, alert_of


def test_states_are_the_closed_set() -> None:
    """Rules, dashboards, the page and the terminal use these names, the most urgent first."""
    assert STATES == (
        "hung",
        "exporter_down",
        "ranks_missing",
        "starting",
        "not_judgeable",
        "slow_node",
        "straggler",
        "rotating",
        "healthy",
        "finished",
        "no_probe",
    )


def test_runbooks_are_those_of_alerts() -> None:
    """Every state but the quiet ones leads to the runbook of an alert that exists."""
    assert set(STATES) - set(RUNBOOKS) == {"healthy", "finished"}
    assert set(RUNBOOKS.values()) <= set(build_index.alerts())


def test_only_states_that_last_raise_an_alert() -> None:
    """A start and a job without the probe have a runbook and no alert."""
    assert {state for state in STATES if alert_of(state)} == set(ALERTING)
    assert alert_of("starting") is None
    assert alert_of("no_probe") is None
    assert alert_of("straggler") == "RankskewStraggler"
