"""The last audits of the jobs on this node: what `rank-probe audit --push` posted."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from exporter.listeners.peer import Peer
from exporter.ranks.store import Forbidden

# Each costs a series for each check.
MOST_AUDITS: Final = 2
KEPT_SECONDS: Final = 86400.0


@dataclass(frozen=True, slots=True)
class HeldAudit:
    """The status of each check, when it arrived by the store's clock, and from whom."""

    job_id: str
    statuses: Mapping[str, str]
    received_seconds: float
    owner: Peer | None


class Audits:
    """Holds the last audit of each job for a day, of MOST_AUDITS jobs. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, HeldAudit] = {}

    def put(self, job_id: str, statuses: Mapping[str, str], owner: Peer | None = None) -> None:
        """Keep the audit of *owner*; raises Forbidden if the job's last one is another's.

        Without room, the owner with the most audits loses the oldest.
        """
        self._forget()
        held = self._held.get(job_id)
        if held is not None and held.owner not in (None, owner):
            raise Forbidden(
                f"The audit of job {job_id!r} belongs to another user or container on this node; "
                "set RANKSKEW_JOB_ID to a unique name."
            )
        self._held.pop(job_id, None)
        self._held[job_id] = HeldAudit(job_id, dict(statuses), self._clock(), owner)
        if len(self._held) > MOST_AUDITS:
            owners = Counter(one.owner for one in self._held.values())
            most = max(owners.values())
            del self._held[next(k for k, one in self._held.items() if owners[one.owner] == most)]

    def latest(self) -> list[HeldAudit]:
        """Return the held audits, by job."""
        self._forget()
        return [self._held[job_id] for job_id in sorted(self._held)]

    def age_seconds(self, audit: HeldAudit) -> float:
        """Return how long ago *audit* arrived."""
        return self._clock() - audit.received_seconds

    def _forget(self) -> None:
        for audit in list(self._held.values()):
            if self.age_seconds(audit) > KEPT_SECONDS:
                del self._held[audit.job_id]
