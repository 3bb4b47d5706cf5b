"""A job's verdict in words: which ranks are late and how, at what cost, and what changed."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from exporter.live.causes import CauseView, cause_sentence
from exporter.live.wording import MOST_NAMES, duration, few, listed, sentence, short
from exporter.ranks.jobs import NODE as BY_NODE
from exporter.ranks.jobs import AgedVerdict
from exporter.vocabulary import words
from rank_probe.judge.verdict import DUTY, MILD, NODE, PAUSES, UNSYNCED, Change, Late, Verdict

# Above this share of a step, the wait that all ranks have in common is mentioned.
COMMON_WAIT_RATIO: Final = 0.25
# Fewer GPUs lost, or a smaller share of steps or of their time, are not mentioned.
WORTH_A_WORD: Final = 0.005

# What GPUs are lost to, to be put after "0.84 "; of a hang more is said than that.
LOST_TO: Final = {name: kind.to for name, kind in words.KINDS.items() if name != "hung"}
ELSEWHERE: Final = " (not on this node)"
# What a rank does for all, by stage.
DUTIES: Final = {"checkpoint": "saves", "eval": "evaluates", "other": "logs or the like"}
OWN_VERDICT: Final = (
    "The job does not compare the steps of its ranks, so this exporter compares those on its own "
    "node: a delay of less than 8% is not seen."
)


@dataclass(frozen=True, slots=True)
class LateView:
    """A late rank of the job, *is_here* on this node or not; *kind* is one of LATE_KINDS.

    *ratio* is its own time over its peers', less 1; *gpus_lost* wait for it. It *costs_enough*
    to be named, see exporter.ranks.late_enough. Its *cause* is known on its own node only. If it
    pauses, it does so for *pause_seconds* after *every_steps*; 0 if unknown.
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

    @property
    def is_called_late(self) -> bool:
        """Say whether it is late enough, and known well enough, to be called late."""
        return self.costs_enough and self.kind not in (DUTY, MILD, UNSYNCED)


@dataclass(frozen=True, slots=True)
class LineView:
    """A line of a late rank's code, and its *share* of the samples of the rank in *stage*."""

    stage: str
    place: str
    share: float


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
    )


def late_sentence(late: Sequence[LateView], world_size: int) -> str:
    """Name the *late* ranks, grouped by kind and stage, the costliest first."""
    alike = [list(those) for _, those in groupby(sorted(late, key=_likeness), key=_likeness)]
    alike.sort(key=lambda those: -sum(each.gpus_lost for each in those))
    phrases = [_alike(those) for those in alike[:MOST_NAMES]]
    if rest := sum(map(len, alike[MOST_NAMES:])):
        phrases.append(f"{rest} more {_be(rest)} late")
    cost = f"{few(sum(each.gpus_lost for each in late))} of {world_size} GPUs wait"
    return sentence(f"{listed(phrases)}; {cost} for {_them(late)}.")


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
    even = f"No rank is late: the {judged} ranks of the job need the same time for their work."
    common = verdict.gpus_lost.get("common", 0.0) / max(judged, 1)
    if common < COMMON_WAIT_RATIO:
        return even
    return f"{even} All ranks wait for the network for {common:.0%} of each step."


def rotating_sentence(verdict: Verdict) -> str:
    """Say that another rank is late in each step, and what that costs."""
    cost = f"{few(verdict.gpus_lost['rotating'])} of {sum(verdict.ranks.values())} GPUs wait"
    stage = max(verdict.rotating, key=lambda stage: verdict.rotating[stage], default=None)
    where = f", mostly {words.slow_at(stage)}" if stage else ""
    return f"Another rank is slow in each step{where}; {cost} for whichever it is."


def details(aged: AgedVerdict, late: Sequence[LateView], joined: float | None) -> list[str]:
    """Return further sentences about a verdict; *joined* is the share of steps that it is on."""
    verdict = aged.verdict
    more = late[1:] if all(each.kind == DUTY for each in late) else late  # See even_sentence.
    return [
        *(said for each in more[:MOST_NAMES] for said in _lateness(each)),
        *_slowdown(verdict, [each for each in late if each.is_called_late]),
        *_lost(verdict),
        *map(change_sentence, changed(verdict, aged.age_seconds)),
        *_covered(verdict, joined),
        *([OWN_VERDICT] if aged.judge == BY_NODE else []),
    ]


def changed(verdict: Verdict, age_seconds: float) -> list[Change]:
    """Return the changes that a *verdict* of *age_seconds* names, as of now."""
    return [
        replace(each, since_seconds=each.since_seconds + age_seconds) for each in verdict.changes
    ]


def change_sentence(change: Change) -> str:
    """Say that a peer group became slower."""
    longer = f"{change.ratio:.2f} times as long as before for {duration(change.since_seconds)}"
    cost = ""
    if change.gpus >= WORTH_A_WORD:
        cost = f"; steps take {change.step_ratio:.2f} times as long: {few(change.gpus)} GPUs lost"
    if change.slower:
        names = [str(rank) for rank in change.slower_ranks[:MOST_NAMES]]
        if change.slower > len(names):
            names.append(f"{change.slower - len(names)} more")
        return (
            f"{change.slower} ranks of peer group {change.peer_group} ({listed(names)}) became "
            f"slower together: {change.stage} has taken {longer}{cost}."
        )
    if change.stage == "sync":
        return f"All ranks of the job have waited for each other {longer}{cost}."
    return sentence(f"{change.stage} of peer group {change.peer_group} has taken {longer}{cost}.")


def lines_sentence(rank: int, lines: Sequence[LineView]) -> str:
    """Say in which *lines* of its code a late *rank* is found most, as they are sorted."""
    parts = [
        f"{stage}: {', '.join(f'{line.share:.0%} in {line.place}' for line in those)}"
        for stage, those in groupby(lines, key=lambda line: line.stage)
    ]
    return f"Code of rank {rank}: {'; '.join(parts)}."


def _likeness(late: LateView) -> tuple[str, str]:
    return late.kind, late.stage


def _alike(late: Sequence[LateView]) -> str:
    """Describe *late* ranks of the same kind and stage."""
    kind, stage = _likeness(late[0])
    if kind == PAUSES:
        return f"{_ranks(late)} {'pauses' if len(late) == 1 else 'pause'} now and then in {stage}"
    node = f", like most ranks of {_their(late)} node," if kind == NODE else ""
    doing = words.slow_at(stage)
    if len(late) > 1:
        doing = doing.replace(" its ", " their ")
    return f"{_ranks(late)}{node} {_be(len(late))} slow {doing}"


def _ranks(late: Sequence[LateView]) -> str:
    is_any_here = any(each.is_here for each in late)
    names = [
        f"{each.rank}{ELSEWHERE if is_any_here and not each.is_here else ''}"
        for each in late[:MOST_NAMES]
    ]
    if len(late) > MOST_NAMES:
        names.append(f"{len(late) - MOST_NAMES} more")
    all_elsewhere = "" if is_any_here else ELSEWHERE  # Said once, not after each.
    return f"{'rank' if len(late) == 1 else 'ranks'} {listed(names)}{all_elsewhere}"


def _longer(late: Sequence[LateView]) -> str:
    ratio = max(each.ratio for each in late)
    needs = "needs" if len(late) == 1 else "need up to"
    return f"{_ranks(late)} {needs} {ratio:.0%} more time than {_their(late)} peers"


def duty(late: LateView) -> str:
    """Say what a rank does for all, such as "rank 0 saves every 25 steps for 90 ms"."""
    often = f" every {late.every_steps} steps" if late.every_steps else " now and then"
    long = f" for {short(late.pause_seconds)}" if late.pause_seconds else ""
    does = DUTIES.get(late.stage, "works for all")
    return f"{_ranks([late])} {does}{often}{long}, and {few(late.gpus_lost)} GPUs wait for it"


def _lateness(late: LateView) -> Iterator[str]:
    if late.kind == DUTY:
        yield sentence(f"{duty(late)}.")
        return
    cost = f"; {few(late.gpus_lost)} GPUs wait for it" if late.kind != UNSYNCED else ""
    yield (
        f"Rank {late.rank} has needed {late.ratio:.0%} more time than its peers for "
        f"{duration(late.late_for_seconds)}, mostly in {late.stage}{cost}."
    )
    if late.cause is not None:
        yield cause_sentence(late.cause)


def is_slower(slowdown: float | None) -> bool:
    """Say whether steps take so much longer that it is worth a word."""
    return slowdown is not None and slowdown >= 1 + WORTH_A_WORD


def _slowdown(verdict: Verdict, late: Sequence[LateView]) -> Iterator[str]:
    slowdown = verdict.slowdown
    if late and is_slower(slowdown):
        yield f"Steps take {slowdown:.2f} times as long as without {_them(late)}."


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
        yield (
            f"{verdict.absent} of {all_ranks} ranks have not finished any step that all "
            "others have finished."
        )
    if joined is not None and joined <= 1 - WORTH_A_WORD:
        yield f"The ranks compared {joined:.0%} of their steps."


def _them(late: Sequence[LateView]) -> str:
    return "it" if len(late) == 1 else "them"


def _their(late: Sequence[LateView]) -> str:
    return "its" if len(late) == 1 else "their"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
