"""Kills parts of the stack one after the other, and times how long each is missing."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.faults.parts import POLL_SECONDS, Part, Site
from benchmarks.faults.plan import Kill, Plan, kills
from demo.process import StackError

MOST_RECOVERY_SECONDS: Final = 10.0
# After that a part is given up.
PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Killed:
    """A kill of *part*, at seconds of the wall clock; it was back after *recovery_seconds*.

    Those count from the last kill of the two that came together.
    """

    part: str
    at: float
    recovery_seconds: float


def run(site: Site, plan: Plan) -> list[Killed]:
    """Kill what *plan* says; raises StackError when a part does not come back."""
    parts = {part.name: part for part in site.parts()}
    settle(site)
    found: list[Killed] = []
    for burst in bursts(kills(plan)):
        at = [(kill.part, when) for kill, when in _kill(burst, parts)]
        back = _recoveries(site, [parts[name] for name, _ in at], at[-1][1])
        found += [Killed(name, when, back[name]) for name, when in at]
        _tell(found[-len(at) :], len(found), plan.kills)
    return found


def settle(site: Site) -> None:
    """Wait until everything works."""
    _recoveries(site, site.parts(), time.time())


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


def _recoveries(site: Site, parts: Sequence[Part], since: float) -> dict[str, float]:
    """Return how many seconds after *since* each of *parts* was back."""
    missing = {part.name: part for part in parts}
    back: dict[str, float] = {}
    while missing:
        for name, part in list(missing.items()):
            if part.is_back(since):
                back[name] = time.time() - since
                del missing[name]
        if missing and time.time() - since > PATIENCE_SECONDS:
            raise StackError(f"{', '.join(missing)} did not come back: see {site.directory}")
        time.sleep(POLL_SECONDS)
    return back


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
