"""The judge's verdict on a job: which ranks are late, in which stage, since when, at what cost.

Each Verdict is made in one place (rank 0, or `rankskew replay`) and repeated everywhere. It travels
as JSON: through the job's store to every rank, in each rank's snapshot to its exporter.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

# How a rank can be late. persistent: step after step, always or since some moment. pauses: long
# delays now and then. node: like most ranks of its node. mild: too little for a page.
# unsynced: its time stands out, but no wait was measured, so perhaps no rank waits for it.
PERSISTENT, PAUSES, NODE, MILD, UNSYNCED = "persistent", "pauses", "node", "mild", "unsynced"
LATE_KINDS: Final = (PERSISTENT, PAUSES, NODE, MILD, UNSYNCED)

# What GPUs are lost to. These add up to all exposed waiting.
LOST_KINDS: Final = ("group", "persistent", "rotating", "common")

# Reasons why a job cannot be judged.
WARMING_UP, NO_SYNC, NO_PEERS, NO_BUSY_TIME = "warming_up", "no_sync", "no_peers", "no_busy_time"
REASONS: Final = (WARMING_UP, NO_SYNC, NO_PEERS, NO_BUSY_TIME)

# The costliest late ranks that a verdict names.
MOST_LATE: Final = 32
MOST_GROUPS: Final = 64
MOST_CHANGES: Final = 8


@dataclass(frozen=True, slots=True)
class Late:
    """One late rank.

    *ratio* is its own time over its peers', minus 1, a mean since its onset (at most the last five
    minutes); *gpus* the cost of that by stage, *stage* the one in which it began. *since_seconds*
    is how long ago the onset was, *steps* how many steps ago. *confidence* is the evidence divided
    by the evidence required.
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

    @property
    def gpus_lost(self) -> float:
        """All that the rank costs, in GPUs that wait for it."""
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True)
class Change:
    """A peer group that takes longer than before: *stage* takes *ratio* times as long."""

    peer_group: str
    stage: str
    ratio: float
    since_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a job after *step*, the last one that was judged.

    *ranks* counts the judged ranks of each peer group; *absent* counts the job's ranks that have
    never finished a step that all have. *step_seconds*, *slowdown* (how many times longer steps
    take than without the late ranks) and *gpus_lost* by kind are means of the last minute, at least
    twenty steps; *rotating* is the kind of that name by stage. *reason* is set if no rank can
    be judged.
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

    def to_json(self) -> dict[str, Any]:
        """Return a dict that `from_json` reads, with numbers to six digits."""
        return _short(asdict(self))  # type: ignore[no-any-return]


def from_json(said: Mapping[str, Any]) -> Verdict:
    """Return the verdict in *said*; raises TypeError if it has other fields."""
    return Verdict(
        **{
            **said,
            "late": tuple(Late(**each) for each in said["late"]),
            "changes": tuple(Change(**each) for each in said["changes"]),
        }
    )


def _short(said: Any) -> Any:
    if isinstance(said, float):
        return float(f"{said:.6g}")
    if isinstance(said, Mapping):
        return {key: _short(each) for key, each in said.items()}
    if isinstance(said, list | tuple):
        return [_short(each) for each in said]
    return said
