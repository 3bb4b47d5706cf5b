"""What the operator asked of the ranks on this node: how much the probe of each should time."""

import json
import logging
import os
from dataclasses import dataclass
from typing import Any, Final

from exporter.ranks.store import ROOT, Forbidden, HeldRank, RankStore
from rank_probe.snapshot import LEVELS, Snapshot

logger = logging.getLogger(__name__)

# Where orders are posted, on the ingest listener.
CONTROL_PATH: Final = "/v1/control"


class WrongOrder(Exception):
    """What was posted is no order."""


class NobodyThere(Exception):
    """No rank on this node is meant by the order."""


@dataclass(frozen=True, slots=True)
class Order:
    """*level*, one of LEVELS, for all ranks of a job or for one of them."""

    job_id: str
    level: str
    rank: int | None = None

    def means(self, snapshot: Snapshot) -> bool:
        """Whether the order is for the rank that *snapshot* describes."""
        return snapshot.job_id == self.job_id and self.rank in (None, snapshot.rank)

    def to_json(self) -> bytes:
        """Return the body that parse_order() takes."""
        return json.dumps({"job_id": self.job_id, "level": self.level, "rank": self.rank}).encode()


def parse_order(body: bytes) -> Order:
    """Return the order in *body*; raises WrongOrder with one sentence for the caller."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WrongOrder("The body is not JSON; send the order as one JSON object.") from error
    if not isinstance(fields, dict) or not fields.keys() <= {"job_id", "level", "rank"}:
        raise WrongOrder("An order is a JSON object of job_id, level and, for one rank, rank.")
    job_id, level, rank = fields.get("job_id"), fields.get("level"), fields.get("rank")
    if not isinstance(job_id, str):
        raise WrongOrder("Field job_id is not a job's name; send it as text.")
    if level not in LEVELS:
        raise WrongOrder(f"Field level is not a level; use one of {', '.join(LEVELS)}.")
    if rank is not None and type(rank) is not int:
        raise WrongOrder("Field rank is not a rank; send a whole number, or none for all ranks.")
    return Order(job_id, level, rank)


class Orders:
    """The latest order for each job and rank, until the job's last rank here has ended.

    In memory only, and never more of them than there are jobs and ranks in *store*. Root and the
    exporter's own user may control every rank, other users their own. A rank that reports over TCP
    is nobody's, and whoever reaches that listener may control it. Call from the event loop only.
    """

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self._given: dict[tuple[str, int | None], tuple[Order, int | None]] = {}

    def give(self, order: Order, uid: int | None) -> int:
        """Keep *order* of user *uid*; return for how many ranks that report now it is.

        Raises NobodyThere when no rank is meant, Forbidden when all that are belong to others.
        """
        meant = [held for held in self._running() if order.means(held.snapshot)]
        if not meant:
            raise NobodyThere(self._nobody(order))
        allowed = [held for held in meant if _may_control(uid, held.uid)]
        if not allowed:
            raise Forbidden(
                f"Job {order.job_id!r} belongs to another user of this node; "
                "give the order as that user or as root, on the exporter's Unix socket."
            )
        self.forget_ended()
        if order.rank is None:  # The last word counts, also over what one rank was told before.
            self._given = {key: old for key, old in self._given.items() if key[0] != order.job_id}
        self._given[order.job_id, order.rank] = (order, uid)
        logger.info("%d ranks of job %r: level %s", len(allowed), order.job_id, order.level)
        return len(allowed)

    def level_for(self, snapshot: Snapshot, uid: int | None) -> str | None:
        """Return what was asked of the rank, which user *uid* reports; None if nothing was."""
        for rank in (snapshot.rank, None):
            order, asker = self._given.get((snapshot.job_id, rank), (None, None))
            if order is not None and _may_control(asker, uid):
                return order.level
        return None

    def forget_ended(self) -> None:
        """Drop the orders for jobs that ended: a new run of that name starts as any other."""
        if self._given:
            running = {held.snapshot.job_id for held in self._running()}
            self._given = {key: old for key, old in self._given.items() if key[0] in running}

    def _running(self) -> list[HeldRank]:
        return [held for held in self._store.ranks() if not held.snapshot.finished]

    def _nobody(self, order: Order) -> str:
        jobs = sorted({held.snapshot.job_id for held in self._running()})
        if order.job_id in jobs:
            return f"Job {order.job_id!r} has no rank {order.rank} on this node."
        known = ", ".join(map(repr, jobs[:8])) or "none"
        return f"No rank of job {order.job_id!r} runs on this node; jobs that do: {known}."


def _may_control(asker: int | None, owner: int | None) -> bool:
    return asker == owner or (asker is not None and asker in (ROOT, os.geteuid()))
