"""A stub of the join's judge: it is told who is late, and counts what that cost of late."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.accounting.step import charge
from rank_probe.verdict import PERSISTENT, WARMING_UP, Late, Verdict

PEER_GROUP: Final = "all"
WARMUP_STEPS: Final = 25
RECENT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Lateness:
    """A rank that is late in *stage* from a moment on, by *ratio* of its peers' time."""

    rank: int
    stage: str
    began: float
    ratio: float


@dataclass(frozen=True, slots=True)
class _Step:
    ended: float
    seconds: float
    common_seconds: float
    caused_seconds: Mapping[tuple[int, str], float]


class FakeJudge:
    """Sums up the steps of the last minute; all ranks are of one peer group."""

    def __init__(self, ranks: int, lateness: Lateness | None) -> None:
        self._ranks = ranks
        self._lateness = lateness
        self._steps = 0
        self._recent: list[_Step] = []

    def add(self, ended: float, spent: Sequence[Mapping[str, float]], common: float) -> None:
        """Take one step into account: the *spent* seconds by rank and stage, and *common* wait."""
        charges = charge(dict(enumerate(spent)), dict.fromkeys(range(self._ranks), PEER_GROUP))
        seconds = max(sum(stages.values()) for stages in spent) + common
        self._steps += 1
        self._recent = [step for step in self._recent if step.ended > ended - RECENT_SECONDS]
        self._recent.append(_Step(ended, seconds, common, charges.caused))

    def verdict(self) -> Verdict:
        """Return what there is to say after the last step."""
        ranks = {PEER_GROUP: self._ranks}
        if self._steps < WARMUP_STEPS:
            return Verdict(self._steps, ranks, reason=WARMING_UP)
        seconds = sum(step.seconds for step in self._recent)
        late = self._gpus_lost(seconds, by_the_late=True)
        rotating = self._gpus_lost(seconds, by_the_late=False)
        waited_for_late = sum(late.values()) * seconds / (self._ranks - 1)
        return Verdict(
            step=self._steps,
            ranks=ranks,
            step_seconds=seconds / len(self._recent),
            slowdown=seconds / (seconds - waited_for_late),
            gpus_lost={
                "group": 0.0,
                "persistent": sum(late.values()),
                "rotating": sum(rotating.values()),
                "common": self._ranks * sum(s.common_seconds for s in self._recent) / seconds,
            },
            rotating=rotating,
            late=(self._late(late, self._lateness),) if late and self._lateness else (),
        )

    def _gpus_lost(self, seconds: float, by_the_late: bool) -> dict[str, float]:
        gpus: dict[str, float] = defaultdict(float)
        for step in self._recent:
            for (rank, stage), waited in step.caused_seconds.items():
                if self._is_late(rank, step.ended) == by_the_late:
                    gpus[stage] += waited / seconds
        return dict(gpus)

    def _is_late(self, rank: int, ended: float) -> bool:
        late = self._lateness
        return late is not None and rank == late.rank and ended > late.began

    def _late(self, gpus: Mapping[str, float], late: Lateness) -> Late:
        return Late(
            rank=late.rank,
            peer_group=PEER_GROUP,
            stage=late.stage,
            kind=PERSISTENT,
            ratio=late.ratio,
            gpus=gpus,
            since_seconds=self._recent[-1].ended - late.began,
            steps=sum(step.ended > late.began for step in self._recent),
            confidence=3.0,
        )
