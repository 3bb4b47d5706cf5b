"""What a process tells that got another rank number, when its process group was formed anew."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rank_probe.process.own_rank import OwnRank
from rank_probe.wire.snapshot import Snapshot

# What only grows while a process has its number. The series of a rank go on from one process to
# the next: where they fall, they must begin at 0, or all of this process's past counts again.
COUNTERS: Final = (
    *("steps", "stage_seconds", "stage_host_seconds", "busy_seconds"),
    *("dropped_steps", "samples", "tokens", "padding_tokens", "gc_pause_seconds"),
    *("cuda_alloc_retries", "probe_errors", "push_failures"),
    *("wait_caused_seconds", "group_wait_seconds", "joined_seconds"),
)


class Renumbered:
    """Tells each number's part of one process: a last time of the old one, then from 0 on.

    For one thread.
    """

    def __init__(self, own_rank: OwnRank) -> None:
        self._own_rank = own_rank
        self._base: Snapshot | None = None  # the last of the number before
        self._started: float | None = None  # when it got its number, if it had another before
        self._formed: float | None = None  # as was told with its number

    def told(self, snapshot: Snapshot, *, is_last: bool) -> Snapshot:
        """Return what to tell of the process's *snapshot*; *is_last* of the number in it."""
        if self._base is not None:
            snapshot, whole = since(snapshot, self._base), snapshot
        else:
            whole = snapshot
        if (started := self._started) is not None:
            snapshot = replace(
                snapshot,
                started_timestamp_seconds=started,  # Newer than whoever had this number before.
                lifecycle_events=[
                    event
                    for event in snapshot.lifecycle_events
                    if event["began_timestamp_seconds"] >= started
                ],
            )
        if is_last:
            self._base, self._started = whole, self._own_rank.since
            # The number must not be missed as if the process had died.
            snapshot = replace(snapshot, finished=True)
        else:
            self._formed = self._own_rank.formed
        snapshot.group_formed_timestamp_seconds = self._formed  # replace() takes a tenth of a push.
        return snapshot


def since(snapshot: Snapshot, base: Snapshot) -> Snapshot:
    """Return *snapshot* with its counters less those of *base*, an earlier one of the process."""
    counted = {
        name: _less(getattr(snapshot, name), getattr(base, name), keeps_zero="stage" not in name)
        for name in COUNTERS
    }
    return replace(snapshot, **counted)


def _less(now: Any, before: Any, *, keeps_zero: bool) -> Any:
    """Return *now* less *before*; in a dict for each key, of stages those that occurred since."""
    if isinstance(now, Mapping):
        left = {key: max(each - before.get(key, 0), 0) for key, each in now.items()}
        return left if keeps_zero else {key: each for key, each in left.items() if each}
    return now if now is None or before is None else max(now - before, 0)
