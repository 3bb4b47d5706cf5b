"""Verdicts become findings: one for each incident, with its onset, its end and what it cost."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rank_probe.judge.verdict import WARMING_UP, Late, Verdict
from rankskew.replay.findings import findings, not_judgeable
from rankskew.replay.judge import JudgedStretch
from rankskew.replay.traces import TraceStretch
from tests.printed import assert_golden

INSTANCES = {rank: f"node{rank // 2}" for rank in range(8)}


def late(since: float, rank: int = 3, kind: str = "persistent", gpus: float = 2.0) -> Late:
    """Return a rank that has been late for *since* seconds."""
    return Late(rank, "pp0", "data", kind, 0.5, {"data": gpus}, since, 30, 2.0)


def verdict(*ranks: Late, lost: Mapping[str, float] | None = None, **fields: Any) -> Verdict:
    kinds = dict.fromkeys(("group", "persistent", "rotating", "common"), 0.0)
    said: dict[str, Any] = {
        "step_seconds": 1.0,
        "gpus_lost": kinds | dict(lost or {}),
        "rotating": {},
    }
    return Verdict(100, {"pp0": 8}, late=ranks, **(said | fields))


def judged(verdicts: Mapping[int, Verdict], begin: float = 0.0, warm: float = 5.0) -> JudgedStretch:
    """Return a stretch that begins at *begin*, with these verdicts."""
    stretch = TraceStretch(tuple(range(8)), range(100), begin, max(verdicts))
    return JudgedStretch(stretch, list(verdicts.items()), begin + warm)


def shares(*parts: tuple[int, float], kind: str = "rotating") -> JudgedStretch:
    """Return verdicts every 10 s: so many of them, and the share of the GPUs that is lost."""
    lost = [share * 8 for count, share in parts for _ in range(count)]
    return judged(
        {
            40 + 10 * at: verdict(lost={kind: gpus}, rotating={"data": gpus / 3, "eval": gpus})
            for at, gpus in enumerate(lost)
        }
    )


def costing(*gpus: float) -> list[JudgedStretch]:
    """Return a verdict on ranks that cost so much each."""
    those = [late(20, rank=3 + number, gpus=each) for number, each in enumerate(gpus)]
    return [judged({60: verdict(*those)})]


def of_kinds(*kinds: str) -> list[JudgedStretch]:
    """Return verdicts that call a rank late in these kinds, one after the other."""
    return [
        judged({60 + 2 * n: verdict(late(20 + 2 * n, kind=each)) for n, each in enumerate(kinds)})
    ]


WARMING: Final = {at: verdict(reason=WARMING_UP) for at in range(10)}
BLIND: Final = {40: verdict(reason="no_sync")}
NODE: Final = [late(20, rank=2, kind="node", gpus=1.0), late(18, rank=3, kind="node", gpus=0.5)]
ELSEWHERE: Final = late(20, rank=6, kind="node", gpus=0.25)
UNSYNCED: Final = late(20, kind="unsynced", gpus=0.0)
STORIES: Final[Mapping[str, Sequence[JudgedStretch]]] = {
    # Verdicts in a row with one onset are one: from the onset, and to the first that is silent.
    "an incident, with its mean cost": [
        judged(
            {
                40: verdict(),
                60: verdict(late(20, gpus=3.0)),
                62: verdict(late(22.5, gpus=2.0)),
                64: verdict(late(24, gpus=1.0)),
                66: verdict(),
                68: verdict(),
            }
        )
    ],
    "another onset": [
        judged({60: verdict(late(20)), 80: verdict(), 90: verdict(late(8)), 92: verdict(late(10))})
    ],
    # The judge looks at no step before the end of the warm-up, so it cannot know better.
    "from the beginning": [judged({30: verdict(late(25))})],
    # At the end of a stretch and at the beginning of the next is one; else it has ended.
    "other ranks come or go": [
        judged({50: verdict(late(20), late(20, rank=5))}),
        judged({60: verdict(reason=WARMING_UP)}, begin=55),
        judged({100: verdict(late(35)), 120: verdict(late(55))}, begin=60),
    ],
    "slow node, and another": [judged({60: verdict(*NODE), 62: verdict(*NODE, ELSEWHERE)})],
    # A rank that is late before its neighbour belongs to a slow node; mild means always mild. A
    # mild rank pages nobody, whatever it costs.
    "node most of the time": of_kinds("persistent", "node", "node"),
    "mild most of the time": of_kinds("mild", "mild", "persistent"),
    "always mild": of_kinds("mild"),
    "no wait measured": [judged({60: verdict(UNSYNCED, reason="no_sync")})],
    # Over a hundredth of the job's GPUs it warns, over a twentieth it pages; so do two ranks
    # together. Nobody is told of a tenth before the costliest is mended.
    "little": costing(0.05),
    "a warning": costing(0.1),
    "a page": costing(0.5),
    "a page together": costing(0.3, 0.3),
    "a page, and a tenth of it": costing(2.0, 0.2),
    # Where more than the threshold is lost for minutes: since when, in which stage, how much.
    "late in turn": [shares((20, 0.02), (40, 0.3), (20, 0.02))],
    "lost too little": [shares((80, 0.09), kind="common")],
    "lost for too short": [shares((20, 0.0), (20, 0.3), (40, 0.0), kind="common")],
    "lost now and then": [shares(*[(1, 0.15), (1, 0.0)] * 40, kind="common")],
    # Half of the run is enough if it is shorter than the rules wait.
    "lost in a short run": [shares((8, 0.3), kind="common")],
    # A reason is told if it stood for half of the run. The warm-up does not count, unless nothing
    # came after it.
    "half of it without a wait": [judged(WARMING | BLIND | {50: verdict()})],
    "a third of it without a wait": [judged(WARMING | BLIND | {50: verdict(), 60: verdict()})],
    "warm-up only": [judged(WARMING)],
}


def told(stretches: Sequence[JudgedStretch]) -> str:
    """Return the findings, a line each, and why the rest is not judged."""
    lines = []
    for one in findings(stretches, INSTANCES):
        end = "the end" if one.cleared_s is None else f"{one.cleared_s:g} s"
        where = f"{one.kind} ({one.severity}) on {one.instance}"
        lines += [
            f"{one.onset_s:g} s to {end}, named at {one.named_s:g} s: {where}, stage {one.stage}",
            f"  {one.sentence}",
        ]
    lines += [f"Not judgeable: {each}" for each in not_judgeable(stretches)]
    return "\n".join(lines) or "Nothing found."


def test_stories_are_the_golden_ones() -> None:
    """Nobody hears of what the rules would not tell."""
    assert_golden("findings", {name: told(stretches) for name, stretches in STORIES.items()})
