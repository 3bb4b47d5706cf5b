"""Late ranks and slow nodes of a moment, each with its cause and the evidence for it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from exporter.advice import advice
from exporter.client.prometheus import Sample
from exporter.diagnose.confidence import UNKNOWN, Suspect, confidence
from exporter.diagnose.model import Finding, Place
from exporter.diagnose.prometheus.evidence import figures
from exporter.diagnose.prometheus.moment import Moment
from exporter.live.sentences import LateView as Late
from exporter.live.sentences import LineView, late_sentence, listed, sentence
from rank_probe.verdict import NODE

# So many are told with all that is known of them; each takes a handful of queries.
MOST_FINDINGS: Final = 5
# What costs less than this share of the costliest waits until that one is mended.
WORTH_MENDING: Final = 0.1

Who = tuple[str, str]
BY_RANK: Final = "rank:rankskew_gpus_lost:sum"


def late_findings(moment: Moment) -> tuple[list[Finding], list[str]]:
    """Return the late ranks and slow nodes, the costliest first, and who else is late.

    Raises Trouble.
    """
    waking = {_who(moment, late): late for late in moment.job.late if late.wakes}
    nodes: dict[str, list[Who]] = defaultdict(list)
    for who, late in waking.items():
        if late.kind == NODE:
            nodes[who[1]].append(who)
    alone = [[who] for who, late in waking.items() if late.kind != NODE]
    found = [*nodes.values(), *alone]
    found.sort(key=lambda those: -_cost(waking, those))
    least = WORTH_MENDING * _cost(waking, found[0]) if found else 0.0
    told = [those for those in found[:MOST_FINDINGS] if _cost(waking, those) >= least]
    places = moment.places(who for those in told for who in those)
    names = sorted({who[0] for who in waking}, key=int)
    findings = [
        _with_figures(moment, _finding(moment, waking, those, places), names) for those in told
    ]
    return findings, _others(moment, found[len(told) :])


def by_rank_and_stage(moment: Moment) -> dict[int, dict[str, float]]:
    """Return the GPUs lost to each late rank, by stage."""
    lost: dict[int, dict[str, float]] = defaultdict(dict)
    for sample in moment.all("rank_stage:rankskew_gpus_lost:sum"):
        if sample["rank"].isdecimal() and sample.value > 0:
            lost[int(sample["rank"])][sample["stage"]] = sample.value
    return lost


def _cost(waking: Mapping[Who, Late], those: Sequence[Who]) -> float:
    return sum(waking[who].gpus_lost for who in those)


def _who(moment: Moment, late: Late) -> Who:
    """Return the rank with the instance of its exporter, which one late rank has."""
    rank = str(late.rank)
    return rank, next(
        (
            each["instance"]
            for each in moment.all("rank:rankskew_late:ratio")
            if each["rank"] == rank
        ),
        "",
    )


def _finding(
    moment: Moment, waking: Mapping[Who, Late], those: Sequence[Who], places: Mapping[Who, Place]
) -> Finding:
    """Return what is known of a late rank, or of the late ranks of a node."""
    late = [waking[who] for who in those]
    is_node = late[0].kind == NODE
    costliest = max(those, key=lambda who: waking[who].gpus_lost)
    place = places[costliest]
    stage = _most([each.stage for each in late])
    suspects = _suspects(moment, those)
    chosen = _chosen(moment, those, suspects)
    sure, why = confidence(chosen, suspects)
    entry = advice().get(chosen.cause) or advice()[UNKNOWN]
    groups = {each.peer_group for each in late}
    return Finding(
        what=entry.cause,
        sentence=late_sentence(late, moment.job.world_size or len(late)),
        rank=None if is_node else late[0].rank,
        ranks=tuple(sorted(each.rank for each in late)),
        peer_group=groups.pop() if len(groups) == 1 else None,
        place=Place(node=place.node, instance=place.instance) if is_node else place,
        stage=stage,
        kind=late[0].kind,
        ratio=fmean(each.ratio for each in late),
        gpus_lost=sum(each.gpus_lost for each in late),
        since_seconds=max(each.late_for_seconds for each in late) or None,
        lines=_lines(moment, those, stage),
        cause=chosen.cause,
        cause_text=entry.text,
        detail=chosen.detail or None,
        confidence=sure,
        why=why,
        explains=chosen.share if chosen.cause != UNKNOWN else None,
        others=_also(chosen, suspects),
    )


def _with_figures(moment: Moment, finding: Finding, late: Sequence[str]) -> Finding:
    return replace(finding, figures=figures(moment, finding, late))


def _suspects(moment: Moment, those: Sequence[Who]) -> list[Suspect]:
    """Return each cause for which there is evidence, with the mean share that it explains."""
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in moment.all("rank_cause:rankskew_suspect:ratio"):
        if _of(sample) in those:
            shares[sample["cause"], sample["detail"]].append(sample.value)
    return [Suspect(*what, fmean(each)) for what, each in shares.items()]


def _chosen(moment: Moment, those: Sequence[Who], suspects: Sequence[Suspect]) -> Suspect:
    """Return the cause that the rules give, the most common one of a node's ranks."""
    said = [
        (sample["cause"], sample["detail"])
        for sample in moment.all("rank:rankskew_cause:info")
        if _of(sample) in those
    ]
    if not said:
        return Suspect(UNKNOWN)
    cause, detail = Counter(said).most_common(1)[0][0]
    same = [each for each in suspects if (each.cause, each.detail) == (cause, detail)]
    # Older rules record no suspects: then it is not known how much the cause explains.
    return same[0] if same else Suspect(cause, detail, 0.0 if cause != UNKNOWN else 1.0)


def _also(chosen: Suspect, suspects: Sequence[Suspect]) -> tuple[str, ...]:
    others = [each for each in suspects if each.cause != chosen.cause]
    return tuple(
        f"{advice()[each.cause].short}{f' ({words(each.detail)})' if each.detail else ''}, "
        f"which explains {each.share:.0%}"
        for each in sorted(others, key=lambda each: -each.share)
        if each.cause in advice()
    )


def words(name: str) -> str:
    """Return a label's value as people write it."""
    return name.replace("_", " ")


def _lines(moment: Moment, those: Sequence[Who], stage: str) -> tuple[LineView, ...]:
    found = [
        LineView(sample["stage"], sample["place"], sample.value)
        for sample in moment.all("rankskew_late_line_ratio")
        if _of(sample) in those
    ]
    found.sort(key=lambda line: (line.stage != stage, -line.share))
    return tuple(found)


def _others(moment: Moment, rest: Sequence[Sequence[Who]]) -> list[str]:
    more = []
    if rest:
        names = listed([_name(moment, those) for those in rest[:20]])
        left = f" and {len(rest) - 20} more" if len(rest) > 20 else ""
        more.append(
            f"Late as well: {names}{left}. They cost less: mend the above first, and look again."
        )
    mild = [late for late in moment.job.late if not late.wakes]
    for late in mild[:3]:
        little = "but no wait was measured" if late.kind != "mild" else "too little for an alert"
        more.append(f"Rank {late.rank} needs {late.ratio:.1%} more time than its peers, {little}.")
    return [sentence(each) for each in more]


def _name(moment: Moment, those: Sequence[Who]) -> str:
    return f"rank {those[0][0]}" if len(those) == 1 else f"node {moment.host(those[0][1])}"


def _of(sample: Sample) -> Who:
    return sample["rank"], sample["instance"]


def _most(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0]
