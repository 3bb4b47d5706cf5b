"""What a rank costs its host: its process and all descendants, including ended ones."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from exporter.processes.usage import Usage, Work, usage

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
NANOSECONDS: Final = 1_000_000_000
# A worker that never waits for its queue or a file; the rest is preprocessing by other threads.
SATURATED_SHARE: Final = 0.9
# Over a shorter time, a worker that fills its queue and then rests would seem never to rest. With
# ticks of 10 ms, this also makes the share accurate to 0.002.
SATURATED_SECONDS: Final = 4.9


@dataclass(slots=True)
class Cost:
    """What a rank has used since its process started; none of it ever decreases.

    "workers" are all processes that the rank's process started, and theirs. None is "could not be
    read"; *saturated_workers* is None until they were measured.
    """

    cpu_ticks: int = 0
    workers_cpu_ticks: int = 0
    run_queue_nanoseconds: int | None = None
    workers_run_queue_nanoseconds: int | None = None
    major_faults: int = 0
    read_bytes: int | None = None
    workers: int = 0
    saturated_workers: int | None = None
    # Of the main thread, as run_queue_nanoseconds.
    running_nanoseconds: int | None = None


class _Debts:
    """The usage of ended children that was already counted when they were last read.

    Their parent's counters for ended children include it again: at the same look, or at the next
    one if the parent was read just before the child ended. If it has not appeared by then, the
    parent did not wait for the child, and never will.
    """

    def __init__(self) -> None:
        self._before = [0, 0, 0]
        self._now = [0, 0, 0]

    def add(self, used: list[int]) -> None:
        self._now = [mine + more for mine, more in zip(self._now, used, strict=True)]

    def sums(self) -> list[int]:
        return [one + other for one, other in zip(self._before, self._now, strict=True)]

    def pay(self, grown: list[int]) -> list[int]:
        """Return what of *grown* was not counted before; call once a look."""
        owed = self.sums()
        paid = [min(each) for each in zip(grown, owed, strict=True)]
        left = [all_of_it - part for all_of_it, part in zip(owed, paid, strict=True)]
        self._before = [min(each) for each in zip(self._now, left, strict=True)]
        self._now = [0, 0, 0]
        return [all_of_it - part for all_of_it, part in zip(grown, paid, strict=True)]


@dataclass(slots=True)
class _Member:
    """A living process of the rank, with what it had used when it was last read."""

    parent_pid: int
    usage: Usage
    since_ticks: int
    since_seconds: float
    is_saturated: bool | None = None
    debts: _Debts = field(default_factory=_Debts)

    def judge(self, now_seconds: float) -> bool | None:
        """Return whether it was saturated when it was last measured; None before that."""
        took_seconds = now_seconds - self.since_seconds
        if took_seconds >= SATURATED_SECONDS:
            used = self.usage.own.cpu_ticks - self.since_ticks
            self.is_saturated = used >= SATURATED_SHARE * took_seconds * TICKS_PER_SECOND
            self.since_ticks, self.since_seconds = self.usage.own.cpu_ticks, now_seconds
        return self.is_saturated


class RankCost:
    """Adds up what the process *pid* and its descendants use.

    A descendant that ends between two looks keeps what it was last seen to have used. What it used
    after that is counted too if its parent waits for it, as a DataLoader does.
    """

    def __init__(
        self,
        procfs: Path,
        pid: int,
        start_ticks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = procfs
        self.pid = pid
        self._start_ticks = start_ticks
        self._clock = clock
        self._members: dict[int, _Member] = {}
        self.cost = Cost()
        # Processes that the last look did not read.
        self.left_out = 0

    def is_of(self, pid: int, start_ticks: int) -> bool:
        """Whether this is about that process, and not one that had its id before."""
        return (self.pid, self._start_ticks) == (pid, start_ticks)

    def look(self, family: Mapping[int, int], most: int) -> bool:
        """Read *family*, from children.family(), up to *most* processes; False if the rank ended.

        Processes read before are read again, so that none is forgotten and then counted twice.
        """
        is_first_look = not self._members
        found = self._read(family, most)
        mine = found.get(self.pid)
        if mine is None or mine.is_zombie:
            return False
        for pid in reversed(list(self._members)):  # Children first: they leave debts to parents.
            if pid not in found or self._is_another(pid, found[pid]):
                self._bury(pid)
        saturated = {pid: self._count(pid, family.get(pid, 0), each) for pid, each in found.items()}
        del saturated[self.pid]
        self.cost.workers = sum(not each.is_zombie for each in found.values()) - 1 + self.left_out
        self.cost.saturated_workers = None if is_first_look else _sum(saturated.values())
        return True

    def _read(self, family: Mapping[int, int], most: int) -> dict[int, Usage]:
        """Return what each process has used, parents before their children: see _Debts."""
        new = (pid for pid in family if pid not in self._members)
        chosen = {*self._members, *islice(new, max(0, most - len(self._members)))}
        self.left_out = sum(pid not in chosen for pid in family)
        # Those whose parent has ended are no longer in the family, but still belong to the rank.
        found = {
            pid: usage(self._procfs, pid)
            for pid in dict.fromkeys([*family, *self._members])
            if pid in chosen
        }
        return {
            pid: each
            for pid, each in found.items()
            if each is not None and self._belongs(pid, family.get(pid), each)
        }

    def _belongs(self, pid: int, parent_pid: int | None, found: Usage) -> bool:
        """Whether *pid* still belongs to the process that was listed."""
        if pid == self.pid:
            return found.start_ticks == self._start_ticks
        if pid in self._members and not self._is_another(pid, found):
            return True
        return found.parent_pid == parent_pid

    def _is_another(self, pid: int, found: Usage) -> bool:
        return self._members[pid].usage.start_ticks != found.start_ticks

    def _bury(self, pid: int) -> None:
        ended = self._members.pop(pid)
        parent = self._members.get(ended.parent_pid)
        if parent is not None:
            own = [*ended.usage.own, 0]
            used = zip(own, _inherited(ended.usage), ended.debts.sums(), strict=True)
            parent.debts.add([sum(each) for each in used])

    def _count(self, pid: int, parent_pid: int, now: Usage) -> bool | None:
        """Add what *pid* has used since it was last read; say whether it is saturated."""
        at_seconds = self._clock()
        if pid not in self._members:
            nothing = Usage(now.start_ticks, parent_pid, False, Work(), Work())
            self._members[pid] = _Member(parent_pid, nothing, now.own.cpu_ticks, at_seconds)
        member = self._members[pid]
        last = member.usage
        # A file that has become unreadable must not look like a counter that fell to zero.
        now = _with_last(now, last)
        cpu_ticks, faults = (max(0, b - a) for a, b in zip(last.own, now.own, strict=True))
        grown = [max(0, b - a) for a, b in zip(_inherited(last), _inherited(now), strict=True)]
        ended_ticks, ended_faults, read = member.debts.pay(grown)
        member.usage = now
        self._add_work(pid, cpu_ticks, ended_ticks, faults + ended_faults)
        if now.read_bytes is not None:
            self.cost.read_bytes = (self.cost.read_bytes or 0) + read
        self._add_waits(pid, last, now)
        return member.judge(at_seconds)

    def _add_work(self, pid: int, own_ticks: int, ended_ticks: int, faults: int) -> None:
        cost = self.cost
        is_rank = pid == self.pid
        cost.cpu_ticks += own_ticks if is_rank else 0
        cost.workers_cpu_ticks += ended_ticks + (0 if is_rank else own_ticks)
        cost.major_faults += faults

    def _add_waits(self, pid: int, last: Usage, now: Usage) -> None:
        cost = self.cost
        if pid == self.pid and now.running_nanoseconds is not None:
            ran = max(0, now.running_nanoseconds - (last.running_nanoseconds or 0))
            cost.running_nanoseconds = (cost.running_nanoseconds or 0) + ran
        if now.run_queue_nanoseconds is not None:
            waited = max(0, now.run_queue_nanoseconds - (last.run_queue_nanoseconds or 0))
            of_rank = cost.run_queue_nanoseconds or 0
            of_workers = cost.workers_run_queue_nanoseconds or 0
            is_rank = pid == self.pid
            cost.run_queue_nanoseconds = of_rank + (waited if is_rank else 0)
            cost.workers_run_queue_nanoseconds = of_workers + (0 if is_rank else waited)


def _sum(found: Collection[bool | None]) -> int | None:
    """Return how many are; None if that is not known of any."""
    known = [each for each in found if each is not None]
    return sum(known) if known or not found else None


def _inherited(used: Usage) -> list[int]:
    """Return the counters that grow by a child's whole usage once the process waits for it."""
    return [*used.ended, used.read_bytes or 0]


def _with_last(now: Usage, last: Usage) -> Usage:
    """Return *now*, with readings of *last* for those that are missing."""
    missing = {name: value for name, value in last._asdict().items() if getattr(now, name) is None}
    return now._replace(**missing) if missing else now
