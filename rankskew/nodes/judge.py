"""Which nodes are lemons: late more often, for the hours that they were used, than the others.

Incidents with a cause that a job takes along (its code, its input) are counted, and accuse nobody.
The others are a Poisson process whose rate is compared with that of all other nodes. A node is a
lemon if chance alone would make one node of a fleet of this size that bad once in a hundred times,
in at least two jobs and on three days: what happens within hours is seldom independent. Whatever
has a higher rate and is not certain is told as that.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankskew.nodes import poisson
from rankskew.nodes.model import NodeIncident, NodePast, summed
from rankskew.report.times import DAY_SECONDS, Span

ERROR: Final = 0.01
# Below this many times the others' rate nobody would act.
LEAST_RATIO: Final = 2.0
LEAST_JOBS: Final = 2
LEAST_DAYS: Final = 3
# Most of what was lost.
MOST: Final = 0.75
CHANGE_ERROR: Final = 0.01


class NodeVerdict(enum.StrEnum):
    """What is said of a node."""

    LEMON = "lemon"
    UNCERTAIN = "uncertain"
    ONE_JOB = "one job only"
    FINE = "as the others"


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """A node's or GPU's *past*, its rate of incidents as a multiple of the others', its verdict.

    *interval* has the multiples that its count of incidents does not refute (95 %), *chance* is the
    probability of as many at the others' rate. *job* is the only one with incidents, *gpu* the one
    that most was lost to, *driver* the version since which it is late, with when that came.
    """

    past: NodePast
    verdict: NodeVerdict
    ratio: float
    interval: Span
    chance: float = 1.0
    job: str = ""
    gpu: str = ""
    driver: tuple[str, float] | None = None


def judged(pasts: Sequence[NodePast]) -> list[NodeFinding]:
    """Return a verdict on each of *pasts*: lemons first, by what they cost; then the likeliest."""
    count = sum(len(each.own) for each in pasts)
    used = sum(each.used_gpu_hours for each in pasts)
    found = [_judge(each, count, used, len(pasts)) for each in pasts]
    return sorted(found, key=_order)


def _order(each: NodeFinding) -> tuple[int, float, float, str]:
    is_lemon = each.verdict is NodeVerdict.LEMON
    likely = 0.0 if is_lemon else each.chance
    place = list(NodeVerdict).index(each.verdict)
    return place, likely, -each.past.lost_gpu_hours, each.past.name


def beyond_their_nodes(
    gpus: Sequence[NodeFinding], nodes: Sequence[NodeFinding]
) -> list[NodeFinding]:
    """Return *gpus* without those that were late with all of their node, which is a lemon."""
    whole = [each for each in nodes if each.verdict is NodeVerdict.LEMON and not each.gpu]
    late_with_it = {(each.past.cluster, gpu) for each in whole for gpu in each.past.gpus()}
    return [each for each in gpus if (each.past.cluster, each.past.name) not in late_with_it]


def _judge(past: NodePast, count: int, used: float, nodes: int) -> NodeFinding:
    own = past.own
    others, others_used = count - len(own), used - past.used_gpu_hours
    # One more than were counted: a fleet that was well so far is not one that is never late.
    expected = (others + 1) / others_used * past.used_gpu_hours if others_used > 0 else 0.0
    if not own or expected <= 0:
        return NodeFinding(past, NodeVerdict.FINE, 0.0, (0.0, 0.0))
    low, high = (limit / expected for limit in poisson.interval(len(own)))
    ratio = len(own) / expected
    jobs = {each.job for each in own}
    days = {each.begin // DAY_SECONDS for each in own}
    is_spread = len(jobs) >= LEAST_JOBS and len(days) >= LEAST_DAYS
    chance = poisson.at_least(len(own), expected)
    if ratio < LEAST_RATIO:
        verdict = NodeVerdict.FINE
    elif len(jobs) == 1 and len(own) > 1:
        verdict = NodeVerdict.ONE_JOB
    else:
        is_certain = is_spread and chance < ERROR / nodes
        verdict = NodeVerdict.LEMON if is_certain else NodeVerdict.UNCERTAIN
    return NodeFinding(
        past,
        verdict,
        ratio,
        (low, high),
        chance,
        job=next(iter(jobs)) if len(jobs) == 1 else "",
        gpu=_gpu(own),
        driver=_driver(past, own),
    )


def _gpu(own: Sequence[NodeIncident]) -> str:
    """Return the GPU that most was lost to."""
    gpus = summed(each.gpus for each in own)
    most = max(gpus, key=gpus.__getitem__, default="")
    return most if gpus.get(most, 0.0) >= MOST * sum(gpus.values()) else ""


def _driver(past: NodePast, own: Sequence[NodeIncident]) -> tuple[str, float] | None:
    """Return the last driver and its first time, if chance would hardly have spared that before."""
    if len(past.drivers) < 2 or not past.used_gpu_hours:
        return None
    version, (came, _) = max(past.drivers, key=lambda each: each[1][0])
    before = sum(each.begin < came for each in own)
    share = past.used_before(came) / past.used_gpu_hours
    is_since = poisson.at_most_before(before, len(own), share) < CHANGE_ERROR
    return (version, came) if is_since else None
