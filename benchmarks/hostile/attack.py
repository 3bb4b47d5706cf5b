"""Send every case to one exporter, and find the shortest bytes that harm it."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile.bodies import body
from benchmarks.hostile.case import Case, shortest
from benchmarks.hostile.requests import request
from benchmarks.hostile.victim import MOST_LOG_BYTES, MOST_SERIES, Broken, Victim
from benchmarks.report import row

Make = Callable[[int, int], Case]
CASES: Final[dict[str, Make]] = {"body": body, "request": request}
# By then the live page's minute is full, and the allocator's pools have their size.
WARM_UP_CASES: Final = 50_000
# 50,000 cases that leave 84 bytes each are over it, a million that leave 4.
MOST_GROWTH_MIB: Final = 4.0
# The NVML child comes and goes by itself.
MOST_NEW_FILES: Final = 3
# The live page is made once a second: what breaks it shows by then.
LIVE_SECONDS: Final = 1.2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is tried; *every* cases there is a proper push and a scrape."""

    bodies: int = 1_000_000
    requests: int = 100_000
    seed: int = 1
    every: int = 100


class Harm(Exception):
    """The exporter broke; the text has the bytes and how to repeat it."""


def attack(victim: Victim, plan: Plan, kind: str, numbers: range) -> list[float]:
    """Send the cases of *kind* with these *numbers*; return their times in ms.

    Raises Harm where something that must hold does not.
    """
    times = []
    recent: tuple[Case, ...] = ()
    for number in numbers:
        case = CASES[kind](plan.seed, number)
        recent = (*recent, case) if number % plan.every else (case,)
        started = time.perf_counter()
        try:
            victim.suffer(case)
            times.append((time.perf_counter() - started) * 1e3)
            if number % plan.every == plan.every - 1 or number == numbers[-1]:
                victim.check_service()
        except Broken as broken:
            victim.is_harmed = True
            raise Harm(_blame(victim, plan, recent, broken)) from broken
    return times


def harm_of(victim: Victim, cases: Iterable[Case]) -> str | None:
    """Say what goes wrong when *cases* come upon an unharmed exporter; None if nothing does."""
    if victim.is_harmed:
        victim.stop()
        victim.start()
    try:
        for case in cases:
            victim.suffer(case)
        victim.check_service()
        time.sleep(LIVE_SECONDS)
        victim.check_service()
    except Broken as broken:
        victim.is_harmed = True
        return str(broken)
    return None


def _blame(victim: Victim, plan: Plan, recent: tuple[Case, ...], broken: Broken) -> str:
    """Return what broke, the fewest of the *recent* cases that do it, and their shortest bytes."""
    again = f"python -m benchmarks.hostile --seed {plan.seed}"
    cases = next((some for some in (recent[-1:], recent) if harm_of(victim, some)), None)
    if cases is None:
        again += f" --bodies {plan.bodies} --requests {plan.requests}"
        return f"{recent[-1].name}: {broken}\nonly after all that came before it: {again}"
    cases = shortest(cases, lambda some: harm_of(victim, some) is not None)
    if not cases:
        return f"{recent[-1].name}: {broken}\nand it breaks without any hostile case too"
    again += f" --repeat {' '.join(case.name for case in cases)}"
    lines = [f"{cases[-1].name}: {broken}", again]
    if len(cases) == 1:
        (case,) = cases
        data = shortest(
            case.data,
            lambda data: harm_of(victim, [replace(case, pieces=(data,))]) is not None,
        )
        lines.append(f"to the door {case.door!r}, ending {case.ending!r}: {data!r}")
    return "\n".join(lines)


def run(directory: Path, plan: Plan) -> list[dict[str, Any]]:
    """Attack an exporter as planned and return the figures; raises Harm."""
    began = time.monotonic()
    numbers = {"body": range(plan.bodies), "request": range(plan.requests)}
    with Victim(directory) as victim:
        for kind, all_of_them in numbers.items():
            attack(victim, plan, kind, all_of_them[: _warm_up(all_of_them)])
        before = victim.resources()
        times = {
            kind: attack(victim, plan, kind, all_of_them[_warm_up(all_of_them) :])
            for kind, all_of_them in numbers.items()
        }
        after = victim.resources()
        growth, files = after[0] - before[0], after[1] - before[1]
        if growth > MOST_GROWTH_MIB:
            raise Harm(f"grew by {growth:.1f} MiB in {_all(numbers)} cases of seed {plan.seed}")
        if files > MOST_NEW_FILES:
            raise Harm(f"has {files} more files open after {_all(numbers)} cases")
        answers = victim.answers
        if not answers["body"][200] > plan.bodies / 5:
            raise Harm(f"took {answers['body'][200]} snapshots only: little was tried")
        return [
            row("seed", plan.seed),
            row("hostile snapshots", plan.bodies),
            row("of these taken", answers["body"][200]),
            row("of these refused", plan.bodies - answers["body"][200]),
            row("hostile requests", plan.requests),
            row("of their answers 2xx", _of_class(victim, 2)),
            row("of their answers 4xx", _of_class(victim, 4)),
            row("answers 5xx", 0, 0),
            row("turned away for want of room (503)", victim.turned_away),
            row("tracebacks in the log", 0, 0),
            row("bytes logged", victim.log_bytes, MOST_LOG_BYTES),
            row("times that the pages were read", victim.pages),
            row("most series on a page", victim.most_series, MOST_SERIES),
            row("resident memory before, MiB", before[0]),
            row("growth of resident memory, MiB", growth, MOST_GROWTH_MIB),
            row("growth of open files", files, MOST_NEW_FILES),
            *_times("a snapshot", times["body"]),
            *_times("a request", times["request"]),
            row("seconds", time.monotonic() - began),
        ]


def _warm_up(numbers: range) -> int:
    return min(WARM_UP_CASES, len(numbers) // 2)


def _all(numbers: dict[str, range]) -> int:
    return sum(map(len, numbers.values()))


def _of_class(victim: Victim, hundreds: int) -> int:
    both = victim.answers["web"] + victim.answers["ingest"]
    return sum(count for status, count in both.items() if status // 100 == hundreds)


def _times(what: str, times: list[float]) -> list[dict[str, Any]]:
    return [
        row(f"{what}, p50 ms", statistics.median(times)),
        row(f"{what}, p99 ms", statistics.quantiles(times, n=100)[98]),
        row(f"{what}, longest ms", max(times)),
    ]


def repeat(directory: Path, seed: int, names: list[str]) -> str | None:
    """Send the cases of these *names* to a new exporter; return what goes wrong, if anything."""
    parts = (name.split(":") for name in names)
    with Victim(directory) as victim:
        return harm_of(victim, [CASES[kind](seed, int(number)) for kind, number in parts])
