"""Run the shipped rules over input series, with promtool as the judge."""

import ast
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
LABEL = r'(\w+)=("(?:[^"\\]|\\.)*")'
SAMPLE = r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ([^,\s]+)'


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
    asked = [
        {
            "expr": one.expr,
            "eval_time": f"{one.at_seconds:g}s",
            "exp_samples": [
                {"labels": labels, "value": value} for labels, value in one.samples.items()
            ],
        }
        for one in expected
    ]
    done = _test(folder, series, asked, interval_seconds, groups)
    assert done.returncode == 0, done.stdout + done.stderr


def answer(
    folder: Path, series: Sequence[dict[str, str]], expr: str, at_seconds: float
) -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of what *expr* yields *at_seconds*, after all rules.

    promtool prints a result only if it differs from what is expected, so nothing is expected.
    """
    at = {"eval_time": f"{at_seconds:g}s"}
    done = _test(folder, series, [{"expr": expr, **at}, {"expr": "vector(42)", **at}])
    *got, last = re.findall(r"^ *got: (.*)$", done.stdout + done.stderr, re.MULTILINE) or [""]
    assert last == "{} 4.2E+01", done.stdout + done.stderr  # Else it did not finish.
    return [
        ({name: ast.literal_eval(text) for name, text in re.findall(LABEL, labels)}, float(value))
        for labels, value in re.findall(SAMPLE, got[0] if got else "")
    ]


def _test(
    folder: Path,
    series: Sequence[dict[str, str]],
    asked: Sequence[dict[str, Any]],
    interval_seconds: float = 15.0,
    groups: Sequence[str] = GROUPS,
) -> subprocess.CompletedProcess[str]:
    interval = f"{interval_seconds:g}s"
    tests = {
        "rule_files": [str(path) for path in RULES if path.stem in groups],
        "group_eval_order": eval_order(groups),
        "evaluation_interval": interval,
        "tests": [
            {"interval": interval, "input_series": list(series), "promql_expr_test": list(asked)}
        ],
    }
    path = folder / "promtool.yaml"
    path.write_text(json.dumps(tests))  # JSON is YAML, and ten times faster to write.
    return promtool("test", "rules", str(path))
