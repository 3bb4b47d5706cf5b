"""What is read of a job, where a real Prometheus would take too long to show it."""

from exporter.report.history import Line
from exporter.report.job_reading import restarts


def test_restart_is_seen_by_the_age_of_the_oldest_process() -> None:
    """If that is younger than the last look, all processes are new."""
    ages = Line({}, [0, 60, 120, 600, 660], [100, 160, 30, 20, 80])

    assert restarts([ages], 15) == [120, 600]


def test_lost_node_is_no_restart() -> None:
    """The oldest process of the other nodes may be a little younger, or much."""
    ages = Line({}, [0, 60, 120, 180], [1000, 1060, 1090, 500])

    assert restarts([ages], 15) == []
