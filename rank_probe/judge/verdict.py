"""The judge's verdict on a job: which ranks are late, in which stage, since when, at what cost.

Each Verdict is made in one place (rank 0, or `rankskew replay`) and repeated everywhere. It travels
as JSON: through the job's store to every rank, in each rank's snapshot to its exporter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from rank_probe.wire.stages import STAGES, SYNC

# How a rank can be late. persistent: step after step, always or since some moment. pauses: long
# delays now and then. duty: pauses for what one rank does for all, such as to write a checkpoint.
# node: like most ranks of its node. mild: too little for a page.
# unsynced: its time stands out, but no wait was measured, so perhaps no rank waits for it.
PERSISTENT, PAUSES, DUTY, NODE = "persistent", "pauses", "duty", "node"
MILD, UNSYNCED = "mild", "unsynced"
LATE_KINDS: Final = (PERSISTENT, PAUSES, DUTY, NODE, MILD, UNSYNCED)
# The kinds in schema 1, which sends a duty as a pause with IS_DUTY.
SENT_KINDS: Final = (PERSISTENT, PAUSES, NODE, MILD, UNSYNCED)
IS_DUTY: Final = "is_duty"
# Those that may page: a mildly late rank is within the noise of a healthy job.
NAMED: Final = (PERSISTENT, PAUSES, NODE)
WORK_STAGES: Final = STAGES[:SYNC]

# What GPUs are lost to. The kinds add up to all exposed waits and all stops of all ranks at once:
# pause is one long stop, shared are recurring ones. noise is the cost of usual variation.
LOST_KINDS: Final = ("group", "persistent", "pause", "rotating", "noise", "common", "shared")
# Kinds that schema 1 lacks: they are sent as a part of another kind, or of none.
SENT_AS: Final = {"pause": "persistent", "noise": "rotating", "shared": None}
WAIT_KINDS: Final = tuple(kind for kind in LOST_KINDS if kind not in SENT_AS)
APART: Final = "lost_apart"

# Reasons why a job cannot be judged.
WARMING_UP, NO_SYNC, NO_PEERS, NO_BUSY_TIME = "warming_up", "no_sync", "no_peers", "no_busy_time"
REASONS: Final = (WARMING_UP, NO_SYNC, NO_PEERS, NO_BUSY_TIME)

# The costliest late ranks that a verdict names.
MOST_LATE: Final = 32
# A named rank keeps its place unless another costs more than this many times as much.
OVERTAKES: Final = 4 / 3
MOST_GROUPS: Final = 64
MOST_CHANGES: Final = 8
MOST_TOGETHER: Final = 4
MOST_PAUSES: Final = 8
# The most stretches of ranks that are sent for a set.
MOST_SPANS: Final = 32

# Ranks without a gap: the first and the last.
Span = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Late:
    """One late rank.

    *ratio* is its own time over its peers', minus 1, a mean since its onset (at most the last five
    minutes); *gpus* the cost of that by stage, *stage* the one in which it began. *since_seconds*
    is how long ago the onset was, *steps* how many steps ago. *confidence* is the evidence divided
    by the evidence required. Of a rank that pauses, *every_steps* is the median distance between
    two pauses and *pause_seconds* the median length of one; both are 0 of any other. *has_risen*
    says that *ratio* is over what the rank itself needed before, not over its peers' time. *at* is
    what is known of its WHEREABOUTS, see process.facts.
    """

    rank: int
    peer_group: str
    stage: str
    kind: str
    ratio: float
    gpus: Mapping[str, float]
    since_seconds: float
    steps: int
    confidence: float
    every_steps: int = 0
    pause_seconds: float = 0.0
    has_risen: bool = False
    at: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus_lost(self) -> float:
        """All that the rank costs, in GPUs that wait for it."""
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True)
class Change:
    """A peer group that takes longer than before: *stage* takes *ratio* times as long.

    The job's whole steps take *step_ratio* times as long, which costs it *gpus*. A *stage* `sync`
    is the wait that all ranks have in common. If only some ranks of the group are slower, *slower*
    is how many of its *peers*, and *slower_ranks* are at most MOST_LATE of them; *slower_spans* are
    all of them, unless they are in more than MOST_SPANS stretches. *in_common* is what they have
    and the others of the group lack, such as `rack r12`; empty if nothing is known.
    """

    peer_group: str
    stage: str
    ratio: float
    since_seconds: float
    step_ratio: float = 1.0
    gpus: float = 0.0
    slower: int = 0
    slower_ranks: tuple[int, ...] = ()
    slower_spans: tuple[Span, ...] = ()
    peers: int = 0
    in_common: str = ""


@dataclass(frozen=True, slots=True)
class Together:
    """So many late *ranks*, which became late in one *stage* at about the same time.

    *spans* are all of them, unless they are in more than MOST_SPANS stretches. *in_common* is what
    they have and every other rank lacks, such as `rack r12`; empty if nothing is known, and they
    are a set because they are more than a third of the job.
    """

    stage: str
    ranks: int
    since_seconds: float
    spans: tuple[Span, ...] = ()
    in_common: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """One long stop: *rank*, or None for all, took *seconds* longer in *stage* than usual.

    It cost *gpu_seconds*, and ended *since_seconds* ago, with *step*.
    """

    rank: int | None
    stage: str
    step: int
    since_seconds: float
    seconds: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """What all ranks stop for in *stage*, at once or *in_turn*, for this *share* of the time.

    A stop takes *seconds* and recurs after *every_steps*, as medians; both are 0 if it is in each
    step. In turn, *every_steps* is the distance between two stops of one rank; 0 if unknown.
    """

    stage: str
    share: float
    every_steps: int = 0
    seconds: float = 0.0
    in_turn: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a job after *step*, the last one that was judged.

    *ranks* counts the judged ranks of each peer group; *absent* counts the job's ranks that have
    finished no step with all others. *step_seconds*, *slowdown* (how many times longer steps
    take than without the late ranks) and *gpus_lost* by kind are means of the last minute, at least
    twenty steps; *rotating* is the kind of that name by stage. *reason* is set if no rank can
    be judged. *pauses* are the costliest of the last half hour, the latest first. While no step
    ends, *suspect* has the *rank* that the job waits for, see judge.standing, and its WHEREABOUTS;
    a suspect without a stage is silent.
    """

    step: int
    ranks: Mapping[str, int]
    absent: int = 0
    reason: str | None = None
    step_seconds: float | None = None
    slowdown: float | None = None
    gpus_lost: Mapping[str, float] = field(default_factory=dict)
    rotating: Mapping[str, float] = field(default_factory=dict)
    late: tuple[Late, ...] = ()
    changes: tuple[Change, ...] = ()
    together: tuple[Together, ...] = ()
    pauses: tuple[Pause, ...] = ()
    stalls: tuple[Stall, ...] = ()
    suspect: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_turn(self) -> Stall | None:
        """The stall in which ranks stop in turn; None if there is none."""
        return next((each for each in self.stalls if each.in_turn), None)

    @property
    def stall_ratios(self) -> dict[str, float]:
        """The share of the time for which all ranks stop at once, by stage."""
        return {each.stage: each.share for each in self.stalls if not each.in_turn}

    def to_json(self) -> dict[str, Any]:
        """Return a dict that `from_json` reads, with numbers to six digits."""
        said = asdict(self)
        for late in said["late"]:
            late[IS_DUTY] = late["kind"] == DUTY
            late["kind"] = PAUSES if late[IS_DUTY] else late["kind"]
        if len(groups := said["ranks"]) > MOST_GROUPS:
            largest = sorted(groups, key=lambda name: -groups[name])[: MOST_GROUPS - 1]
            told = {name: groups[name] for name in largest}
            said["ranks"] = told | {"others": sum(groups.values()) - sum(told.values())}
        lost = said["gpus_lost"]
        said[APART] = {kind: lost.pop(kind) for kind in SENT_AS if kind in lost}
        for kind, gpus in said[APART].items():
            if whole := SENT_AS[kind]:
                lost[whole] = lost.get(whole, 0.0) + gpus
        return _short(said)  # type: ignore[no-any-return]


def settled(those: Iterable[T], cost: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Return *those* in their order, but each before the first one that it OVERTAKES in *cost*."""
    order: list[T] = []
    for each in those:
        own, place = cost(each), 0
        while place < len(order) and own <= tuple(OVERTAKES * part for part in cost(order[place])):
            place += 1
        order.insert(place, each)
    return order


def from_json(said: Mapping[str, Any]) -> Verdict:
    """Return the verdict in *said*; raises TypeError if it has other fields."""
    lost, apart = dict(said["gpus_lost"]), said.get(APART, {})
    for kind, gpus in apart.items():
        if whole := SENT_AS[kind]:
            lost[whole] = max(lost.get(whole, 0.0) - gpus, 0.0)
    return Verdict(
        **{
            **{name: value for name, value in said.items() if name != APART},
            "gpus_lost": lost | apart,
            "late": tuple(map(_late, said["late"])),
            "changes": tuple(map(_change, said["changes"])),
            "together": tuple(map(_together, said.get("together", ()))),
            "pauses": tuple(Pause(**each) for each in said.get("pauses", ())),
            "stalls": tuple(Stall(**each) for each in said.get("stalls", ())),
        }
    )


def late_stage(
    verdict: Mapping[str, Any] | None, rank: int, answer: Mapping[str, object]
) -> str | None:
    """Return the stage in which *rank* is late; None if it is not.

    The *verdict* of the job's judge, in the form that is sent, decides. Without one, the
    exporter's last *answer* to a push does; it compares only the ranks of its node.
    """
    if verdict is None:
        said = answer.get("late")
        return said if isinstance(said, str) and said in WORK_STAGES else None
    for each in verdict["late"]:
        if each["rank"] == rank and each["kind"] in NAMED and not each.get(IS_DUTY):
            return str(each["stage"])
    return None


def _late(said: Mapping[str, Any]) -> Late:
    known = {name: value for name, value in said.items() if name != IS_DUTY}
    return Late(**(known | {"kind": DUTY} if said.get(IS_DUTY) else known))


def _change(said: Mapping[str, Any]) -> Change:
    ranks, spans = tuple(said.get("slower_ranks", ())), _spans(said.get("slower_spans", ()))
    return Change(**{**said, "slower_ranks": ranks, "slower_spans": spans})


def _together(said: Mapping[str, Any]) -> Together:
    return Together(**{**said, "spans": _spans(said["spans"])})


def _spans(said: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    return tuple((first, last) for first, last in said)


def _short(said: Any) -> Any:
    if isinstance(said, float):
        return float(f"{said:.6g}")
    if isinstance(said, Mapping):
        return {key: _short(each) for key, each in said.items()}
    if isinstance(said, list | tuple):
        return [_short(each) for each in said]
    return said
