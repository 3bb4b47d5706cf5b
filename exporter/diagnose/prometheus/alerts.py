"""Alerts about the GPUs, nodes and batches of a job, as findings; those on its pace are known."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from exporter.advice import for_alert
from exporter.client.fields import label
from exporter.client.prometheus import Sample, selector
from exporter.diagnose.model import Finding, Place
from exporter.diagnose.prometheus.moment import Moment, instances

# The state, the late ranks and the losses of the job say these, and more.
KNOWN: Final = (
    "Straggler|SlowNode|JobHung|RanksMissing|SlowStart|NotJudgeable|ExporterDown|RankSlower"
    "|RotatingImbalance|StageImbalance|CommunicationBound|EfficiencyDrop"
)
MOST: Final = 5
ON_NODES: Final = "and on (cluster, instance) rankskew_node_ranks"


def alert_findings(moment: Moment) -> list[Finding]:
    """Return the other alerts that fire for the job, each rank or GPU once; raises Trouble.

    One that is not information counts before its time has passed too: somebody looks now.
    """
    cluster = selector(cluster=moment.job.cluster)
    own = f'ALERTS{{alertname=~"Rankskew.*",alertname!~"Rankskew({KNOWN})",{moment.where}}}'
    of_nodes = (
        f'ALERTS{{alertname=~"Rankskew.*",alertname!~"Rankskew({KNOWN})",job_id="",{cluster}}}'
        f" {ON_NODES}{{{moment.where}}}"
    )
    found = moment.prometheus.query(f"{own} or {of_nodes}")
    urgent = [s for s in found if s["alertstate"] == "firing" or s["severity"] != "info"]
    once = {(s["alertname"], s["rank"], s["instance"], s["gpu_uuid"]): s for s in urgent}
    told = sorted(once.values(), key=_order)
    places = moment.places(instances(told))
    return [_finding(moment, sample, places) for sample in told]


def told_apart(
    alerts: Sequence[Finding], others: Sequence[Finding]
) -> tuple[list[Finding], dict[int, list[str]]]:
    """Return the *alerts* about ranks that are not late, and facts for those that are.

    The facts are sentences, by the place of the finding among *others*.
    """
    alone, facts = [], dict[int, list[str]]()
    for alert in alerts:
        mine = next((n for n, other in enumerate(others) if _same(alert, other)), None)
        if mine is None:
            alone.append(alert)
        else:
            facts.setdefault(mine, []).append(alert.sentence)
    return alone[:MOST], facts


def _same(alert: Finding, other: Finding) -> bool:
    if other.cause is None:
        return False
    if alert.rank is not None:
        return alert.rank in other.ranks
    instance = alert.place.instance
    return instance is not None and instance == other.place.instance


def _order(sample: Sample) -> tuple[bool, str, int]:
    rank = sample["rank"]
    return sample["severity"] == "info", sample["alertname"], int(rank) if rank.isdecimal() else -1


def _finding(moment: Moment, sample: Sample, places: Mapping[int, Place]) -> Finding:
    entry = for_alert(sample["alertname"])
    rank = int(sample["rank"]) if sample["rank"].isdecimal() else None
    place = moment.place(sample["instance"]) if rank is None else places[rank]
    place = replace(
        place,
        node=sample["nodename"] or place.node,
        gpu=place.gpu or label(sample["gpu"]),
        gpu_uuid=label(sample["gpu_uuid"]) or place.gpu_uuid,
    )
    what = entry.cause if entry is not None else "unknown"
    text = entry.text if entry is not None else " ".join(_words(sample["alertname"]))
    yet = "" if sample["alertstate"] == "firing" else " (not long enough for an alert yet)"
    return Finding(
        what,
        f"{_who(rank, place)}{text}{yet}.",
        rank=rank,
        ranks=() if rank is None else (rank,),
        place=place,
    )


def _who(rank: int | None, place: Place) -> str:
    where = f" on {place.node}" if place.node else ""
    if rank is not None:
        return f"Rank {rank}{where}: "
    return f"Node {place.node}: " if place.node else "The job: "


def _words(alert: str) -> Iterator[str]:
    for word in re.findall(r"[A-Z][a-z]*", alert.removeprefix("Rankskew")):
        yield str(word).lower()
