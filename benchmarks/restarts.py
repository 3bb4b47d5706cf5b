"""64 ranks that push ten times a second while their exporter is killed nine times: no step is lost.

One scrape a second beside it, whose increases are added up as PromQL does. Exits 1 when a rank's
counter is not what the rank counted, an increase is lost or doubled, a rank is missing while the
exporter is up, or a killed exporter left a process behind.
"""

import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.report import beside_limits, broken, row, write
from benchmarks.scrape.load import RANK, STEPS_A_PUSH, Rank, beside, scrape
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from rank_probe.report.push import Pusher

# A rank that is not back by then has not recovered.
MOST_RECOVERY_SECONDS: Final = 5.0
# How often the page is looked at while ranks come back.
CLOSE_SECONDS: Final = 0.05
# One that began before the kill may go unanswered.
SCRAPE_TAKES_SECONDS: Final = 0.5
# How often a rank tries its last push, and how long processes may come and go.
LAST_TRIES: Final = 10
SETTLE_SECONDS: Final = 5.0

Steps = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, and how many."""

    seconds: float = 600.0
    kills: int = 9
    down_seconds: float = 3.0
    ranks: int = 64
    pushes_a_second: float = 10.0
    scrape_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Scraped:
    """One scrape: when, and each rank's steps; None where nobody answered."""

    at_seconds: float
    steps: Steps | None


@dataclass(frozen=True, slots=True)
class Kill:
    """When the exporter was killed and when it answered again; each rank's seconds from then on."""

    at_seconds: float
    up_seconds: float
    recovery_seconds: Mapping[int, float]

    @property
    def down_seconds(self) -> float:
        """How long nobody answered."""
        return self.up_seconds - self.at_seconds


def be_ranks(endpoint: str, plan: Plan, parent: Connection) -> None:
    """Be the ranks until *parent* says something; then tell it what each has counted.

    What it gets is each rank's steps and how many of all pushes failed.
    """
    logging.getLogger("rank_probe").setLevel(logging.ERROR)  # That pushes fail is no news here.
    ranks = [Rank(number, plan.ranks) for number in range(plan.ranks)]
    pushers = [Pusher(endpoint, rank, 1 / plan.pushes_a_second) for rank in ranks]
    for pusher in pushers:
        pusher.start()
    parent.recv()
    for pusher in pushers:
        pusher.stop()
        _deliver(pusher)
    failed = sum(pusher.failed_pushes for pusher in pushers)
    parent.send(({number: rank.steps for number, rank in enumerate(ranks)}, failed))


def _deliver(pusher: Pusher) -> None:
    """Push until one push succeeds: a busy machine may take longer than a push may."""
    for _ in range(LAST_TRIES):
        failed_before = pusher.failed_pushes
        pusher.push()
        if pusher.failed_pushes == failed_before:
            return


def steps_on(page: bytes) -> Steps:
    """Return the steps of each rank on *page*."""
    return {
        int(sample.labels["rank"]): sample.value
        for family in text_string_to_metric_families(page.decode())
        if family.name == "rankskew_steps"
        for sample in family.samples
    }


class Scraper(threading.Thread):
    """Scrapes *address* every *interval_seconds* until stop()."""

    def __init__(self, address: str, interval_seconds: float) -> None:
        super().__init__(daemon=True)
        self.scrapes: list[Scraped] = []
        self._address = address
        self._interval = interval_seconds
        self._done = threading.Event()

    def run(self) -> None:
        """Scrape."""
        due = time.monotonic()
        while not self._done.wait(max(0.0, due - time.monotonic())):
            due += self._interval
            self.scrapes.append(Scraped(time.monotonic(), read(self._address)))

    def stop(self) -> None:
        """End."""
        self._done.set()
        self.join()


def read(address: str) -> Steps | None:
    """Return the steps of each rank by the exporter at *address*; None where nobody answers."""
    try:
        return steps_on(scrape(address))
    except OSError:
        return None


def increases(scrapes: Sequence[Scraped]) -> tuple[Steps, int]:
    """Return how much each rank's counter rose over *scrapes*, and how often one fell.

    As PromQL's increase() without its extrapolation: a counter that falls began anew at zero.
    """
    rose: dict[int, float] = {}
    last: dict[int, float] = {}
    falls = 0
    for steps in (each.steps or {} for each in scrapes):
        for rank, value in steps.items():
            before = last.get(rank, value)
            falls += value < before
            rose[rank] = rose.get(rank, 0.0) + (value - before if value >= before else value)
            last[rank] = value
    return rose, falls


def gaps(scrapes: Sequence[Scraped], kills: Sequence[Kill], ranks: int) -> int:
    """Return how many scrapes lacked a rank while the exporter was up and ranks had time."""
    down = [
        (each.at_seconds - SCRAPE_TAKES_SECONDS, each.up_seconds + MOST_RECOVERY_SECONDS)
        for each in kills
    ]
    return sum(
        len(each.steps or ()) < ranks
        for each in scrapes
        if not any(begin <= each.at_seconds <= end for begin, end in down)
    )


def kill(exporter: ExporterProcess, plan: Plan) -> Kill:
    """Kill *exporter*, start it again, and watch closely until every rank is back."""
    killed = time.monotonic()
    exporter.kill()
    time.sleep(plan.down_seconds)
    scraper = Scraper(exporter.address, CLOSE_SECONDS)
    scraper.start()
    exporter.start()
    wait_for(lambda: _all_shown(exporter, plan.ranks), 2 * MOST_RECOVERY_SECONDS)
    scraper.stop()
    return recovery(killed, scraper.scrapes)


def recovery(killed: float, scrapes: Sequence[Scraped]) -> Kill:
    """Return when the exporter and each rank were first seen on *scrapes*."""
    answered = [each for each in scrapes if each.steps is not None]
    back: dict[int, float] = {}
    for each in answered:
        for rank in each.steps or ():
            back.setdefault(rank, each.at_seconds - answered[0].at_seconds)
    return Kill(killed, answered[0].at_seconds, back)


def measure(directory: Path, plan: Plan) -> list[dict[str, Any]]:
    """Run it all and return the figures."""
    with ExporterProcess(directory) as exporter, _ranks(exporter, plan) as ranks:
        if wait_for(lambda: _all_shown(exporter, plan.ranks), 20) is None:
            raise exporter.failure(f"did not show {plan.ranks} ranks in 20 s")
        # The exporter and its NVML worker, which is replaced now and then.
        wait_for(lambda: len(exporter.family()) > 1 or None, SETTLE_SECONDS)
        processes = len(exporter.family())
        scraper = Scraper(exporter.address, plan.scrape_seconds)
        scraper.start()
        began = time.monotonic()
        kills = []
        for number in range(1, plan.kills + 1):
            _sleep_until(began + plan.seconds * number / (plan.kills + 1))
            kills.append(kill(exporter, plan))
        _sleep_until(began + plan.seconds)
        ranks.send("stop")
        counted, failed_pushes = ranks.recv()
        time.sleep(2 * plan.scrape_seconds)
        scraper.stop()
        wait_for(lambda: len(exporter.family()) <= processes or None, SETTLE_SECONDS)
        left_behind = len(exporter.family()) - processes
    return rows(plan, scraper.scrapes, kills, counted, failed_pushes, left_behind)


def rows(
    plan: Plan,
    scrapes: Sequence[Scraped],
    kills: Sequence[Kill],
    counted: Steps,
    failed_pushes: int,
    left_behind: int,
) -> list[dict[str, Any]]:
    """Return the figures; *counted* is what the ranks say of themselves."""
    shown = [each.steps for each in scrapes if each.steps]
    first, last = shown[0], shown[-1]
    rose, falls = increases(scrapes)
    risen = {rank: steps - first.get(rank, 0.0) for rank, steps in counted.items()}
    recoveries = [seconds for each in kills for seconds in each.recovery_seconds.values()]
    never_back = sum(plan.ranks - len(each.recovery_seconds) for each in kills)
    pushes = sum((steps - RANK.steps) / STEPS_A_PUSH for steps in counted.values())
    return [
        row("ranks", plan.ranks),
        row("seconds", plan.seconds),
        row("kills", len(kills)),
        row("scrapes", len(scrapes)),
        row("of these unanswered", sum(each.steps is None for each in scrapes)),
        row("down each time, median s", statistics.median(each.down_seconds for each in kills)),
        row("steps the ranks counted", round(sum(counted.values()))),
        row("of these on the last page", round(sum(last.values()))),
        row("ranks whose last counter is another", _differ(last, counted), 0),
        row("ranks whose increases add up to another sum", _differ(rose, risen), 0),
        row("times that a counter fell", falls, 0),
        row("scrapes that lacked a rank while it was up", gaps(scrapes, kills, plan.ranks), 0),
        row("pushes", round(pushes)),
        row("of these failed, while it was down", failed_pushes),
        row("ranks that did not come back", never_back, 0),
        row("from its first answer to a rank's next push, median s", statistics.median(recoveries)),
        row(
            "from its first answer to a rank's next push, most s",
            max(recoveries),
            MOST_RECOVERY_SECONDS,
        ),
        row("processes left behind", left_behind, 0),
    ]


@contextmanager
def _ranks(exporter: ExporterProcess, plan: Plan) -> Iterator[Connection]:
    """Have the ranks push in a process of their own; yield where be_ranks() listens."""
    here, there = Pipe()
    with beside(be_ranks, exporter.target, plan, there):
        yield here


def _all_shown(exporter: ExporterProcess, ranks: int) -> bool | None:
    return len(read(exporter.address) or ()) == ranks or None


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def _differ(ours: Steps, theirs: Steps) -> int:
    """Return how many ranks do not have the same steps in both."""
    return sum(ours.get(rank) != theirs.get(rank) for rank in ours.keys() | theirs.keys())


def main() -> int:
    """Measure, tell, and say whether every step was counted once."""
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory), Plan())
    write("restarts", found, tables={"restarts": beside_limits})
    return int(bool(broken(found)))


if __name__ == "__main__":
    sys.exit(main())
