"""What is read of a job, where a real Prometheus would take too long to show it."""

from rankskew.report.job import restarts


def test_restart_is_seen_by_the_age_of_the_oldest_process() -> None:
    """If that is younger than the last look, all processes are new."""
    ages = [(0.0, 100.0), (60.0, 160.0), (120.0, 30.0), (600.0, 20.0), (660.0, 80.0)]

    assert restarts(ages, 15) == [120, 600]


def test_lost_node_is_no_restart() -> None:
    """The oldest process of the other nodes may be a little younger, or much."""
    ages = [(0.0, 1000.0), (60.0, 1060.0), (120.0, 1090.0), (180.0, 500.0)]

    assert restarts(ages, 15) == []
