"""The rules give the same answers in VictoriaMetrics' vmalert as in Prometheus."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from rankskew.files.write import RuleFormat, write_files
from tests.alerts.promtool import GROUPS, RULES, eval_order, promtool
from tests.alerts.vmalert import (
    UNITS,
    Labels,
    Samples,
    VictoriaMetrics,
    replay,
    replayable,
    vmalert,
    with_open_windows,
)
from tests.alerts.vmalert_inputs import (
    SCRAPE_SECONDS,
    in_promtool,
    labels_of,
    of_alerts,
    of_jobs,
    since_begin,
)

# Long enough for an alert that waits ten minutes.
LAST_SECONDS = 660.0
TIMES = [number * SCRAPE_SECONDS for number in range(int(LAST_SECONDS / SCRAPE_SECONDS) + 1)]
RECORDED = '{__name__=~"ALERTS|[a-z_]*:.+"}'
STATE = "ALERTS_FOR_STATE"
NAME = re.compile(r"\w+:[\w:]+")
# What promtool says of a test that fails: the expression, the time, and the samples.
GOT = re.compile(r'expr: "(.*)", time: (\S+),\n +exp: ?.*\n +got: ?(.*)')
SAMPLE = re.compile(r'(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}) ([^ ,]+)')


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The rule files as a user of vmalert gets them, in the order of promtool's groups."""
    directory = tmp_path_factory.mktemp("bundle")
    write_files(directory, wanted=RuleFormat(vmalert=True))
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
    answers = assert_same(rules, of_jobs() | of_alerts(False), tmp_path)

    page = {("alertname", "RankskewStraggler"), ("alertstate", "firing"), ("job_id", "late")}
    assert any(page <= labels for labels in answers)


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
        answers = write.series()

    not_compared = {STATE} | reading_themselves(rules)
    answers = {
        labels: samples
        for labels, samples in answers.items()
        if name_of(labels) not in not_compared
    }
    late = {name_of(labels) for labels in asked_last}
    expected = {
        labels: samples
        for labels, samples in recorded.items()
        if name_of(labels) not in late | not_compared
    }
    asked_last = {
        labels: samples
        for labels, samples in asked_last.items()
        if name_of(labels) not in not_compared
    }
    misses = differences(expected | on_the_clock(asked_last), answers, extrapolating(rules))
    assert not misses, "\n".join(misses.values())
    return answers


def in_prometheus(
    folder: Path, rules: list[Path], inputs: Mapping[Labels, Samples]
) -> tuple[dict[Labels, Samples], dict[Labels, Samples]]:
    """Return what Prometheus records of *inputs*, and what it says to late rules in the end."""
    late = {expr: labels for labels, expr in late_rules(rules)}
    case = {
        "interval": f"{SCRAPE_SECONDS:g}s",
        "input_series": [
            {"series": series_of(labels), "values": in_promtool(samples)}
            for labels, samples in inputs.items()
        ],
        # Nothing is expected, so promtool says what it got.
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{at:g}s", "exp_samples": []}
            for expr in (RECORDED, *late)
            for at in TIMES
        ],
    }
    path = folder / "promtool.yaml"
    tests = {
        "rule_files": [str(rule) for rule in rules],
        "group_eval_order": eval_order(GROUPS),
        "evaluation_interval": f"{SCRAPE_SECONDS:g}s",
        "tests": [case],
    }
    path.write_text(json.dumps(tests))
    done = promtool("test", "rules", str(path))
    recorded: dict[Labels, Samples] = defaultdict(dict)
    asked_last: dict[Labels, Samples] = defaultdict(dict)
    for expr, time, got in GOT.findall(done.stdout + done.stderr):
        at, asked = seconds_of(time), json.loads(f'"{expr}"')
        for text, value in SAMPLE.findall(got):
            labels = labels_of(text)
            if asked in late:
                recorded_as = dict(labels) | dict(late[asked])
                asked_last[frozenset(recorded_as.items())][at] = float(value)
            elif labels not in inputs:
                recorded[labels][at] = float(value)
    assert recorded, (done.stdout + done.stderr)[:4000]
    return recorded, asked_last


def on_the_clock(series: Mapping[Labels, Samples]) -> dict[Labels, Samples]:
    """Return *series* with timestamps of VictoriaMetrics' clock."""
    return {labels: since_begin(labels, samples) for labels, samples in series.items()}


def late_rules(rules: Iterable[Path]) -> list[tuple[Labels, str]]:
    """Return the name and labels, and the expression, of each rule that reads a later one's answer.

    In one and the same moment its answer is a matter of order: it is asked when all have spoken.
    """
    recording = [
        rule
        for path in rules
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    ]
    first = {rule["record"]: at for at, rule in reversed(list(enumerate(recording)))}
    return [
        (frozenset({"__name__": rule["record"], **rule.get("labels", {})}.items()), rule["expr"])
        for at, rule in enumerate(recording)
        if any(first.get(name, -1) >= at for name in NAME.findall(rule["expr"]))
        or "ALERTS{" in rule["expr"]  # Which may be of any group.
    ]


def reading_themselves(rules: Iterable[Path]) -> set[str]:
    """Return what reads its own last answer, which here is what Prometheus says now."""
    return {
        rule["record"]
        for path in rules
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if rule.get("record") in NAME.findall(rule["expr"])
    }


def with_ends(samples: Samples) -> Samples:
    """Return *samples* with the marker that Prometheus adds when a rule gives nothing any more."""
    ends = {at + SCRAPE_SECONDS: None for at in samples if at + SCRAPE_SECONDS not in samples}
    return {**samples, **ends}


def extrapolating(rules: Iterable[Path]) -> set[str]:
    """Return what is recorded with `delta`: Prometheus extrapolates where a window is not full."""
    return {
        rule["record"]
        for path in rules
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if ("delta(" in rule["expr"] or "increase(" in rule["expr"]) and "record" in rule
    }


def differences(
    expected: Mapping[Labels, Samples], answers: Mapping[Labels, Samples], extrapolated: set[str]
) -> dict[str, str]:
    """Return, for each name that differs: how often, and one example."""
    misses: dict[str, list[str]] = defaultdict(list)
    for labels in sorted(expected.keys() | answers.keys(), key=sorted):
        want, got = expected.get(labels, {}), answers.get(labels, {})
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


def seconds_of(duration: str) -> float:
    """Return the seconds of a *duration* as promtool prints it: 1m15s."""
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)([hms])", duration))
