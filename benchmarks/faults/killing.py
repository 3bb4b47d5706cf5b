"""200 kills of exporter, NVML child, Prometheus, Alertmanager and ranks, and what must hold."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.faults import counters
from benchmarks.faults.kills import MOST_RECOVERY_SECONDS, Killed, by_part, run
from benchmarks.faults.pages import others
from benchmarks.faults.parts import SCRAPE_SECONDS, Site
from benchmarks.faults.plan import Plan
from benchmarks.faults.ranks.records import Life, Step
from benchmarks.faults.standing import Lengths
from benchmarks.report import Row, row
from devstack.webhook import ReceivedAlert

# What happens to the whole stack for a while: see benchmarks.faults.standing.
Standing = Callable[[Site, Lengths], list[Row]]
MOST_PAUSE_SECONDS: Final = 0.001
# So rarely does chance give the probe so many more long pauses than an empty loop.
CHANCE: Final = 0.01
# A process that starts to train looks around once: reported apart.
FIRST_STEPS: Final = 3
# A step belongs to a kill that was this long before its end.
AFTERMATH_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a run has left: the kills, until when they lasted, and what was counted and paged."""

    killed: Sequence[Killed]
    seconds: float
    ended: float
    stored: Sequence[counters.Stored]
    scrapes: Mapping[float, float]
    lives: Sequence[Life]
    pages: Sequence[ReceivedAlert]
    more: Sequence[Row]


def measure(
    directory: Path, plan: Plan, lengths: Lengths, others_too: Sequence[Standing]
) -> list[Row]:
    """Kill, do to the same stack what *others_too* does, and return the figures."""
    found = _played(directory, plan, lengths, others_too)
    _tell_evidence(found)
    for page in found.pages:
        print(f"paged: {page.alert}: {page.annotations} {page.labels}", flush=True)
    return [
        *recovery_rows(found.killed, found.seconds),
        seen_row(found.lives, found.killed),
        *counter_rows(found),
        row("pages of the shipped alerts", len(found.pages), 0),
        *pause_rows(found.lives, found.killed, found.ended),
        *found.more,
    ]


def _tell_evidence(found: Found) -> None:
    """Print each sample that should not be, so that its cause can be looked for."""
    for each in found.stored:
        for before, after in counters.unexplained(each, found.killed):
            samples = [(at, value) for at, value in each.samples if before - 3 <= at <= after + 3]
            print(f"fell without a restart: {dict(each.labels)}: {samples}", flush=True)
    for each in counters.steps(found.stored):
        for at, value, counted in counters.too_high(each, found.lives, found.scrapes):
            rank = each.labels["rank"]
            print(f"above what rank {rank} had counted at {at}: {value}, not {counted}", flush=True)
    for life in found.lives:
        for number, step in enumerate(life.steps):
            if step.paused_seconds > MOST_PAUSE_SECONDS and step.ended < found.ended:
                print(f"paused: rank {life.rank}, its step {number}: {step}", flush=True)


def recoveries_and_counters(directory: Path, plan: Plan) -> list[Row]:
    """Kill, and return the figures that do not need a quiet machine."""
    found = _played(directory, plan, Lengths(), ())
    _tell_evidence(found)
    return [
        *recovery_rows(found.killed, found.seconds),
        seen_row(found.lives, found.killed),
        *counter_rows(found),
    ]


def _played(directory: Path, plan: Plan, lengths: Lengths, others_too: Sequence[Standing]) -> Found:
    began = time.time()
    with Site(directory) as site:
        killed = run(site, plan)
        ended = time.time()
        more = [row for fault in others_too for row in _settled(fault, site, lengths)]
        site.job.end()
        time.sleep(3 * SCRAPE_SECONDS)  # The last values are scraped.
        seconds = time.time() - began
        stored = counters.stored(site.prometheus, seconds)
        scrapes = counters.scrapes(site.prometheus, seconds)
        lives = site.job.lives()
        pages = others(site.webhook)
    return Found(killed, ended - began, ended, stored, scrapes, lives, pages, more)


def _settled(fault: Standing, site: Site, lengths: Lengths) -> list[Row]:
    site.settle()
    return fault(site, lengths)


def recovery_rows(killed: Sequence[Killed], seconds: float) -> Iterator[Row]:
    """Yield how long each part was missing."""
    yield row("kills", len(killed))
    yield row("minutes", round(seconds / 60, 1))
    for part, recoveries in by_part(killed).items():
        yield row(f"kills of {part}", len(recoveries))
        yield row(f"{part} is back, median s", statistics.median(recoveries))
        yield row(f"{part} is back, most s", max(recoveries), MOST_RECOVERY_SECONDS)


def seen_row(lives: Sequence[Life], killed: Sequence[Killed]) -> Row:
    """Return how long ranks that were killed had trained again before their page showed them."""
    seen = [
        each.back_at - life.steps[0].ended
        for each in killed
        for life in lives
        if each.part == f"rank {life.rank}" and each.at < life.steps[0].ended < each.back_at
    ]
    what = "a rank is seen after its first new step, most s"
    return row(what, max(seen, default=0.0), MOST_RECOVERY_SECONDS)


def counter_rows(found: Found) -> Iterator[Row]:
    """Yield what became of the counters."""
    stored, lives, killed = found.stored, found.lives, found.killed
    steps = counters.steps(stored)
    unexplained = sum(len(counters.unexplained(each, killed)) for each in stored)
    yield row("counters", len(stored))
    yield row("their samples in Prometheus", sum(len(each.samples) for each in stored))
    yield row("times that one fell", sum(len(list(counters.falls(each))) for each in stored))
    yield row("of these without a restart of what counts it", unexplained, 0)
    yield row("processes of ranks", len(lives))
    yield row("steps that they counted", sum(len(life.steps) for life in lives))
    too_high = sum(len(counters.too_high(each, lives, found.scrapes)) for each in steps)
    yield row("samples above what the rank had counted", too_high, 0)
    differ = counters.not_as_counted(steps, lives)
    yield row("ranks whose last counter is another", differ, 0)


def pause_rows(lives: Sequence[Life], killed: Sequence[Killed], ended: float) -> Iterator[Row]:
    """Yield how long the probe held up the steps before *ended*."""
    steps = [step for life in lives for step in life.steps[FIRST_STEPS:] if step.ended < ended]
    first = [step for life in lives for step in life.steps[:FIRST_STEPS]]
    near = [step for step in steps if _is_near(step, killed)]
    paused = sorted(step.paused_seconds for step in steps)
    yield row("pause of a step, median ms", 1e3 * statistics.median(paused))
    most = 1e3 * MOST_PAUSE_SECONDS
    yield row("pause of a step, 99.99 % ms", 1e3 * paused[int(0.9999 * (len(paused) - 1))], most)
    yield row("pause of a step, most ms", 1e3 * paused[-1])
    yield row("pause of an empty loop, most ms", 1e3 * max(step.empty_seconds for step in steps))
    ours = sum(step.paused_seconds > MOST_PAUSE_SECONDS for step in steps)
    empty = sum(step.empty_seconds > MOST_PAUSE_SECONDS for step in steps)
    yield row("pauses over 1 ms", ours)
    yield row("pauses over 1 ms of an empty loop", empty)
    yield row("pauses over 1 ms that the machine does not explain", unexplained(ours, empty), 0)
    yield row("steps within 3 s of a kill", len(near))
    yield row("pause of these, most ms", 1e3 * max((s.paused_seconds for s in near), default=0.0))
    yield row(
        "pause of a step by the clock, most ms", 1e3 * max(step.held_up_seconds for step in steps)
    )
    yield row(
        "pause of a process's first steps, most ms",
        1e3 * max(step.paused_seconds for step in first),
    )


def unexplained(ours: int, empty: int) -> int:
    """Return how many of *ours* are too many for a coin that gave the others to the empty loop."""
    explained = ours
    while _heads(explained, explained + empty) < CHANCE:
        explained -= 1
    return ours - explained


def _heads(least: int, tosses: int) -> float:
    """Return the probability of at least so many heads."""
    return sum(math.comb(tosses, heads) for heads in range(least, tosses + 1)) / (1 << tosses)


def _is_near(step: Step, killed: Sequence[Killed]) -> bool:
    return any(0 <= step.ended - each.at <= AFTERMATH_SECONDS for each in killed)
