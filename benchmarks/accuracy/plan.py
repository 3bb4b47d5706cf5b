"""The faults that the accuracy benchmark plants: which rank is late, where, when, by how much."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

# Shares of a step for a healthy rank, and where else a delay may be.
SHARES: Final = {"data": 0.2, "forward": 0.3, "backward": 0.4, "optimizer": 0.1}
CHECKPOINT, GARBAGE = "checkpoint", "garbage"
PLACES: Final = (*SHARES, CHECKPOINT, GARBAGE)

# Real ranks train in these ways; simulated ones only post to the join.
JOIN: Final = "join"
WAYS: Final = ("ddp", "fsdp2", JOIN)
JOIN_RANKS, JOIN_NODE_RANKS = 64, 8
RANKS: Final = (2, 4, 8, JOIN_RANKS)
# A rank that is late by FAINT may be reported as `mild`.
FAINT: Final = 0.03
SIZES: Final = (FAINT, 0.05, 0.1, 0.25, 0.5, 1.0)
SEEDS: Final = (1, 2, 3)

HEALTHY_STEPS, FAULTY_STEPS = 60, 150
TRANSIENT_STEPS: Final = 20
# A rank that saves is reported once it has also saved six minutes before.
CHECKPOINT_STEPS: Final = 270
# A delay this small is reported after five minutes.
FAINT_STEPS: Final = 300
# A job is compared with its own past, in bins of about twenty steps. A change of 6 % shows after
# twelve bins, if twelve came before it.
CHANGE_STEPS: Final = 420
HOUR_STEPS: Final = 1800
# Checkpoints and long collections come once in so many steps, with the delay of all of them.
EVERY: Final = 10
# A duty comes once in so many steps, with this mean delay per step, for which the others wait.
DUTY_EVERY, DUTY_SIZE = 25, 0.016
CHANGE_SIZES: Final = (0.06, 0.15)
CHANGE_STAGES: Final = ("forward", "backward", "data")
# Random garbage collections: their chance in a step, and their length in steps.
GARBAGE_CHANCE, GARBAGE_STEPS = 0.02, 0.5
NOISE: Final = 0.2
# No rank permanently differs by more than this from the usual.
SPREAD: Final = 0.02
# A process at these nicenesses leaves about 1/1.1, 1/1.3 and half of its core to the rank.
NICENESS: Final = {0.1: 10, 0.25: 5, 1.0: 0}

LOAD, DUTY, CHANGE = "load", "duty", "change"
SET, SET_MOST, NODE_MOST = "set", "set_most", "node_most"
HEALTHY: Final = ("none", "noise", "noise_together", "spread", "garbage", LOAD)
STAGES: Final = ("data", "forward", "backward", "optimizer", "checkpoint")
# Faults of a single late rank, also planted at size FAINT.
ALONE: Final = (*STAGES, "gc")
# More than a third of the ranks are late together, more than two thirds, or all of them.
TOGETHER: Final = (SET, SET_MOST, NODE_MOST, CHANGE)
SINGLE: Final = (
    *ALONE,
    "hog",
    "rotating",
    "transient",
    "two",
    "node",
    "compute",
    *(fault for fault in HEALTHY if fault != LOAD),
)
FAULTS: Final = (*SINGLE, *TOGETHER, DUTY, LOAD)
JOIN_FAULTS: Final = ("data", "node", *TOGETHER, DUTY, "none")

# The right kind of finding; None: nothing should be found.
KIND: Final = (
    {"rotating": "rotating", "node": "node", DUTY: DUTY}
    | dict.fromkeys((SET_MOST, NODE_MOST, CHANGE), CHANGE)
    | dict.fromkeys(HEALTHY)
)

Late = tuple[int, str]  # a rank and the stage in which it is late


@dataclass(frozen=True)
class Segment:
    """A run of one job: first healthy, then with one *fault*.

    *size* is a rank's delay as a fraction of a healthy step, averaged over the faulty steps; 0 in
    healthy segments. Steps count from 0.
    """

    way: str
    ranks: int
    seed: int
    fault: str
    size: float = 0.0
    healthy_steps: int = HEALTHY_STEPS
    faulty_steps: int = FAULTY_STEPS

    @property
    def key(self) -> str:
        """Its name in the results, and its job_id."""
        return f"{self.way}-{self.ranks}-{self.seed}-{self.fault}-{self.size * 100:g}"

    @property
    def fault_steps(self) -> int:
        """How many steps the fault lasts."""
        return self.fault_ends - self.healthy_steps

    @property
    def steps(self) -> int:
        """All steps of the segment."""
        return self.healthy_steps + self.faulty_steps

    @property
    def fault_ends(self) -> int:
        """The first step after the fault."""
        return self.healthy_steps + TRANSIENT_STEPS if self.fault == "transient" else self.steps

    @property
    def kind(self) -> str | None:
        """The right kind of finding, None if there should be none."""
        return KIND.get(self.fault, "persistent")

    def late(self) -> list[Late]:
        """Return the late ranks with their stages; empty if it is a different rank in each step."""
        usual = (self.seed - 1) % self.ranks
        if self.fault in (CHECKPOINT, DUTY, "hog"):
            # The hog runs on rank 0's core, and backward is most of what rank 0 computes.
            return [(0, "backward" if self.fault == "hog" else CHECKPOINT)]
        if self.fault in SHARES:
            return [(usual, self.fault)]
        if self.fault == "gc":
            return [(self.ranks - 1, "forward")]
        if self.fault == "two":
            return [(0, "data"), (self.ranks - 1, "backward")]
        if self.fault == "node":
            last = self.node(self.ranks - 1)
            return [(rank, "forward") for rank in range(self.ranks) if self.node(rank) == last]
        if self.fault in TOGETHER:
            return [(rank, self._changed_stage()) for rank in self._together()]
        return {"transient": [(usual, "data")], "compute": [(usual, "forward")]}.get(self.fault, [])

    def _together(self) -> list[int]:
        """Return the ranks that are late together."""
        everybody = range(self.ranks)
        if self.fault == CHANGE:
            return list(everybody)
        if self.fault == SET:  # As few of each node as can be.
            return list(everybody[1::2][: self.ranks // 3 + 1])
        few = self.ranks - _most(self.ranks)
        healthy = {
            each if self.fault == NODE_MOST else each * self.ranks // few for each in range(few)
        }
        return [rank for rank in everybody if rank not in healthy]

    def _changed_stage(self) -> str:
        return CHANGE_STAGES[(self.seed - 1) % len(CHANGE_STAGES)]

    @property
    def stage(self) -> str | None:
        """The only stage in which time is lost, None for several or none."""
        stages = {stage for _, stage in self.late()} or {"forward"}
        return stages.pop() if self.kind is not None and len(stages) == 1 else None

    def node(self, rank: int) -> int:
        """Return the node of *rank*: with four or more ranks there are two.

        In NODE_MOST the second has more than two thirds of the ranks.
        """
        if self.fault == NODE_MOST:
            return int(rank >= self.ranks - _most(self.ranks))
        if self.way == JOIN:
            return rank // JOIN_NODE_RANKS
        return rank * 2 // self.ranks if self.ranks > 2 else 0

    def paces(self, rank: int) -> list[float]:
        """Return the factors of *rank*'s own work relative to the usual, by stage as in SHARES.

        They are the same in every step.
        """
        if self.fault != "spread":
            return [1.0] * len(SHARES)
        factor = 1 + random.Random(f"{self.key} {rank}").uniform(-SPREAD, SPREAD)
        return [factor] * len(SHARES)

    def noise(self, rank: int, step: int) -> list[float]:
        """Return the factors by which the stages of one step differ from the rank's usual ones."""
        if self.fault == "noise":
            draw = random.Random(f"{self.key} {rank} {step}")
            return [max(0.2, draw.gauss(1, NOISE)) for _ in SHARES]
        if self.fault == "noise_together":
            return [max(0.2, random.Random(f"{self.key} {step}").gauss(1, NOISE))] * len(SHARES)
        return [1.0] * len(SHARES)

    def delay(self, rank: int, step: int) -> tuple[str, float] | None:
        """Return where *rank* is late in *step* and by how many healthy steps; None: it is not."""
        if self.fault == "garbage":
            pauses = random.Random(f"{self.key} {rank} {step}").random() < GARBAGE_CHANCE
            return (GARBAGE, GARBAGE_STEPS) if pauses else None
        if self.fault == "hog" or not self.healthy_steps <= step < self.fault_ends or not self.size:
            return None
        if self.fault == "rotating":
            chosen = random.Random(f"{self.key} {step}").randrange(self.ranks)
            return ("forward", self.size) if chosen == rank else None
        stage = dict(self.late()).get(rank)
        if stage is None:
            return None
        if self.fault in (CHECKPOINT, DUTY, "gc"):
            place = GARBAGE if self.fault == "gc" else CHECKPOINT
            every = DUTY_EVERY if self.fault == DUTY else EVERY
            return (place, every * self.size) if step % every == 0 else None
        return stage, self.size

    def to_json(self) -> dict[str, Any]:
        """Return JSON that `Segment(**json)` reads."""
        return asdict(self)


def grid(
    ways: Iterable[str] = WAYS,
    ranks: Iterable[int] = RANKS,
    seeds: Iterable[int] = SEEDS,
    faults: Sequence[str] = FAULTS,
    sizes: Sequence[float] = SIZES,
) -> Iterator[list[Segment]]:
    """Yield the segments of each job: one way to train, a number of ranks and a seed."""
    for way in ways:
        for count in ranks:
            for seed in seeds:
                job = [
                    Segment(way, count, seed, fault, size, *_steps(fault, size))
                    for fault in faults
                    if _makes_sense(way, fault, count)
                    for size in _sizes(fault, sizes)
                ]
                if job:
                    yield job


def _sizes(fault: str, sizes: Sequence[float]) -> Sequence[float]:
    if fault in HEALTHY:
        return (0.0,)
    if fault in (CHANGE, DUTY):
        return CHANGE_SIZES if fault == CHANGE else (DUTY_SIZE,)
    if fault == "hog":
        return [size for size in sizes if size in NICENESS]
    return [size for size in sizes if size > FAINT or fault in ALONE]


def _steps(fault: str, size: float) -> tuple[int, int]:
    """Return how many steps are healthy, and how many faulty."""
    if KIND.get(fault) == CHANGE:
        return CHANGE_STEPS, CHANGE_STEPS
    if fault == LOAD:
        return HEALTHY_STEPS, HOUR_STEPS - HEALTHY_STEPS
    if size == FAINT:
        return HEALTHY_STEPS, FAINT_STEPS
    return HEALTHY_STEPS, CHECKPOINT_STEPS if fault in (CHECKPOINT, DUTY) else FAULTY_STEPS


def _most(ranks: int) -> int:
    """Return the smallest number that is more than two thirds of *ranks*."""
    return ranks * 2 // 3 + 1


def _makes_sense(way: str, fault: str, ranks: int) -> bool:
    """Return whether late ranks have peers, and ranks that multiply matrices a core each."""
    if ranks == JOIN_RANKS or way == JOIN:
        return ranks == JOIN_RANKS and way == JOIN and fault in JOIN_FAULTS
    if fault in ("two", "node", SET, SET_MOST, NODE_MOST):
        return ranks > 2
    return fault != "compute" or (ranks == 2 and way == "ddp")
