"""Alerts about the GPUs, nodes and batches of a job, as findings; those on its pace are known."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankskew.client.fields import label
from rankskew.client.prometheus import Sample, selector
from rankskew.diagnose.advice import for_alert
from rankskew.diagnose.model import Finding, Place
from rankskew.diagnose.prometheus.moment import Moment, instances

# The state, the late ranks and the losses of the job say these, and more.
KNOWN: Final = (
    "Straggler|SlowNode|JobHung|RanksMissing|SlowStart|NotJudgeable|ExporterDown|RankSlower"
    "|RotatingImbalance|StageImbalance|CommunicationBound|EfficiencyDrop|JobSlower"
)
MOST: Final = 5
ON_NODES: Final = "and on (cluster, instance) rankskew_node_ranks"


def with_alerts(moment: Moment, found: Sequence[Finding]) -> list[Finding]:
    """Return *found* and the other alerts that fire for the job; raises Trouble.

    One about a rank or node that is among *found* is a fact of it.
    """
    facts: dict[int, list[str]] = defaultdict(list)
    alone = []
    for alert in _alerts(moment):
        mine = next((n for n, other in enumerate(found) if _same(alert, other)), None)
        if mine is None:
            alone.append(alert)
        else:
            facts[mine].append(alert.sentence)
    told = [replace(each, facts=tuple(facts[place])) for place, each in enumerate(found)]
    return [*told, *alone[:MOST]]


def _alerts(moment: Moment) -> list[Finding]:
    """Return the other alerts, each rank or GPU once.

    One that is not information counts before its time has passed too: somebody looks now.
    """
    names = f'alertname=~"Rankskew.*",alertname!~"Rankskew({KNOWN})"'
    cluster = selector(cluster=moment.job.cluster)
    of_nodes = f'ALERTS{{{names},job_id="",{cluster}}} {ON_NODES}{{{moment.where}}}'
    found = moment.prometheus.query(f"ALERTS{{{names},{moment.where}}} or {of_nodes}")
    # A rank that does something for all is among the late ones.
    new = [s for s in found if not (s["rank"] and s["alertname"] == "RankskewCheckpointStall")]
    urgent = [s for s in new if s["alertstate"] == "firing" or s["severity"] != "info"]
    once = {(s["alertname"], s["rank"], s["instance"], s["gpu_uuid"]): s for s in urgent}
    told = sorted(once.values(), key=_order)
    places = moment.places(instances(told))
    return [_finding(moment, sample, places) for sample in told]


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
    text = entry.text if entry is not None else _plain(sample["alertname"])
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


def _plain(alert: str) -> str:
    return " ".join(re.findall(r"[A-Z][a-z]*", alert.removeprefix("Rankskew"))).lower()
