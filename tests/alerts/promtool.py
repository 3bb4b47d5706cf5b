"""Run the shipped rules over input series, with promtool as the judge."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

RULES = sorted((Path(__file__).parents[2] / "alerts" / "rules").glob("*.yaml"))
# A group after those that it reads; a real Prometheus evaluates them side by side.
GROUPS = [
    "thresholds",
    "ranks",
    "late",
    "hang",
    "hardware",
    "coverage",
    "cost",
    "exporter",
    "state",
    "info",
]


@dataclass(frozen=True)
class Expect:
    """*expr* yields exactly *samples*, by their labels, *at_seconds*."""

    expr: str
    at_seconds: float
    samples: dict[str, float]


def eval_order(groups: Sequence[str] = GROUPS) -> list[str]:
    """Return the names of the groups in the files of *groups*, in order."""
    files = {path.stem: path for path in RULES}
    return [
        group["name"]
        for name in groups
        for group in yaml.safe_load(files[name].read_text())["groups"]
    ]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool and return what it said, whether it succeeded or not."""
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def assert_rules(
    folder: Path,
    series: Sequence[dict[str, str]],
    expected: Sequence[Expect],
    interval_seconds: float = 15.0,
    groups: Sequence[str] = GROUPS,
) -> None:
    """Assert what *groups* make of *series*, sampled and evaluated every *interval_seconds*."""
    interval = f"{interval_seconds:g}s"
    tests = {
        "rule_files": [str(path) for path in RULES if path.stem in groups],
        "group_eval_order": eval_order(groups),
        "evaluation_interval": interval,
        "tests": [
            {
                "interval": interval,
                "input_series": list(series),
                "promql_expr_test": [
                    {
                        "expr": one.expr,
                        "eval_time": f"{one.at_seconds:g}s",
                        "exp_samples": [
                            {"labels": labels, "value": value}
                            for labels, value in one.samples.items()
                        ],
                    }
                    for one in expected
                ],
            }
        ],
    }
    path = folder / "promtool.yaml"
    path.write_text(json.dumps(tests))  # JSON is YAML, and ten times faster to write.
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
