"""What a job's ranks themselves counted: was one late because it had no CPU?"""

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.causes.causes_job import DIARY_FILE, LATE_RANK, RANKS
from benchmarks.causes.score import UNKNOWN, Said

# An incident ends at this excess over the peers' time, and a cause accounts for half of it.
LATE: Final = 0.03
HALF: Final = 0.5
# It must have been late for so long when that is told.
TRUE_SECONDS: Final = 15.0


class Work(NamedTuple):
    """What a rank did in a step: for how many seconds it *worked*, and *waited* for a CPU."""

    worked: float
    waited: float


def read(folder: Path, since: float, until: float) -> Mapping[int, Work]:
    """Return by rank the mean work of its steps between two times of the monotonic clock."""
    found = {}
    for rank in range(RANKS):
        lines = (folder / f"{DIARY_FILE}{rank}").read_text().splitlines()
        steps = [tuple(map(float, line.split())) for line in lines if line.count(" ") == 2]
        within = [Work(worked, waited) for at, worked, waited in steps if since <= at <= until]
        if within:
            found[rank] = Work(*map(statistics.fmean, zip(*within, strict=True)))
    return found


def is_true(said: Said, work: Mapping[int, Work]) -> bool:
    """Say whether what is *said* is true of a rank that was not planted.

    It worked longer than its peers; and if it is said to lack a CPU, that is half of it at least.
    """
    own = work.get(int(said.rank))
    peers = [each for rank, each in work.items() if rank not in (int(said.rank), LATE_RANK)]
    if own is None or not peers:
        return False
    usual = Work(*map(statistics.median, zip(*peers, strict=True)))
    more = own.worked - usual.worked
    if more <= LATE * usual.worked:
        return False
    is_cpu = said.cause == "cpu" and own.waited - usual.waited >= HALF * more
    return is_cpu or said.cause == UNKNOWN


def true_of_others(said: Iterable[Said], folder: Path, began: float) -> set[str]:
    """Return the ranks other than the planted one of which all that is *said* is true.

    Their steps are those of the TRUE_SECONDS before; *began* is when listening did.
    """
    found = [each for each in said if each.rank != str(LATE_RANK)]
    wrong = {
        each.rank
        for each in found
        if not is_true(
            each, read(folder, began + each.seconds - TRUE_SECONDS, began + each.seconds)
        )
    }
    return {each.rank for each in found} - wrong
