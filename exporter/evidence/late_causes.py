"""Why each late rank of this node is late: decided in one place, read by all who show it."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.causes.model import UNKNOWN, Cause
from exporter.ranks.store import RankKey

# A new sentence, with figures that are a little different, replaces the old one after a minute.
STEADY_SECONDS: Final = 60.0
# Another cause replaces a known one only if it lasts this long: both may be near a limit.
HELD_SECONDS: Final = 15.0
# Until then, there is hardly any evidence, and the next second may bring a real cause.
UNKNOWN_AFTER_SECONDS: Final = 10.0
PLACEHOLDER: Final = re.compile(r"\b(PID|WORKER_PID|GPU|UUID|NODE)\b")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a late rank runs; what is not known is empty.

    *pid* is that of its process here, *worker_pid* that of its loader's busiest worker.
    """

    peer_group: str = ""
    node: str = ""
    gpu: str = ""
    gpu_uuid: str = ""
    pid: str = ""
    worker_pid: str = ""


@dataclass(slots=True)
class LateCause:
    """The cause that is reported for a rank at *place*, since *told_seconds*.

    *other* is a different one that has been found since *other_seconds*, but is not reported yet.
    """

    place: RankPlace
    cause: Cause
    told_seconds: float
    other: Cause | None = None
    other_seconds: float = 0.0


class LateCauses:
    """The causes of this node's late ranks; for the event loop."""

    def __init__(self) -> None:
        self._told: dict[RankKey, LateCause] = {}

    def of(self, job_id: str, rank: int) -> Cause | None:
        """Return why the rank is late; None if it is not, or if that is not known yet."""
        told = self._told.get((job_id, rank))
        return None if told is None else told.cause

    def all(self) -> Mapping[RankKey, LateCause]:
        """Return every cause that is reported, by job and rank."""
        return self._told

    def keep(self, late: Collection[RankKey]) -> None:
        """Forget ranks that are not *late* any more."""
        for key in self._told.keys() - late:
            del self._told[key]

    def take(
        self, key: RankKey, found: Cause | None, place: RankPlace, now: float, known_seconds: float
    ) -> None:
        """Take in what was *found* for a late rank with evidence of so many seconds."""
        if found is None or (found.cause == UNKNOWN and known_seconds < UNKNOWN_AFTER_SECONDS):
            return
        found = replace(found, first_action=_filled(found.first_action, place))
        told = self._told.get(key)
        if told is None:
            self._told[key] = LateCause(place, found, now)
            return
        # Its first action names the place; which worker is the busiest changes all the time.
        has_moved = replace(told.place, worker_pid="") != replace(place, worker_pid="")
        told.place = place
        if is_same(told.cause, found):
            told.other = None
            if has_moved or now - told.told_seconds >= STEADY_SECONDS:
                told.cause, told.told_seconds = found, now
        elif told.cause.cause == UNKNOWN or _has_lasted(told, found, now):
            self._told[key] = LateCause(place, found, now)


def is_same(one: Cause, other: Cause) -> bool:
    """Say whether both are the same cause, whatever their figures."""
    return (one.cause, one.detail) == (other.cause, other.detail)


def _has_lasted(told: LateCause, found: Cause, now: float) -> bool:
    if told.other is None or not is_same(told.other, found):
        told.other_seconds = now
    told.other = found
    held = STEADY_SECONDS if found.cause == UNKNOWN else HELD_SECONDS
    return now - told.other_seconds >= held


def _filled(action: str, place: RankPlace) -> str:
    known = {
        "PID": place.pid,
        "WORKER_PID": place.worker_pid,
        "GPU": place.gpu,
        "UUID": place.gpu_uuid,
        "NODE": place.node,
    }
    return PLACEHOLDER.sub(lambda found: known[found[0]] or found[0], action)
