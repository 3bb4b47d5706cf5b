"""A job's verdict in words: which ranks are late and how, at what cost, and what changed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from exporter.live.causes import CauseView, cause_sentence
from exporter.live.wording import (
    MOST_NAMES,
    be,
    duration,
    few,
    listed,
    sentence,
    short,
    than,
    their,
    them,
    which,
)
from exporter.ranks.jobs import NODE as BY_NODE
from exporter.ranks.jobs import AgedVerdict
from exporter.vocabulary import words
from rank_probe.judge.verdict import (
    DUTY,
    MILD,
    MOST_LATE,
    NODE,
    PAUSES,
    UNSYNCED,
    Change,
    Late,
    Pause,
    Together,
    Verdict,
    settled,
)

# Fewer GPUs lost, or a smaller share of steps or of their time, are not mentioned.
WORTH_A_WORD: Final = 0.005
# The judge's losses cover the last minute, or as many steps as it needs.
LOST_SECONDS, LOST_STEPS = 60.0, 20

# What GPUs are lost to, to be put after "0.84 "; of a hang more is said than that.
LOST_TO: Final = {name: kind.to for name, kind in words.KINDS.items() if name != "hung"}
# What a rank does for all, by stage.
DUTIES: Final = {
    "checkpoint": "saves",
    "eval": "evaluates",
    "other": "runs extra work such as logging",
}
OWN_VERDICT: Final = (
    "The job does not compare the steps of its ranks, so this exporter compares only the ranks on "
    "its own node. It cannot see a delay of less than 8%."
)


@dataclass(frozen=True, slots=True)
class LateView:
    """A late rank of the job, *is_here* on this node or not; *kind* is one of LATE_KINDS.

    *ratio* is its own time over its peers', or over its own before if it *has_risen*, less 1.
    *gpus_lost* wait for it, *gpus_by_stage* in each stage. It *costs_enough* to be named, see
    exporter.ranks.late_enough. The exporter of its own node finds its *cause*; *at* has that `node`
    and its live `page`. A pause takes *pause_seconds*, after *every_steps*; both 0 without pauses.
    """

    rank: int
    peer_group: str
    stage: str
    kind: str
    ratio: float
    gpus_lost: float
    late_for_seconds: float
    is_here: bool
    costs_enough: bool = True
    cause: CauseView | None = None
    every_steps: int = 0
    pause_seconds: float = 0.0
    has_risen: bool = False
    gpus_by_stage: dict[str, float] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)

    @property
    def is_called_late(self) -> bool:
        """Say whether it is late enough, and known well enough, to be called late."""
        return self.costs_enough and self.kind not in (MILD, UNSYNCED)


def view_late(
    late: Late,
    age_seconds: float,
    here: Collection[int],
    *,
    costs_enough: bool = True,
    cause: CauseView | None = None,
) -> LateView:
    """Describe *late* of a verdict of *age_seconds*, on a node with the ranks *here*."""
    return LateView(
        rank=late.rank,
        peer_group=late.peer_group,
        stage=late.stage,
        kind=late.kind,
        ratio=late.ratio,
        gpus_lost=late.gpus_lost,
        late_for_seconds=late.since_seconds + age_seconds,
        is_here=late.rank in here,
        costs_enough=costs_enough,
        cause=cause,
        every_steps=late.every_steps,
        pause_seconds=late.pause_seconds,
        has_risen=late.has_risen,
        gpus_by_stage=dict(late.gpus),
        at=dict(late.at),
    )


def late_sentence(
    late: Sequence[LateView], world_size: int, together: Sequence[Together] = ()
) -> str:
    """Name the *late* ranks, grouped by kind and stage, the costliest first once it is settled.

    Those that became late *together* are named as a set.
    """
    told = [
        (those, _set(each, those, world_size)) for each in together if (those := in_set(each, late))
    ]
    in_sets = {each.rank for those, _ in told for each in those}
    alone = sorted((each for each in late if each.rank not in in_sets), key=_likeness)
    alike = [list(those) for _, those in groupby(alone, key=_likeness)]
    told += [(those, _alike(those)) for those in alike]
    told.sort(key=lambda each: late.index(each[0][0]))
    told = settled(told, lambda each: (sum(late.gpus_lost for late in each[0]),))
    phrases = [said for _, said in told[:MOST_NAMES]]
    if rest := sum(len(those) for those, _ in told[MOST_NAMES:]):
        phrases.append(f"{rest} more {be(rest)} late")
    cost = f"{few(sum(each.gpus_lost for each in late))} of {world_size} GPUs wait"
    return sentence(f"{listed(phrases)}; {cost} for {them(len(late))}.")


def even_sentence(aged: AgedVerdict, late: Sequence[LateView]) -> str:
    """Say that no rank is late, or only ranks that raise no alert."""
    verdict = aged.verdict
    slower = [each for each in late if each.kind != DUTY]
    if any(each.kind == UNSYNCED for each in slower):
        return (
            f"It is not known whether a rank is late: {_longer(slower)}, but no wait was measured."
        )
    if slower:
        return f"No rank is late enough for an alert: {_longer(slower)}."
    if late:
        return f"No rank is late: {duty(late[0])}."
    if aged.judge == BY_NODE:
        return "No rank on this node is late."
    judged = sum(verdict.ranks.values())
    if judged == 1:
        return "No rank is late: the job has only one."
    return f"No rank is late: the {judged} ranks of the job need the same time for their work."


def rotating_sentence(verdict: Verdict, collecting: float = 0.0) -> str:
    """Say that ranks are late in turn, and what that costs.

    *collecting* is the share of their stops that is garbage collection.
    """
    cost = f"{few(verdict.gpus_lost['rotating'])} of {sum(verdict.ranks.values())} GPUs wait"
    cost += " for whichever it is"
    if turn := verdict.in_turn:
        often = f" every {turn.every_steps} steps" if turn.every_steps else ""
        what = f", {collecting:.0%} of it garbage collection" if collecting else ""
        return (
            f"Each rank in turn stops {words.slow_at(turn.stage)} for {short(turn.seconds)}{often}"
            f"{what}; {cost}."
        )
    stage = max(verdict.rotating, key=lambda stage: verdict.rotating[stage], default=None)
    where = f", mostly {words.slow_at(stage)}" if stage else ""
    return f"A different rank is slow in each step{where}; {cost}."


def shared_sentence(verdict: Verdict, stage: str) -> str:
    """Say what all ranks wait for together, the costliest first; most of it is in *stage*."""
    together = [each for each in verdict.stalls if not each.in_turn]
    said = [
        f"{words.slow_at(each.stage).replace(' its ', ' their ')} for {each.share:.0%} of the time"
        + (f", {short(each.seconds)} every {each.every_steps} steps" if each.every_steps else "")
        for each in sorted(together, key=lambda each: -each.share)
    ]
    ranks = max(sum(verdict.ranks.values()), 1)
    if stage == "sync":
        common = verdict.gpus_lost["common"]
        return f"All ranks wait for communication for {common / ranks:.0%} of each step."
    lost = few(verdict.gpus_lost["shared"])
    return f"All ranks wait together: {listed(said)}; {lost} of {ranks} GPUs lost."


def paused_sentence(verdict: Verdict, age_seconds: float) -> str:
    """Say what one or two stops cost; name the last one if it was long and is part of the loss."""
    seconds = max(LOST_SECONDS, LOST_STEPS * (verdict.step_seconds or 0.0))
    if verdict.pauses and verdict.pauses[0].since_seconds <= seconds:
        return pause_sentence(verdict.pauses[0], age_seconds)
    cost = f"{few(verdict.gpus_lost['pause'])} of {sum(verdict.ranks.values())} GPUs"
    return f"A rank stopped for a moment, once or twice; it cost {cost}."


def pause_sentence(pause: Pause, age_seconds: float | None = None) -> str:
    """Say that one or all ranks stopped once for long; with the verdict's age, until when."""
    who = "All ranks" if pause.rank is None else f"Rank {pause.rank}"
    until = ""
    if age_seconds is not None:
        until = f" until {duration(pause.since_seconds + age_seconds)} ago"
    return (
        f"{who} stopped for {duration(pause.seconds)} {words.slow_at(pause.stage)}{until}: "
        f"{pause.gpu_seconds:,.0f} GPU-seconds lost."
    )


def details(aged: AgedVerdict, late: Sequence[LateView], joined: float | None) -> list[str]:
    """Return further sentences about a verdict; *joined* is the share of steps that it is on."""
    verdict = aged.verdict
    return [
        *(said for each in late[:MOST_NAMES] for said in _lateness(each)),
        *_slowdown(verdict, [each for each in late if each.is_called_late]),
        *_lost(verdict),
        *(pause_sentence(each, aged.age_seconds) for each in verdict.pauses),
        *map(change_sentence, aged.changes),
        *_covered(verdict, joined),
        *([OWN_VERDICT] if aged.judge == BY_NODE else []),
    ]


def change_sentence(change: Change) -> str:
    """Say that a peer group became slower."""
    longer = f"{change.ratio:.2f} times as long as before for {duration(change.since_seconds)}"
    cost = ""
    if change.gpus >= WORTH_A_WORD:
        cost = f"; steps take {change.step_ratio:.2f} times as long: {few(change.gpus)} GPUs lost"
    if change.slower:
        spans = change.slower_spans or [(each, each) for each in change.slower_ranks]
        many = f"{change.slower} of {change.peers}" if change.peers else str(change.slower)
        return (
            f"{many} ranks of peer group {change.peer_group}{which(spans, change.in_common)} "
            f"became slower together: {change.stage} has taken {longer}{cost}."
        )
    if change.stage == "sync":
        return f"All ranks of the job have waited for each other {longer}{cost}."
    return sentence(f"{change.stage} of peer group {change.peer_group} has taken {longer}{cost}.")


def _likeness(late: LateView) -> tuple[str, str]:
    return late.kind, late.stage


def _alike(late: Sequence[LateView]) -> str:
    """Describe *late* ranks of the same kind and stage."""
    if late[0].kind in (PAUSES, DUTY):
        if len(late) == 1:
            return f"{_ranks(late)} {_pausing(late[0])}"
        does, *more = pausing(late[0].kind, late[0].stage).split(" ")
        return " ".join((_ranks(late), does.removesuffix("s"), *more))
    return f"{_ranks(late)}{_like_node(late)} {be(len(late))} slow {_doing(late)}"


def _set(those: Together, late: Sequence[LateView], world_size: int) -> str:
    """Describe *late* ranks that are *those*."""
    node = "" if those.in_common else _like_node(late)
    ranks = f"{those.ranks} of {world_size} ranks{which(those.spans, those.in_common)}"
    doing = f"have been slow {_doing(late)} for {duration(those.since_seconds)}"
    return f"{ranks}{node} {doing}"


def in_set(those: Together, late: Sequence[LateView]) -> list[LateView]:
    """Return the *late* ranks in the set *those*; none unless all of it, up to MOST_LATE, is."""
    alike = [each for each in late if each.stage == those.stage]
    found = [each for each in alike if any(a <= each.rank <= b for a, b in those.spans)]
    return found if len(found) >= min(those.ranks, MOST_LATE) else []


def _like_node(late: Sequence[LateView]) -> str:
    is_node = all(each.kind == NODE for each in late)
    return f", like most ranks of {their(len(late))} node," if is_node else ""


def _doing(late: Sequence[LateView]) -> str:
    doing = words.slow_at(late[0].stage)
    return doing if len(late) == 1 else doing.replace(" its ", " their ")


def _ranks(late: Sequence[LateView]) -> str:
    places = ["" if each.is_here else elsewhere(each.at) for each in late]
    once = places[0] if len({*places}) == 1 else ""  # Not after each.
    names = [f"{each.rank}{place * (not once)}" for each, place in zip(late, places, strict=True)]
    if len(late) > MOST_NAMES:
        names[MOST_NAMES:] = [f"{len(late) - MOST_NAMES} more"]
    return f"{'rank' if len(late) == 1 else 'ranks'} {listed(names)}{once}"


def elsewhere(at: Mapping[str, str]) -> str:
    """Say that a rank is on another node, whose name may not be known."""
    return f" (on {at['node']})" if "node" in at else " (not on this node)"


def _longer(late: Sequence[LateView]) -> str:
    ratio = max(each.ratio for each in late)
    needs = "needs" if len(late) == 1 else "need up to"
    return f"{_ranks(late)} {needs} {ratio:.0%} more time {than([each.has_risen for each in late])}"


def pausing(kind: str, stage: str, every_steps: int = 0, pause_seconds: float = 0.0) -> str:
    """Say what a rank that pauses does, such as "saves every 25 steps for 90 ms"."""
    does = (
        DUTIES.get(stage, "works on behalf of all ranks") if kind == DUTY else f"pauses in {stage}"
    )
    often = f" every {every_steps} steps" if every_steps else " now and then"
    return does + often + (f" for {short(pause_seconds)}" if pause_seconds else "")


def _pausing(late: LateView) -> str:
    return pausing(late.kind, late.stage, late.every_steps, late.pause_seconds)


def duty(late: LateView) -> str:
    """Say what a rank does for all, and what that costs."""
    return f"{_ranks([late])} {_pausing(late)}, and {few(late.gpus_lost)} GPUs wait for it"


def _lateness(late: LateView) -> Iterator[str]:
    if late.kind == DUTY and not late.costs_enough:
        yield sentence(f"{duty(late)}.")
        return
    cost = f"; {few(late.gpus_lost)} GPUs wait for it" if late.kind != UNSYNCED else ""
    yield (
        f"Rank {late.rank} has needed {late.ratio:.0%} more time {than([late.has_risen])} for "
        f"{duration(late.late_for_seconds)}, mostly in {late.stage}{cost}."
    )
    if late.cause is not None:
        yield cause_sentence(late.cause)
    if not late.is_here and "page" in late.at:
        unknown = "" if late.cause else ", where the cause is not known"
        yield f"The page of the node of rank {late.rank}{unknown}: {late.at['page']}"


def is_slower(slowdown: float | None) -> bool:
    """Return whether steps take enough longer to be worth mentioning."""
    return slowdown is not None and slowdown >= 1 + WORTH_A_WORD


def _slowdown(verdict: Verdict, late: Sequence[LateView]) -> Iterator[str]:
    slowdown = verdict.slowdown
    if late and is_slower(slowdown):
        yield f"Steps take {slowdown:.2f} times as long as without {them(len(late))}."


def _lost(verdict: Verdict) -> Iterator[str]:
    stage = max(verdict.rotating, key=lambda stage: verdict.rotating[stage], default=None)
    most = {"rotating": f", mostly in {stage}"} if stage else {}
    lost = [
        f"{few(gpus)} {to}{most.get(kind, '')}"
        for kind, to in LOST_TO.items()
        if (gpus := verdict.gpus_lost.get(kind, 0.0)) >= WORTH_A_WORD
    ]
    if lost:
        yield f"GPUs lost: {'; '.join(lost)}."


def _covered(verdict: Verdict, joined: float | None) -> Iterator[str]:
    if verdict.absent:
        all_ranks = verdict.absent + sum(verdict.ranks.values())
        yield f"{verdict.absent} of {all_ranks} ranks take no part in the steps of the others."
    if joined is not None and joined <= 1 - WORTH_A_WORD:
        yield f"The ranks compared only {joined:.0%} of their steps."
