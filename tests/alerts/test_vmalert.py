"""The rules give the same answers in VictoriaMetrics' vmalert as in Prometheus."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from generators.listed import alert_rules
from rankskew.commands.files import write_files
from tests.alerts.promtool import GROUPS, RULES, answers
from tests.alerts.vmalert import (
    Labels,
    Samples,
    VictoriaMetrics,
    replay,
    replayable,
    vmalert,
    with_open_windows,
)
from tests.alerts.vmalert_inputs import SCRAPE_SECONDS, in_promtool, of_alerts, of_jobs, since_begin

pytestmark = pytest.mark.nightly

# Long enough for an alert that waits ten minutes.
LAST_SECONDS = 660.0
TIMES = [number * SCRAPE_SECONDS for number in range(int(LAST_SECONDS / SCRAPE_SECONDS) + 1)]
RECORDED = '{__name__=~"ALERTS|[a-z_]*:.+"}'
STATE = "ALERTS_FOR_STATE"
NAME = re.compile(r"\w+:[\w:]+")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The rule files as a user of vmalert gets them, in the order of promtool's groups."""
    directory = tmp_path_factory.mktemp("bundle")
    write_files(directory)
    files = {path.stem: path for path in (directory / "alerts" / "rules").glob("*.yaml")}
    assert files.keys() == {path.stem for path in RULES}
    return [files[group] for group in GROUPS if group in files]


def test_vmalert_loads_the_rules(rules: list[Path]) -> None:
    """Every expression and template is one that vmalert knows."""
    done = vmalert("-dryRun", *(f"-rule={path}" for path in rules))

    assert done.returncode == 0, done.stderr


def test_every_rule_gives_the_answer_of_prometheus(rules: list[Path], tmp_path: Path) -> None:
    """At each evaluation of jobs and alerts: the same series, and values to a millionth.

    To 3 % where Prometheus extrapolates, as after a restart within the window.
    """
    rules = replayable(rules, tmp_path / "rules")
    told = assert_same(rules, of_jobs() | of_alerts(False), tmp_path)

    page = {("alertname", "RankskewStraggler"), ("alertstate", "firing"), ("job_id", "late")}
    assert any(page <= labels for labels in told)


def test_every_alert_gives_the_answer_of_prometheus(rules: list[Path], tmp_path: Path) -> None:
    """Also those that are tested on recorded series, which no rule may record over."""
    alerts = replayable(rules, tmp_path / "rules", "alert")

    assert_same(alerts, of_alerts(True), tmp_path)


def assert_same(
    rules: list[Path], inputs: Mapping[Labels, Samples], folder: Path
) -> dict[Labels, Samples]:
    """Assert that vmalert says what Prometheus says, given *inputs* and what Prometheus records.

    Return what vmalert says.
    """
    open_windows = with_open_windows(rules, folder / "prometheus")
    recorded, asked_last = in_prometheus(folder, open_windows, inputs)
    inputs, recorded = on_the_clock(inputs), on_the_clock(recorded)
    with VictoriaMetrics(folder / "read") as read, VictoriaMetrics(folder / "write") as write:
        read.write(inputs)
        read.write({labels: with_ends(samples) for labels, samples in recorded.items()})
        replay(rules, read, write, LAST_SECONDS, SCRAPE_SECONDS)
        told = write.series()

    not_compared = {STATE} | reading_themselves(rules)
    late = {name_of(labels) for labels in asked_last}
    expected = without(recorded, late) | on_the_clock(asked_last)
    told = without(told, not_compared)
    misses = differences(without(expected, not_compared), told, extrapolating(rules))
    assert not misses, "\n".join(misses.values())
    return told


def without(series: Mapping[Labels, Samples], names: set[str]) -> dict[Labels, Samples]:
    """Return *series* but those with one of *names*."""
    return {labels: each for labels, each in series.items() if name_of(labels) not in names}


def in_prometheus(
    folder: Path, rules: list[Path], inputs: Mapping[Labels, Samples]
) -> tuple[dict[Labels, Samples], dict[Labels, Samples]]:
    """Return what Prometheus records of *inputs*, and what it says to late rules in the end."""
    late = {expr: labels for labels, expr in late_rules(rules)}
    series = [
        {"series": series_of(labels), "values": in_promtool(samples)}
        for labels, samples in inputs.items()
    ]
    asked = [(expr, at) for expr in (RECORDED, *late) for at in TIMES]
    recorded: dict[Labels, Samples] = defaultdict(dict)
    asked_last: dict[Labels, Samples] = defaultdict(dict)
    for (expr, at), found in answers(folder, series, asked, rules).items():
        for named, value in found:
            labels = frozenset(named.items())
            if expr in late:
                asked_last[frozenset((named | dict(late[expr])).items())][at] = value
            elif labels not in inputs:
                recorded[labels][at] = value
    return recorded, asked_last


def on_the_clock(series: Mapping[Labels, Samples]) -> dict[Labels, Samples]:
    """Return *series* with timestamps of VictoriaMetrics' clock."""
    return {labels: since_begin(labels, samples) for labels, samples in series.items()}


def rules_in(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the recording rules of *files*, in order."""
    return [rule for path in files for rule in alert_rules.rules(path) if "record" in rule]


def late_rules(rules: Iterable[Path]) -> list[tuple[Labels, str]]:
    """Return the name and labels, and the expression, of each rule that reads a later one's answer.

    In one and the same moment its answer is a matter of order: it is asked when all have spoken.
    """
    recording = rules_in(rules)
    first = {rule["record"]: at for at, rule in reversed(list(enumerate(recording)))}
    return [
        (frozenset({"__name__": rule["record"], **rule.get("labels", {})}.items()), rule["expr"])
        for at, rule in enumerate(recording)
        if any(first.get(name, -1) >= at for name in NAME.findall(rule["expr"]))
        or "ALERTS{" in rule["expr"]  # Which may be of any group.
    ]


def reading_themselves(rules: Iterable[Path]) -> set[str]:
    """Return what reads its own last answer, which here is what Prometheus says now."""
    return {r["record"] for r in rules_in(rules) if r["record"] in NAME.findall(r["expr"])}


def with_ends(samples: Samples) -> Samples:
    """Return *samples* with the marker that Prometheus adds when a rule gives nothing any more."""
    ends = {at + SCRAPE_SECONDS: None for at in samples if at + SCRAPE_SECONDS not in samples}
    return {**samples, **ends}


def extrapolating(rules: Iterable[Path]) -> set[str]:
    """Return what is recorded with `delta`: Prometheus extrapolates where a window is not full."""
    return {
        rule["record"]
        for rule in rules_in(rules)
        if "delta(" in rule["expr"] or "increase(" in rule["expr"]
    }


def differences(
    expected: Mapping[Labels, Samples], told: Mapping[Labels, Samples], extrapolated: set[str]
) -> dict[str, str]:
    """Return, for each name that differs: how often, and one example."""
    misses: dict[str, list[str]] = defaultdict(list)
    for labels in sorted(expected.keys() | told.keys(), key=sorted):
        want, got = expected.get(labels, {}), told.get(labels, {})
        for at in sorted(want.keys() | got.keys()):
            tolerance = 0.03 if name_of(labels) in extrapolated else 1e-6
            if not same(want.get(at), got.get(at), tolerance):
                misses[name_of(labels)].append(
                    f"{series_of(labels)} at {at:g} s:"
                    f" Prometheus {want.get(at)}, vmalert {got.get(at)}"
                )
    return {
        name: f"{name} differs {len(texts)} times: {texts[0]}" for name, texts in misses.items()
    }


def same(want: float | None, got: float | None, tolerance: float) -> bool:
    """Say whether two values are the same to *tolerance*, or to nothing where they cancel."""
    if want is None or got is None:
        return want is got
    both_nan = math.isnan(want) and math.isnan(got)
    return both_nan or math.isclose(want, got, rel_tol=tolerance, abs_tol=1e-8)


def name_of(labels: Labels) -> str:
    return dict(labels)["__name__"]


def series_of(labels: Labels) -> str:
    """Return *labels* in Prometheus' notation."""
    rest = ",".join(f'{name}="{value}"' for name, value in sorted(labels) if name != "__name__")
    return f"{name_of(labels)}{{{rest}}}"
