"""How often the judge names a rank in healthy jobs, by the kind of their noise.

    python -m benchmarks.accuracy.false_names [--share SHARE]

Steps of jobs with RANKS ranks are drawn at random, and judged as in the join (20 minutes on two
CPUs). In the long run no rank differs from the others. If no rank is named in n rank-hours, the
rate is below one in n / 3 rank-hours, with 95 % confidence (the rule of three: J. A. Hanley and
A. Lippman-Hand, JAMA 249, 1983). Writes results/false_names.json.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final

from benchmarks.report import Row, number, show, write
from generators.markdown import table
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import DUTY, MILD
from rankskew.accounting.windows import PlainReduction

RANKS, NODES = 8, 2
SEEDS: Final = range(1, 4)
# Hours of a job, by seconds of a step: 30,000 rank-hours of long steps, 120 of short ones in all.
HOURS: Final = {60.0: 1250.0, 1.0: 5.0}
SHARES: Final = {"data": 0.2, "forward": 0.3, "backward": 0.5}
# How often rank 0 judges the new steps.
ROUND_SECONDS: Final = 2.0
EXCHANGE_SHARE: Final = 0.06

# Each step's own time of every rank, relative to a usual step.
Noise = Iterator[list[float]]
# Draws the noise at random, for steps of so many seconds.
Kind = Callable[[random.Random, float], Noise]


def plain(draw: random.Random, _step_seconds: float) -> Noise:
    """Independent noise of each rank, 3 %."""
    while True:
        yield [1 + draw.gauss(0, 0.03) for _ in range(RANKS)]


def heavy_tails(draw: random.Random, _step_seconds: float) -> Noise:
    """Student's t with three degrees of freedom, of 3 %: some steps take twice as long."""
    while True:
        yield [max(0.5, 1 + 0.03 * _student(draw, 3)) for _ in range(RANKS)]


def correlated(draw: random.Random, _step_seconds: float) -> Noise:
    """Per rank, 2 % that lasts for about ten steps, plus 2 % from step to step."""
    last = [remembering(draw, 0.02, 10) for _ in range(RANKS)]
    while True:
        yield [1 + next(each) + draw.gauss(0, 0.02) for each in last]


def nodes_drift(draw: random.Random, step_seconds: float) -> Noise:
    """Per node, 1 % that lasts for half an hour, plus 2 % per step and rank."""
    last = [remembering(draw, 0.01, 1800 / step_seconds) for _ in range(NODES)]
    while True:
        now = [next(each) for each in last]
        yield [1 + now[rank * NODES // RANKS] + draw.gauss(0, 0.02) for rank in range(RANKS)]


def in_turn(draw: random.Random, _step_seconds: float) -> Noise:
    """A different rank in each step takes half as long again, as with batches of uneven length."""
    while True:
        late = draw.randrange(RANKS)
        yield [1 + draw.gauss(0, 0.02) + 0.5 * (rank == late) for rank in range(RANKS)]


KINDS: Final[dict[str, Kind]] = {
    "plain": plain,
    "heavy tails": heavy_tails,
    "correlated in time": correlated,
    "nodes that drift": nodes_drift,
    "late in turn": in_turn,
}


def _student(draw: random.Random, degrees: int) -> float:
    return draw.gauss(0, 1) / math.sqrt(draw.gammavariate(degrees / 2, 2) / degrees)


def remembering(draw: random.Random, deviation: float, steps: float) -> Iterator[float]:
    """Yield an AR(1) process with this *deviation*, which forgets in so many *steps*."""
    kept = math.exp(-1 / steps)
    at = draw.gauss(0, deviation)
    while True:
        yield at
        at = kept * at + draw.gauss(0, deviation * math.sqrt(1 - kept**2))


def told(kind: Kind, step_seconds: float, hours: float, seed: int) -> Counter[str]:
    """Judge one job; count how often a rank was *named*, and how often only as *mild*.

    *incidents* counts how often that happened while no rank was named. *changes* counts the reports
    that all ranks, or many, take longer than before.
    """
    ranks = range(RANKS)
    reduction = PlainReduction(
        dict.fromkeys(ranks, "all"), {rank: rank * NODES // RANKS for rank in ranks}
    )
    judge, noise = Judge(reduction), kind(random.Random(seed), step_seconds)
    now, due, leaders = 0.0, 0.0, []
    known: set[tuple[int, bool]] = set()
    slower: set[str] = set()
    found: Counter[str] = Counter()
    for step in range(1, round(hours * 3600 / step_seconds) + 1):
        own = [step_seconds * each for each in next(noise)]
        length = max(own) + EXCHANGE_SHARE * step_seconds
        now += length
        stages = {
            rank: {stage: share * own[rank] for stage, share in SHARES.items()}
            | {"sync": length - own[rank]}
            for rank in ranks
        }
        leaders.append(reduction.add(step, stages, now))
        if now < due:
            continue
        verdict = judge.judge(reduction.mark(now), leaders, step=step)
        leaders, due = [], now + ROUND_SECONDS
        said = {(late.rank, late.kind == MILD) for late in verdict.late if late.kind != DUTY}
        changed = {change.stage for change in verdict.changes}
        new = [is_mild for _, is_mild in said - known]
        found["named"] += new.count(False)
        found["mild"] += new.count(True)
        found["incidents"] += bool(new) and not known
        found["changes"] += len(changed - slower)
        known, slower = said, changed
    return found


def row(kind: str, step_seconds: float, hours: float) -> dict[str, Any]:
    """Judge a job for each of SEEDS, as many at a time as there are CPUs."""
    with ProcessPoolExecutor() as pool:
        each = partial(told, KINDS[kind], step_seconds, hours)
        found = sum(pool.map(each, SEEDS), Counter[str]())
    return {
        "noise": kind,
        "step, s": step_seconds,
        "rank-hours": round(RANKS * hours * len(SEEDS)),
        **{name: found[name] for name in ("incidents", "named", "mild")},
    }


def table_of(result: Row) -> str:
    """Return a row for each kind of noise and length of a step."""
    made = result["rows"]
    cells = [(row["noise"], *map(number, list(row.values())[1:])) for row in made]
    return table(tuple(made[0]), cells)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How often is a healthy rank named?")
    parser.add_argument("--share", type=float, default=1.0, help="of the hours")
    options = parser.parse_args()
    rows = []
    for step_seconds, hours in HOURS.items():
        for kind in KINDS:
            rows.append(row(kind, step_seconds, options.share * hours))
            show(rows[-1:])
    write("false_names", rows, tables={"false_names": table_of})


if __name__ == "__main__":
    main()
