"""What fired while rules were evaluated over a run: from samples of alerts to findings."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Final

from exporter.promtool import Sample

KINDS: Final = {
    "RankskewStraggler": "persistent",
    "RankskewSlowNode": "node",
    "RankskewRotatingImbalance": "rotating",
    "RankskewStageImbalance": "group",
    "RankskewCommunicationBound": "common",
    "RankskewRankSlower": "mild",
    "RankskewJobHung": "hang",
}
# It says that nothing can be said, which is no finding.
NOT_JUDGEABLE: Final = "RankskewNotJudgeable"

_RANK_LOST: Final = "rank:rankskew_gpus_lost:mean1m"
_KIND_LOST: Final = "job_kind:rankskew_gpus_lost:mean1m"
_LOST: Final = "job:rankskew_gpus_lost:mean1m"
_SOURCE: Final = "job_source:rankskew_gpus_lost:info"
_REASON: Final = "job_reason:rankskew_not_judgeable:bool"
# All that a replay asks of an evaluation.
EXPRESSION: Final = (
    '{__name__=~"' + "|".join((_RANK_LOST, _KIND_LOST, _LOST, _SOURCE, _REASON)) + '"}'
    ' or ALERTS{alertstate="firing"}'
)

# What was recorded, by evaluation time in seconds.
Evaluations = Mapping[float, Sequence[Sample]]
# Alert, rank, instance, peer group.
_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """An alert that fired without a break, for a rank, a node or the job; seconds of the run.

    *cleared_s* is None while it fires to the end. *gpus_lost* is the mean of what the rules
    recorded for that rank, node or kind meanwhile, None where they record none.
    """

    alert: str
    severity: str
    kind: str
    rank: int | None
    peer_group: str | None
    instance: str | None
    stage: str | None
    onset_s: float
    cleared_s: float | None
    gpus_lost: float | None


def findings(evaluations: Evaluations) -> list[Finding]:
    """Return what fired, in the order in which it began; one missed evaluation is no end."""
    times = sorted(evaluations)
    fired: dict[_Key, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for number, time in enumerate(times):
        for sample in evaluations[time]:
            if sample.labels.get("__name__") == "ALERTS":
                labels = sample.labels
                key = (
                    labels["alertname"],
                    labels.get("rank", ""),
                    labels.get("instance", ""),
                    labels.get("peer_group", ""),
                )
                # More than one where the stage has changed and the former still fires.
                fired[key][number].append(sample)
    found = [
        _finding(
            key, evaluations, times, [one for number in numbers for one in at[number]], numbers
        )
        for key, at in fired.items()
        if key[0] != NOT_JUDGEABLE
        for numbers in _intervals(sorted(at))
    ]
    return sorted(
        found, key=lambda one: (one.onset_s, one.alert, -1 if one.rank is None else one.rank)
    )


def source(evaluations: Evaluations) -> str:
    """Return who spoke in most evaluations: the join, the window means, or none."""
    spoke = Counter(
        sample.labels.get("source", "window")
        for samples in evaluations.values()
        for sample in [
            next((one for one in samples if one.labels.get("__name__") == _SOURCE), None)
            or next((one for one in samples if one.labels.get("__name__") == _LOST), None)
        ]
        if sample is not None
    )
    return spoke.most_common(1)[0][0] if spoke else "none"


def not_judgeable(evaluations: Evaluations) -> list[str]:
    """Return the reasons that stood in at least half of the evaluations."""
    stood = Counter(
        sample.labels["reason"]
        for samples in evaluations.values()
        for sample in samples
        if sample.labels.get("__name__") == _REASON
    )
    return sorted(reason for reason, times in stood.items() if times * 2 >= len(evaluations))


def _intervals(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of evaluation *numbers*, with at most one missing between two."""
    interval = [numbers[0]]
    for number in numbers[1:]:
        if number - interval[-1] > 2:
            yield interval
            interval = []
        interval.append(number)
    yield interval


def _finding(
    key: _Key,
    evaluations: Evaluations,
    times: Sequence[float],
    alerts: Sequence[Sample],
    numbers: Sequence[int],
) -> Finding:
    alert, rank, instance, peer_group = key
    kind = KINDS.get(alert, "other")
    stages = Counter(sample.labels["stage"] for sample in alerts if "stage" in sample.labels)
    lost = [
        gpus
        for number in numbers
        if (gpus := _gpus_lost(kind, rank, instance, evaluations[times[number]])) is not None
    ]
    last = numbers[-1] + 1
    return Finding(
        alert=alert,
        severity=alerts[0].labels.get("severity", ""),
        kind=kind,
        rank=int(rank) if rank.isdigit() else None,
        peer_group=peer_group or None,
        instance=instance or None,
        stage=stages.most_common(1)[0][0] if stages else None,
        onset_s=times[numbers[0]],
        cleared_s=times[last] if last < len(times) else None,
        gpus_lost=fmean(lost) if lost else None,
    )


def _gpus_lost(kind: str, rank: str, instance: str, samples: Sequence[Sample]) -> float | None:
    if kind in ("persistent", "mild"):
        wanted = {"__name__": _RANK_LOST, "rank": rank, "instance": instance}
    elif kind == "node":
        wanted = {"__name__": _RANK_LOST, "instance": instance}
    elif kind in ("group", "rotating", "common"):
        wanted = {"__name__": _KIND_LOST, "kind": kind}
    else:
        return None
    values = [sample.value for sample in samples if wanted.items() <= sample.labels.items()]
    # A rule that divides by nothing records NaN: no reading.
    return sum(values) if values and all(isfinite(value) for value in values) else None
