"""The figures behind the causes are of series that exist, in expressions that Prometheus takes."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from exporter.advice import STAGE, advice
from exporter.diagnose.figures import GPU, MEASURES, NODE, RANK, UNITS, Measure, measures

METRICS = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
EVERY = [measure for those in MEASURES.values() for measure in those]


@pytest.mark.parametrize("measure", EVERY, ids=lambda measure: measure.name)
def test_figure_is_of_a_series_that_exists(measure: Measure) -> None:
    """A renamed metric would silently lose the evidence."""
    expression = measure.expression

    assert "WHERE" in expression
    for name in re.findall(r"rankskew_\w+", expression):
        assert f"`{name}`" in METRICS
    assert measure.unit in UNITS
    assert measure.of in (RANK, GPU, NODE)


def test_every_cause_that_is_not_a_mere_stage_has_a_figure() -> None:
    """But for extra duties, whose figure is the time in the stage, which every finding has."""
    for cause, entry in advice().items():
        for detail, known_by in entry.known_by.items():
            if known_by != STAGE and cause != "extra_duties":
                assert measures(cause, detail), (cause, detail)


def test_expressions_are_what_prometheus_takes(tmp_path: Path) -> None:
    """promtool parses each."""
    path = tmp_path / "rules.yaml"
    where = 'cluster="eu",instance="n2:9917"'
    rules = [
        {
            "record": "a:b:c",
            "expr": each.expression.replace("WHERE", where),
            "labels": {"n": str(n)},
        }
        for n, each in enumerate(EVERY)
    ]
    path.write_text(yaml.safe_dump({"groups": [{"name": "figures", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
