"""Exporter, its NVML child, Prometheus, Alertmanager and ranks are killed, alone or in pairs.

All recover in seconds, no count is lost or doubled, and nobody is paged. Three tests share a stack
and run in the order of this file; the last one checks the counters and the pages.
"""

import json
import os
import random
import signal
import statistics
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest

from devstack.load import samples_on
from devstack.parts import AlertmanagerProcess, ExporterProcess, PrometheusProcess
from devstack.process import StackError, StackProcess, get
from devstack.webhook import ReceivedAlert, Webhook
from exporter.nvml.supervisor import WELL_SECONDS
from tests import nvmlstub
from tests.nightly.figures import full_or_short, hold, row
from tests.nightly.surviving import JOB_ID, RANKS, Job

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

MOST_RECOVERY_SECONDS: Final = 10.0
SCRAPE_SECONDS: Final = 1.0
# RestartSec of deploy/systemd for the exporter, and systemd's own for the others.
EXPORTER_RESTART_SECONDS: Final = 2.0
RESTART_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.05
# A rank is silent after ten seconds without a push; a scrape and two evaluations later it shows.
SILENT_SECONDS: Final = 14.0
# An alert of our own, which shows that a page could be sent.
TRIAL: Final = "FaultsTrial"


class Keeper(threading.Thread):
    """Restarts each of *processes* its number of seconds after a kill, as systemd does.

    Restarted processes end with this thread: setpriv ties a process to the thread that started it.
    """

    def __init__(self, processes: Mapping[StackProcess, float]) -> None:
        super().__init__(daemon=True)
        self._processes = processes
        self._due = dict.fromkeys(processes, 0.0)
        self.kept_down: set[StackProcess] = set()
        self._over = threading.Event()

    def run(self) -> None:
        """Keep them."""
        while not self._over.wait(POLL_SECONDS):
            for process, seconds in self._processes.items():
                if process.exit_code in (None, 0) or process in self.kept_down:
                    self._due[process] = time.monotonic() + seconds
                elif time.monotonic() >= self._due[process]:
                    process.start()

    def end(self) -> None:
        """Start nothing any more."""
        self._over.set()
        self.join()


class Part(NamedTuple):
    """A part to kill: kill() kills it, is_back(when) returns whether it has worked since *when*.

    *when* is in seconds of the wall clock. kill() returns whether there was anything to kill.
    """

    kill: Callable[[], bool]
    is_back: Callable[[float], bool]


class HurtStack:
    """Exporter with a stub GPU, Prometheus, Alertmanager, webhook and a job, all kept running."""

    def __init__(self, directory: Path, undo: ExitStack) -> None:
        self.began = time.time()
        # Each killed part with the seconds until it was back, for a pair from the second kill on.
        self.killed: list[tuple[str, float]] = []
        self.worker_well_at = 0.0
        self.webhook = undo.enter_context(Webhook())
        self.alertmanager = undo.enter_context(AlertmanagerProcess(directory, self.webhook.url))
        gpu = nvmlstub.environment(nvmlstub.build(directory), gpus=1)
        (directory / "state").mkdir()
        self.exporter = undo.enter_context(
            ExporterProcess(
                directory, flags=[f"--path.state={directory / 'state'}"], environment=gpu
            )
        )
        addresses = [self.exporter.address], self.alertmanager.address
        self.prometheus = undo.enter_context(
            PrometheusProcess(directory, *addresses, interval_seconds=SCRAPE_SECONDS)
        )
        self.job = undo.enter_context(Job(directory / "job", self.exporter.target))
        for process in (self.exporter, self.prometheus, self.alertmanager):
            process.ready_url = None  # Started again, it may be killed before it is ready.
        others = [self.prometheus, self.alertmanager, *self.job.ranks]
        at_once = dict.fromkeys(others, RESTART_SECONDS)
        self.keeper = Keeper({self.exporter: EXPORTER_RESTART_SECONDS, **at_once})
        self.keeper.start()
        undo.callback(self.keeper.end)
        self.parts = {
            "exporter": Part(lambda: _kill(self.exporter), self._exporter_is_back),
            "NVML child": Part(self._kill_worker, self._worker_is_back),
            "Prometheus": Part(lambda: _kill(self.prometheus), self._prometheus_is_back),
            "Alertmanager": Part(lambda: _kill(self.alertmanager), self._alertmanager_is_back),
            **{
                process.name: Part(partial(_kill, process), partial(self._rank_is_back, str(rank)))
                for rank, process in enumerate(self.job.ranks)
            },
        }
        self.settle()

    def settle(self) -> None:
        """Wait until everything works; raises StackError if that takes more than a minute."""
        self.recoveries(self.parts, time.time())

    def recoveries(self, parts: Iterable[str], since: float) -> dict[str, float]:
        """Return how many seconds after *since* each of *parts* was back.

        Raises StackError if that takes more than a minute.
        """
        missing, back = set(parts), dict[str, float]()
        while missing:
            for name in list(missing):
                if self.parts[name].is_back(since):
                    back[name] = time.time() - since
                    missing.remove(name)
            if missing and time.time() - since > 60:
                raise StackError(f"{', '.join(missing)} did not come back in a minute")
            time.sleep(POLL_SECONDS)
        return back

    def kill(self, burst: Sequence[tuple[str, float]]) -> None:
        """Kill one part after the other, each after so many seconds, and wait for them."""
        for name, seconds in burst:
            if name == "NVML child":  # One that dies before it was well waits longer each time.
                seconds = max(seconds, self.worker_well_at - time.time())
            time.sleep(seconds)
            while not self.parts[name].kill():  # It is dead already, and is started again.
                time.sleep(POLL_SECONDS)
        back = self.recoveries({name for name, _ in burst}, time.time())
        if "NVML child" in back:
            self.worker_well_at = time.time() + WELL_SECONDS + 1
        self.killed += [(name, back[name]) for name, _ in burst]
        print(", ".join(f"{name} back in {seconds:.1f} s" for name, seconds in back.items()))

    def samples(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield each series of *name* on the exporter's page; none while it does not answer."""
        with suppress(OSError):
            yield from samples_on(get(f"{self.exporter.url}/metrics", timeout_seconds=1), name)

    def pages(self) -> list[ReceivedAlert]:
        """Return the firing pages that are not ours."""
        return [page for page in self.webhook.pages(status="firing") if page.alert != TRIAL]

    def _heard(self) -> dict[str, float]:
        """Return when each rank that has counted a step was heard."""
        steps = {each["rank"] for each, value in self.samples("rankskew_steps_total") if value}
        beats = self.samples("rankskew_heartbeat_timestamp_seconds")
        return {labels["rank"]: at for labels, at in beats if labels["rank"] in steps}

    def _kill_worker(self) -> bool:
        with suppress(psutil.Error):
            for child in psutil.Process(self.exporter.pid).children():
                if "exporter.nvml.worker" in child.cmdline():
                    child.kill()
                    return True
        return False

    def _exporter_is_back(self, since: float) -> bool:
        heard = self._heard()
        return bool(heard) and all(at > since for at in heard.values())

    def _worker_is_back(self, since: float) -> bool:
        sampled = self.samples("rankskew_nvml_sample_timestamp_seconds")
        up = [value for _, value in self.samples("rankskew_gpu_up")]
        return up == [1.0] and all(at > since for _, at in sampled)

    def _rank_is_back(self, rank: str, since: float) -> bool:
        return self._heard().get(rank, 0.0) > since

    def _prometheus_is_back(self, since: float) -> bool:
        with suppress(StackError):
            scraped = self.prometheus.value('max(timestamp(up{job="rankskew"}))')
            ruled = self.prometheus.value("max(timestamp(job:rankskew_job:group))")
            return min(scraped or 0, ruled or 0) > since
        return False

    def _alertmanager_is_back(self, since: float) -> bool:
        labels = {"alertname": TRIAL, "number": f"{since}", "severity": "warning"}
        body = json.dumps([{"labels": labels}]).encode()
        url = f"{self.alertmanager.url}/api/v2/alerts"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with suppress(OSError), urllib.request.urlopen(request, timeout=1):
            return bool(self.webhook.pages(TRIAL, number=labels["number"]))
        return False


def _kill(process: StackProcess) -> bool:
    if process.exit_code is not None:
        return False
    os.kill(process.pid, signal.SIGKILL)
    return True


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HurtStack]:
    """A stack that trains, up for this file."""
    with ExitStack() as undo:
        yield HurtStack(tmp_path_factory.mktemp("hurt"), undo)


def bursts(kills: int) -> Iterator[list[tuple[str, float]]]:
    """Yield what to kill after how many seconds: one part, or a second one while it may start."""
    draw = random.Random(1)
    while kills > 0:
        rank = f"rank {draw.randrange(RANKS)}"
        parts = ["exporter", "NVML child", "Prometheus", "Alertmanager", rank]
        count = 2 if kills > 1 and draw.random() < 0.35 else 1
        yield [(part, draw.uniform(0, 3)) for part in draw.sample(parts, count)]
        kills -= count


def test_all_that_dies_is_back(stack: HurtStack) -> None:
    """Whatever is killed, one part or two, works again in ten seconds."""
    began = time.time()
    for burst in bursts(int(full_or_short(200, 8))):
        stack.kill(burst)
    seconds: dict[str, list[float]] = defaultdict(list)
    for part, recovery_seconds in stack.killed:
        seconds["a rank" if part.startswith("rank ") else part].append(recovery_seconds)
    rows = [row("kills", len(stack.killed)), row("minutes", round((time.time() - began) / 60, 1))]
    for part, recoveries in sorted(seconds.items()):
        # How long a new rank imports torch, on a machine that runs other tests, is not ours.
        most = full_or_short(MOST_RECOVERY_SECONDS, 60) if part == "a rank" else 10.0
        rows.append(row(f"kills of {part}", len(recoveries)))
        rows.append(row(f"{part} is back, median s", statistics.median(recoveries)))
        rows.append(row(f"{part} is back, most s", max(recoveries), most))
    hold("faults", rows)


def test_prometheus_is_down_for_long(stack: HurtStack) -> None:
    """It is back in seconds, and makes no page of the gap."""
    seconds = full_or_short(600, 20)
    stack.settle()
    stack.keeper.kept_down.add(stack.prometheus)
    stack.prometheus.kill()
    time.sleep(seconds)
    back = time.time()
    stack.keeper.kept_down.clear()
    back_seconds = stack.recoveries(["Prometheus"], back)["Prometheus"]
    time.sleep(SILENT_SECONDS)
    rows = [
        row("Prometheus down: seconds", seconds),
        row("Prometheus down: back after, s", back_seconds, MOST_RECOVERY_SECONDS),
    ]
    hold("faults", rows)


def is_counted_by(part: str, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether *part* counts the series *name* with *labels*.

    The exporter counts some of a rank's counters itself; these may reset with the exporter, too.
    """
    if part == f"rank {labels.get('rank')}":
        return True
    return part in ("exporter", "NVML child") and (
        "rank" not in labels or name.startswith("rankskew_rank_")
    )


def test_nothing_was_lost_meanwhile(stack: HurtStack) -> None:
    """Each counter has the true count, and nobody was paged.

    A counter resets at most as often as the processes that count it were killed.
    """
    stack.settle()
    pages, kills = stack.pages(), Counter(part for part, _ in stack.killed)
    stack.job.end()
    time.sleep(3 * SCRAPE_SECONDS)  # The last values are scraped.
    ask, whole_time = stack.prometheus.query, f"[{time.time() - stack.began:.0f}s]"
    last = ask(f'last_over_time({{job="rankskew",__name__=~"rankskew_.+_total"}}{whole_time})')
    shown = {
        int(each.labels["rank"]): each.value
        for each in last
        if each.labels["__name__"] == "rankskew_steps_total" and each.labels["job_id"] == JOB_ID
    }
    falls = unexplained = 0.0
    for name in {each.labels["__name__"] for each in last}:
        for fell in ask(f'resets({name}{{job="rankskew"}}{whole_time})'):
            restarts = sum(kills[part] for part in kills if is_counted_by(part, name, fell.labels))
            falls += fell.value
            unexplained += max(0.0, fell.value - restarts)
    counted = stack.job.counted()
    print([page.annotations for page in pages])
    rows = [
        row("counters", len(last)),
        row("times that one fell", falls),
        row("of these without a restart of what counts it", unexplained, 0),
        row("processes of ranks", len(counted)),
        row("steps that they counted", sum(steps for _, steps in counted)),
        row("ranks whose last counter is another", int(dict(counted) != shown), 0),
        row("pages of the shipped alerts", len(pages), 0),
    ]
    assert len(shown) == RANKS
    hold("faults", rows)
