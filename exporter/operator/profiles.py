"""The profiles that are ordered: of which ranks, of which steps, and what became of them."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exporter.operator.orders import FAR_AHEAD_SECONDS, ProfileOrder
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import HeldRank
from rank_probe.wire.snapshot import Snapshot

logger = logging.getLogger(__name__)

LEAST_STEPS_AHEAD: Final = 3


class NoProfile(Exception):
    """The order cannot be carried out on this node; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ProfileAnswer:
    """The order with all that was chosen, and what its ranks say of it, by rank.

    *peer* is None without a healthy rank of the *peer_group* on this node.
    """

    rank: int
    peer: int | None
    start: int
    peer_group: str
    profiles: dict[str, dict[str, str]]


class Profiles:
    """The orders that ranks have not heard of yet. Call from the event loop only."""

    def __init__(self, jobs: NodeJobs) -> None:
        self._jobs = jobs
        self._untold: dict[tuple[str, int], dict[str, int]] = {}

    def give(self, order: ProfileOrder) -> ProfileAnswer:
        """Order a profile; the same with all that was chosen says how it goes. Raises NoProfile."""
        job = next((each for each in self._jobs.now() if each.job_id == order.job_id), None)
        ranks = {} if job is None else {held.snapshot.rank: held for held in job.beating}
        aged = None if job is None else job.verdict()
        late = [] if aged is None else sorted(aged.verdict.late, key=lambda each: -each.gpus_lost)
        rank = order.rank if order.rank is not None or not late else late[0].rank
        if rank is None:
            raise NoProfile(f"No rank of job {order.job_id!r} is known to be late; name one.")
        peer = order.peer
        if peer is None and order.start is None and rank in ranks:
            peer = _nearest(rank, ranks, {each.rank for each in late})
        named = [rank] if peer is None else [rank, peer]
        if absent := set(named) - ranks.keys():
            raise NoProfile(
                f"Rank {min(absent)} of job {order.job_id!r} does not report on this node; "
                "run this on its node, which `rankskew top` names."
            )
        pair = [ranks[each].snapshot for each in named]
        start = order.start
        if start is None:
            seconds = max(order.ahead_seconds, FAR_AHEAD_SECONDS if peer is None else 0.0)
            start = max(_step_in(seconds, each) for each in pair)
            logger.info(
                "ranks of job %r: profile %d steps from %d on", order.job_id, order.steps, start
            )
        for each in pair:
            self._untold[each.job_id, each.rank] = {"start": start, "steps": order.steps}
        said = {str(each.rank): each.profile for each in pair if _is_of(each, start)}
        return ProfileAnswer(rank, peer, start, pair[0].peer_group, said)

    def order_for(self, snapshot: Snapshot) -> dict[str, int] | None:
        """Return what to tell a rank, until it says that it knows."""
        key = (snapshot.job_id, snapshot.rank)
        order = self._untold.get(key)
        if order is not None and (snapshot.finished or _is_of(snapshot, order["start"])):
            del self._untold[key]
            return None
        return order


def _nearest(rank: int, ranks: Mapping[int, HeldRank], late: set[int]) -> int | None:
    """Return the healthy rank of the same group whose number is nearest."""
    group = ranks[rank].snapshot.peer_group
    healthy = [
        each
        for each, held in ranks.items()
        if each not in late | {rank} and held.snapshot.peer_group == group
    ]
    return min(healthy, key=lambda each: (abs(each - rank), each), default=None)


def _step_in(seconds: float, snapshot: Snapshot) -> int:
    """Return the number of the step that the rank makes in about *seconds*, by its mean step."""
    a_second = snapshot.steps / (sum(snapshot.stage_seconds.values()) or math.inf)
    ahead = max(math.ceil(seconds * a_second), LEAST_STEPS_AHEAD)
    return snapshot.steps + snapshot.dropped_steps + ahead


def _is_of(snapshot: Snapshot, start: int) -> bool:
    return snapshot.profile.get("start") == str(start)
