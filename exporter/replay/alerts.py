"""Which alerts fire when rules are evaluated on the verdicts of a run."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.replay.promtool import Sample

# The query that a replay makes at each evaluation.
EXPRESSION: Final = 'ALERTS{alertstate="firing"}'
# An alert continues if it fires again with another one of these labels.
CHANGING: Final = ("stage", "severity", "cause")
ABOUT: Final = ("rank", "peer_group", "instance", "stage", "cause", "reason")

# The firing alerts, by evaluation time in seconds.
Evaluations = Mapping[float, Sequence[Sample]]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fired without a break, for a rank, a node or the job; in seconds of the run.

    *labels* are its labels among ABOUT, as it last fired. *cleared_s* is None if it fired until the
    end.
    """

    alert: str
    severity: str
    labels: Mapping[str, str]
    fired_s: float
    cleared_s: float | None


def alerts(evaluations: Evaluations) -> list[Alert]:
    """Return the alerts in the order in which they fired; one missing evaluation ends none."""
    times = sorted(evaluations)
    fired: dict[frozenset[tuple[str, str]], dict[int, Sample]] = defaultdict(dict)
    for number, time in enumerate(times):
        for sample in evaluations[time]:
            same = {name: text for name, text in sample.labels.items() if name not in CHANGING}
            fired[frozenset(same.items())][number] = sample
    found = [
        _alert(samples[numbers[-1]].labels, times, numbers)
        for samples in fired.values()
        for numbers in _intervals(sorted(samples))
    ]
    return sorted(found, key=lambda one: (one.fired_s, one.alert, sorted(one.labels.items())))


def _intervals(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of evaluation *numbers*, with at most one missing between two."""
    interval = [numbers[0]]
    for number in numbers[1:]:
        if number - interval[-1] > 2:
            yield interval
            interval = []
        interval.append(number)
    yield interval


def _alert(labels: Mapping[str, str], times: Sequence[float], numbers: Sequence[int]) -> Alert:
    after = numbers[-1] + 1
    return Alert(
        alert=labels["alertname"],
        severity=labels.get("severity", ""),
        labels={name: labels[name] for name in ABOUT if labels.get(name)},
        fired_s=times[numbers[0]],
        cleared_s=times[after] if after < len(times) else None,
    )
