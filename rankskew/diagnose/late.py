"""Late ranks, sets and nodes as findings, each with the cause that its exporter tells."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from exporter.causes.model import UNKNOWN
from exporter.live.causes import CauseView
from exporter.live.sentences import LateView, duty, in_set, late_sentence
from exporter.live.wording import sentence, than, which
from exporter.vocabulary.words import slow_at
from rank_probe.judge.verdict import DUTY, NODE, UNSYNCED, Together
from rankskew.diagnose.advice import advice
from rankskew.diagnose.model import Event, Finding, JobFacts, Place
from rankskew.top import causes
from rankskew.top.model import JobStatus
from rankskew.wording import few

# So many are told with all that is known of them.
MOST_FINDINGS: Final = 5
MOST_EVENTS: Final = 5
MOST_MILD: Final = 3
# What costs less than this share of the costliest waits until that one is mended.
WORTH_MENDING: Final = 0.1


def late_findings(facts: JobFacts) -> tuple[list[Finding], list[str]]:
    """Return the late ranks, sets and nodes, the costliest first, and who else is late."""
    called_late = [late for late in facts.job.late if late.is_called_late]
    sets = {late.rank: each for each in facts.job.together for late in in_set(each, called_late)}
    together: dict[str, list[LateView]] = defaultdict(list)
    for late in called_late:
        node = facts.place(late.rank).node if late.kind == NODE else None
        alone = f"node {node}" if node else f"rank {late.rank}"
        together[_name(sets[late.rank]) if late.rank in sets else alone].append(late)
    found = sorted(together.items(), key=lambda each: -_cost(each[1]))
    least = WORTH_MENDING * _cost(found[0][1]) if found else 0.0
    told = [those for _, those in found[:MOST_FINDINGS] if _cost(those) >= least]
    rest = [name for name, _ in found[len(told) :]]
    more = list(mild(facts.job.late))
    if rest:
        less = "They cost less: mend the above first, and look again."
        more.insert(0, f"Late as well: {few(rest)}. {less}")
    return [late_finding(facts, those) for those in told], more


def _name(those: Together) -> str:
    return f"{those.ranks} ranks{which(those.spans, those.in_common)}"


def mild(late_ranks: Sequence[LateView]) -> Iterator[str]:
    """Say which of them are not late enough to be told, not known well enough, or on duty."""
    for late in [late for late in late_ranks if not late.is_called_late][:MOST_MILD]:
        if late.kind == DUTY:
            yield sentence(f"{duty(late)}.")
            continue
        why = "but no wait was measured" if late.kind == UNSYNCED else "too little for an alert"
        said = f"rank {late.rank} needs {late.ratio:.1%} more time {than([late.has_risen])}, {why}."
        yield sentence(said)


def late_events(job: JobStatus) -> Iterator[Event]:
    """Yield when the costliest ranks became slow, as far as that is known."""
    began = [late for late in job.late if late.is_called_late and late.late_for_seconds]
    for late in began[:MOST_EVENTS]:
        yield Event(late.late_for_seconds, f"Rank {late.rank} became slow {slow_at(late.stage)}.")


def late_finding(facts: JobFacts, those: Sequence[LateView]) -> Finding:
    """Return what is known of a late rank, or of the late ranks of a node or a set."""
    first = max(those, key=lambda late: late.gpus_lost)
    is_alone = len(those) == 1 and first.kind != NODE
    nodes = {(place.node, place.instance) for place in (facts.place(late.rank) for late in those)}
    shared = Place(*nodes.pop()) if len(nodes) == 1 else Place()
    stage = Counter(late.stage for late in those).most_common(1)[0][0]
    groups = {late.peer_group for late in those}
    lines = [line for late in those for line in facts.lines.get(late.rank, ())]
    finding = Finding(
        what=UNKNOWN,
        sentence=late_sentence(those, facts.job.world_size or len(those), facts.job.together),
        rank=first.rank if is_alone else None,
        ranks=tuple(sorted(late.rank for late in those)),
        peer_group=groups.pop() or None if len(groups) == 1 else None,
        place=facts.place(first.rank) if is_alone else shared,
        stage=stage,
        kind=first.kind,
        ratio=fmean(late.ratio for late in those),
        gpus_lost=_cost(those),
        since_seconds=max(late.late_for_seconds for late in those) or None,
        lines=tuple(sorted(lines, key=lambda line: (line.stage != stage, -line.share))),
        cause=UNKNOWN,
        cause_text=advice()[UNKNOWN].text,
    )
    cause = causes.of_node(those)
    return finding if cause is None else _explained(finding, cause)


def _cost(those: Sequence[LateView]) -> float:
    return sum(late.gpus_lost for late in those)


def _explained(finding: Finding, cause: CauseView) -> Finding:
    return replace(
        finding,
        what=cause.cause if cause.cause in advice() else UNKNOWN,
        cause=cause.cause,
        cause_text=cause.sentence.removesuffix("."),
        detail=cause.detail or None,
        explains=None if cause.cause == UNKNOWN else cause.share,
        others=tuple(f"{each.sentence} ({each.share:.0%})" for each in cause.others),
        figure=cause.figure,
        value=cause.value,
        peers_value=cause.peers_value,
        first=cause.first_action or None,
    )
