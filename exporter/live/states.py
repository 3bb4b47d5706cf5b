"""The state of a job in one word, from a closed set that every part of Rankskew uses."""

from typing import Final

HUNG, EXPORTER_DOWN, RANKS_MISSING = "hung", "exporter_down", "ranks_missing"
STARTING, NOT_JUDGEABLE = "starting", "not_judgeable"
SLOW_NODE, STRAGGLER, ROTATING = "slow_node", "straggler", "rotating"
HEALTHY, FINISHED, NO_PROBE = "healthy", "finished", "no_probe"

# What people call each state, the most urgent first. Only Prometheus can know that an exporter is
# down. The dashboards and the page's scripts repeat this; tests/repo/test_states_agree.py compares.
WORDS: Final = {
    HUNG: "Hung",
    EXPORTER_DOWN: "Exporter down",
    RANKS_MISSING: "Ranks missing",
    STARTING: "Starting",
    NOT_JUDGEABLE: "Not judgeable",
    SLOW_NODE: "Slow node",
    STRAGGLER: "Straggler",
    ROTATING: "Rotating",
    HEALTHY: "Healthy",
    FINISHED: "Finished",
    NO_PROBE: "No probe",
}
STATES: Final = tuple(WORDS)

# The runbook to read in each state, named after its alert.
RUNBOOKS: Final = {
    HUNG: "RankskewJobHung",
    EXPORTER_DOWN: "RankskewExporterDown",
    RANKS_MISSING: "RankskewRanksMissing",
    STARTING: "RankskewSlowStart",
    NOT_JUDGEABLE: "RankskewNotJudgeable",
    SLOW_NODE: "RankskewSlowNode",
    STRAGGLER: "RankskewStraggler",
    ROTATING: "RankskewRotatingImbalance",
    NO_PROBE: "RankskewNotJudgeable",
}
# Those in which Prometheus raises that alert if they last. A start raises one only if it is slow.
ALERTING: Final = frozenset(RUNBOOKS) - {STARTING, NO_PROBE}


def alert_of(state: str) -> str | None:
    """Return the alert that Prometheus raises if a job stays in *state*; None if it raises none."""
    return RUNBOOKS[state] if state in ALERTING else None
