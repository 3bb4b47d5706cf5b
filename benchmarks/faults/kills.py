"""Kills parts of the stack one after the other, and times how long each is missing."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.faults.parts import POLL_SECONDS, Part, Site, recoveries
from benchmarks.faults.plan import Kill, Plan, kills

MOST_RECOVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Killed:
    """A kill of *part*, at seconds of the wall clock; it was back after *recovery_seconds*.

    Those count from the last kill of the two that came together, and end at *back_at*.
    """

    part: str
    at: float
    recovery_seconds: float
    back_at: float = 0.0


def run(site: Site, plan: Plan) -> list[Killed]:
    """Kill what *plan* says; raises StackError when a part does not come back."""
    parts = {part.name: part for part in site.parts()}
    site.settle()
    found: list[Killed] = []
    for burst in bursts(kills(plan)):
        at = [(kill.part, when) for kill, when in _kill(burst, parts)]
        back = recoveries([parts[name] for name, _ in at], at[-1][1])
        last = at[-1][1]
        found += [Killed(name, when, back[name], last + back[name]) for name, when in at]
        _tell(found[-len(at) :], len(found), plan.kills)
    return found


def bursts(all_of_them: Iterable[Kill]) -> Iterator[list[Kill]]:
    """Group each kill with the one that follows it while the first part may be starting."""
    burst: list[Kill] = []
    for kill in all_of_them:
        if burst and not kill.follows:
            yield burst
            burst = []
        burst.append(kill)
    if burst:
        yield burst


def _kill(burst: Sequence[Kill], parts: dict[str, Part]) -> Iterator[tuple[Kill, float]]:
    for kill in burst:
        time.sleep(kill.after_seconds)
        while not parts[kill.part].kill():  # It is dead already, and is started again.
            time.sleep(POLL_SECONDS)
        yield kill, time.time()


def _tell(burst: Sequence[Killed], number: int, all_of_them: int) -> None:
    said = ", ".join(f"{killed.part} back in {killed.recovery_seconds:.1f} s" for killed in burst)
    print(f"{number:4} of {all_of_them}: {said}", flush=True)


def by_part(found: Iterable[Killed]) -> dict[str, list[float]]:
    """Return the recoveries of each part; all ranks are one."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for killed in found:
        part = "a rank" if killed.part.startswith("rank ") else killed.part
        seconds[part].append(killed.recovery_seconds)
    return dict(sorted(seconds.items()))
