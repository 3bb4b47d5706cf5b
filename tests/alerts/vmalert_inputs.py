"""Input series that the rules are tested with, side by side: of simulated jobs and of alerts.

Each case gets a job_id and an instance of its own, so that they do not meet.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.alerts.job_series import input_series
from tests.alerts.jobs import Fault, Job, simulate
from tests.alerts.vmalert import BEGIN_SECONDS, UNITS, Labels, Samples

JOBS = {
    "late": Job(seed=4, faults=(Fault(2, "forward", 0.25),)),
    "healthy": Job(seed=4),
    "groups": Job(seed=4, group_work=(1.0, 1.3)),
    "restart": Job(seed=4, restart_seconds=120, unseen_seconds=180, seconds=300),
    "checkpoints": Job(seed=4, faults=(Fault(0, "checkpoint", 8, every=20),)),
}
SCRAPE_SECONDS = 15.0

TIMESTAMP = re.compile("(timestamp|start_time)(_seconds)?$")
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
REPEATED = re.compile(rf"({NUMBER}|_)({NUMBER})?x(\d+)")


def of_jobs() -> dict[Labels, Samples]:
    """Return the samples of the jobs."""
    return {
        labels_of(one["series"]): _samples(f"{one['values']} stale", SCRAPE_SECONDS)
        for job_id, job in JOBS.items()
        for one in input_series(job, simulate(job), job_id)
    }


def of_alerts(recorded: bool) -> dict[Labels, Samples]:
    """Return the samples of each alert's first test case: the one that fires.

    *recorded* chooses those that begin with recorded series, or else those that begin with metrics.
    """
    series: dict[Labels, Samples] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        case = yaml.safe_load(path.read_text())["tests"][0]
        inputs = case.get("input_series", ())
        if any(":" in one["series"].partition("{")[0] for one in inputs) == recorded:
            for one in inputs:
                labels = dict(labels_of(one["series"]))
                for name in labels.keys() & {"job_id", "instance"}:
                    labels[name] += f"-{path.stem}"
                samples = _samples(f"{one['values']} stale", _seconds(case["interval"]))
                series[frozenset(labels.items())] = samples
    return series


def labels_of(text: str) -> Labels:
    """Return the labels of a series in Prometheus' notation, its name as __name__."""
    name, _, rest = text.partition("{")
    labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest))
    return frozenset(({"__name__": name} | labels).items() if name else labels.items())


def in_promtool(samples: Samples) -> str:
    """Return *samples* as values for promtool, one every SCRAPE_SECONDS."""
    times = [number * SCRAPE_SECONDS for number in range(int(max(samples) / SCRAPE_SECONDS) + 1)]
    return " ".join(_value(samples, at) for at in times)


def since_begin(labels: Labels, samples: Samples) -> Samples:
    """Return *samples* for a clock that begins at BEGIN_SECONDS: timestamps are values too."""
    if not TIMESTAMP.search(dict(labels)["__name__"]):
        return samples
    return {at: None if value is None else value + BEGIN_SECONDS for at, value in samples.items()}


def _value(samples: Samples, at: float) -> str:
    if at not in samples:
        return "_"
    value = samples[at]
    return "stale" if value is None else repr(value)


def _samples(values: str, interval_seconds: float) -> Samples:
    """Return *values* at every scrape; those that are further apart stay as they are meanwhile."""
    scrapes = max(round(interval_seconds / SCRAPE_SECONDS), 1)
    apart = interval_seconds / scrapes
    samples: Samples = {}
    for number, value in enumerate(_expanded(values)):
        first = number * interval_seconds
        if value == "stale":
            samples[first] = None
        elif value != "_":
            samples |= {first + scrape * apart: float(value) for scrape in range(scrapes)}
    return samples


def _expanded(values: str) -> Iterator[str]:
    for part in values.split():
        match = REPEATED.fullmatch(part)
        if match is None:
            yield part
            continue
        first, step, times = match[1], float(match[2] or 0), int(match[3])
        # "1x4" is 5 samples, "_x4" is 4 that are missing.
        for number in range(times + (first != "_")):
            yield first if first == "_" else repr(float(first) + number * step)


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * UNITS[duration[-1]]
