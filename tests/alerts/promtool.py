"""Run the shipped rules over input series, with promtool as the judge."""

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics_core import Metric

RULES = sorted((Path(__file__).parents[2] / "alerts" / "rules").glob("*.yaml"))
# Each group follows those that it reads; a real Prometheus evaluates groups in parallel.
GROUPS = [
    *("thresholds", "ranks", "late", "hang", "hardware"),
    *("coverage", "cost", "exporter", "state", "info", "nodes"),
]
# What promtool says of an expectation that is not met: the expression, the time, and the samples.
GOT = re.compile(r'expr: "(.*)", time: (\S+),\n +exp: ?.*\n +got: ?(.*)')
SAMPLE = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ([^ ,]+)')
LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
# promtool prints what it got only if something else was expected.
NEVER = [{"labels": '{never="there"}', "value": 1}]

Series = Sequence[dict[str, str]]
# The labels and the value of each sample, by the expression and the time, in seconds.
Answers = dict[tuple[str, float], list[tuple[dict[str, str], float]]]


@dataclass(frozen=True)
class Expect:
    """*expr* yields exactly *samples*, by their labels, *at_seconds*."""

    expr: str
    at_seconds: float
    samples: dict[str, float]


class ScrapedPages:
    """The pages that exporters have shown, one scrape after the other, as series for promtool."""

    def __init__(self) -> None:
        self._shown: dict[str, list[str]] = {}
        self._last: dict[str, set[str]] = {}

    def scrape(self, number: int, instance: str, metrics: Iterable[Metric]) -> None:
        """Add scrape *number* of *instance*; a series that it no longer shows becomes stale."""
        page = {
            _series(sample.name, {**sample.labels, "instance": instance}): sample.value
            for metric in metrics
            for sample in metric.samples
        }
        for name in self._last.get(instance, set()) - page.keys():
            self._shown[name].append("stale")
        for name, value in page.items():
            values = self._shown.setdefault(name, [])
            values += ["_"] * (number - len(values))
            values.append(f"{value:.9g}")
        self._last[instance] = set(page)

    def series(self) -> list[dict[str, str]]:
        """Return them as the input series of a test."""
        return [
            {"series": name, "values": " ".join(values)} for name, values in self._shown.items()
        ]


def _series(name: str, labels: Mapping[str, str]) -> str:
    """Return a series as text; a label is quoted as in JSON."""
    both = ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
    return f"{name}{{{both}}}"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool and return what it said, whether it succeeded or not."""
    # With Go's default, collecting garbage takes a quarter of a run that needs little memory.
    environment = {**os.environ, "GOGC": "off", "GOMEMLIMIT": "400MiB"}
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, env=environment
    )


def assert_rules(
    folder: Path, series: Series, expected: Iterable[Expect], groups: Sequence[str] = GROUPS
) -> None:
    """Assert what *groups* make of *series*, sampled and evaluated every 15 seconds."""
    asked = [
        _asked(
            one.expr,
            one.at_seconds,
            [{"labels": labels, "value": value} for labels, value in one.samples.items()],
        )
        for one in expected
    ]
    rules = [path for path in RULES if path.stem in groups]
    done = _run(folder, series, asked, rules, groups)
    assert done.returncode == 0, done.stdout + done.stderr


def answers(
    folder: Path,
    series: Series,
    asked: Iterable[tuple[str, float]],
    rules: Sequence[Path] = RULES,
    groups: Sequence[str] = GROUPS,
    interval_seconds: float = 15.0,
) -> Answers:
    """Return what each expression that is *asked* yields at its time, after all *rules*."""
    wanted = set(asked)
    tests = [_asked(expr, at_seconds, NEVER) for expr, at_seconds in sorted(wanted)]
    done = _run(folder, series, tests, rules, groups, interval_seconds)
    found = {
        (json.loads(f'"{expr}"'), _seconds(time)): [
            ({name: ast.literal_eval(text) for name, text in LABEL.findall(labels)}, float(value))
            for labels, value in SAMPLE.findall(got)
        ]
        for expr, time, got in GOT.findall(done.stdout + done.stderr)
    }
    assert found.keys() == wanted, (done.stdout + done.stderr)[:4000]
    return found


def _asked(expr: str, at_seconds: float, samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"expr": expr, "eval_time": f"{at_seconds:g}s", "exp_samples": samples}


@cache
def _groups_of(file: Path) -> list[str]:
    return [group["name"] for group in yaml.safe_load(file.read_text())["groups"]]


def _run(
    folder: Path,
    series: Series,
    asked: list[dict[str, Any]],
    rules: Sequence[Path],
    groups: Sequence[str],
    interval_seconds: float = 15.0,
) -> subprocess.CompletedProcess[str]:
    interval, files = f"{interval_seconds:g}s", {path.stem: path for path in RULES}
    tests = {
        "rule_files": [str(path) for path in rules],
        "group_eval_order": [each for name in groups for each in _groups_of(files[name])],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": list(series), "promql_expr_test": asked}],
    }
    path = folder / "promtool.yaml"
    path.write_text(json.dumps(tests))  # JSON is YAML, and ten times faster to write.
    return promtool("test", "rules", str(path))


def _seconds(duration: str) -> float:
    """Return the seconds of a *duration* as promtool prints it: 1m15s."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([hms])", duration))
