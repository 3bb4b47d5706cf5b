"""A short run of the health check's benchmark."""

from pathlib import Path

import pytest

from benchmarks.health_check import OURS, cpu_milliseconds, measure
from fleet_simulator.stack.process import StackError


def test_image_check_costs_less_than_urllib(tmp_path: Path) -> None:
    """Each way finds a real exporter healthy; ours is not the costliest, which comes first."""
    rows = measure(tmp_path, rounds=2, intervals=1, seconds=0.1)
    costs = {row["what"]: row["median"] for row in rows}

    assert rows[0]["what"] == "Python with urllib, over HTTP"
    assert costs[OURS] < costs["Python with urllib, over HTTP"] / 2
    assert sum("the exporter in 0.1 s" in what for what in costs) == 2


def test_failing_check_is_not_measured() -> None:
    """A command that finds nobody healthy would be cheap."""
    with pytest.raises(StackError, match="healthy exporter is not"):
        cpu_milliseconds(["/bin/false"])
