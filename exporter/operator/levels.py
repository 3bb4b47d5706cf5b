"""How much the probes of this node's ranks should time, as ordered by a user or the operator."""

import logging
from collections.abc import Callable

from exporter.listeners.peer import Peer
from exporter.operator.orders import Order
from exporter.ranks.store import Forbidden, HeldRank, RankStore
from rank_probe.wire.snapshot import Snapshot

logger = logging.getLogger(__name__)

# Whether someone may control the ranks of an owner.
MayControl = Callable[[Peer | None], bool]


class NobodyThere(Exception):
    """The order matches no rank on this node."""


def everybodys(owner: Peer | None) -> bool:
    """Let the operator control the ranks of any *owner*."""
    return True


def own(asker: Peer | None) -> MayControl:
    """Let *asker* control ranks of their own.

    Any client of the TCP listener may control a rank that reports over TCP: it has no owner.
    """
    return lambda owner: asker is owner is None or (asker is not None and asker.may_act_for(owner))


class Orders:
    """The latest order for each job and rank, kept until the job's last rank on this node ends.

    Held in memory only, and never more orders than *store* has jobs and ranks. Call from the
    event loop only.
    """

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self._given: dict[tuple[str, int | None], tuple[Order, MayControl]] = {}

    def give(self, order: Order, may_control: MayControl) -> int:
        """Keep *order*; return how many reporting ranks it applies to.

        Raises NobodyThere if no rank matches, Forbidden if all that match belong to others.
        """
        meant = [held for held in self._running() if _is_meant(held.snapshot, order)]
        if not meant:
            raise NobodyThere(self._nobody(order))
        allowed = [held for held in meant if may_control(held.owner)]
        if not allowed:
            raise Forbidden(
                f"Job {order.job_id!r} belongs to another user or container on this node; "
                "give the order as that user, or as root on the operator's socket."
            )
        self.forget_ended()
        if order.rank is None:  # The latest order wins, even over an earlier one for a single rank.
            self._given = {key: old for key, old in self._given.items() if key[0] != order.job_id}
        self._given[order.job_id, order.rank] = (order, may_control)
        logger.info(
            "%d ranks of job %r: level %s",
            len(allowed),
            order.job_id,
            order.level,
            extra={"job_id": order.job_id, "ranks": len(allowed), "probe_level": order.level},
        )
        return len(allowed)

    def level_for(self, snapshot: Snapshot, owner: Peer | None) -> str | None:
        """Return the level ordered for the rank that *owner* reports; None if there is no order."""
        for rank in (snapshot.rank, None):
            given = self._given.get((snapshot.job_id, rank))
            if given is not None and given[1](owner):
                return given[0].level
        return None

    def forget_ended(self) -> None:
        """Drop the orders for ended jobs, so that a new run of that name starts without them."""
        if self._given:
            running = [held.snapshot for held in self._running()]
            ordered = {(each.job_id, rank) for each in running for rank in (each.rank, None)}
            self._given = {key: old for key, old in self._given.items() if key in ordered}

    def _running(self) -> list[HeldRank]:
        return [held for held in self._store.ranks() if not held.snapshot.finished]

    def _nobody(self, order: Order) -> str:
        jobs = sorted({held.snapshot.job_id for held in self._running()})
        if order.job_id in jobs:
            return f"Job {order.job_id!r} has no rank {order.rank} on this node."
        known = ", ".join(map(repr, jobs[:8])) or "none"
        return f"No rank of job {order.job_id!r} runs on this node; jobs that do: {known}."


def _is_meant(snapshot: Snapshot, order: Order) -> bool:
    return snapshot.job_id == order.job_id and order.rank in (None, snapshot.rank)
