"""The states of a job are one closed set, and each one that needs somebody has a runbook."""

from exporter.live.states import RUNBOOKS, STATES, alert_of


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


def test_only_states_that_last_raise_an_alert() -> None:
    """A start and a job without the probe have a runbook and no alert."""
    quiet = {state for state in STATES if alert_of(state) is None}

    assert quiet == {"starting", "healthy", "finished", "no_probe"}
    assert quiet & set(RUNBOOKS) == {"starting", "no_probe"}
    assert alert_of("straggler") == "RankskewStraggler"
