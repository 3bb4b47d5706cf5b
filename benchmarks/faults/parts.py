"""The parts of the stack that are killed: how each is killed, and how one sees that it is back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.faults.pages import can_page
from benchmarks.faults.ranks.job import JOB_ID, Job
from benchmarks.faults.wall_clock import WallClock
from devstack.parts import AlertmanagerProcess, ExporterProcess, PrometheusProcess
from devstack.process import StackError, StackProcess, get
from devstack.webhook import Webhook
from tests import nvmlstub

GPUS: Final = 1
SCRAPE_SECONDS: Final = 1.0
# RestartSec of deploy/systemd for the exporter, and systemd's own for the others.
EXPORTER_RESTART_SECONDS: Final = 2.0
RESTART_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.05
WORKER: Final = "exporter.nvml.worker"

Page = Mapping[str, list[tuple[Mapping[str, str], float]]]


class Keeper(threading.Thread):
    """Starts each of *processes* again as many seconds after it was killed, as systemd does.

    What it started ends with it: setpriv ties a process to the thread that started it.
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


@dataclass(frozen=True)
class Part:
    """Something to kill: kill() does, is_back(when) says whether it has worked since *when*.

    *when* is in seconds of the wall clock. kill() returns whether there was anything to kill.
    """

    name: str
    kill: Callable[[], bool]
    is_back: Callable[[float], bool]


class Site:
    """Exporter with stub GPUs, Prometheus, Alertmanager, webhook and a job, all kept running.

    The exporter and rank 1 have *clock* for their wall clock.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = WallClock(directory)
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.webhook = undo.enter_context(Webhook())
            self.alertmanager = undo.enter_context(
                AlertmanagerProcess(self.directory, self.webhook.url)
            )
            state = self.directory / "state"
            state.mkdir(exist_ok=True)
            gpus = nvmlstub.environment(nvmlstub.build(self.directory), GPUS)
            flags = [f"--path.state={state}"]
            self.exporter = undo.enter_context(
                ExporterProcess(
                    self.directory, flags=flags, environment=gpus | self.clock.environment
                )
            )
            self.prometheus = undo.enter_context(
                PrometheusProcess(
                    self.directory,
                    [self.exporter.address],
                    self.alertmanager.address,
                    interval_seconds=SCRAPE_SECONDS,
                )
            )
            job = Job(self.directory / "job", self.exporter.target, {1: self.clock.environment})
            self.job = undo.enter_context(job)
            for process in (self.exporter, self.prometheus, self.alertmanager):
                process.ready_url = None  # Started again, it may be killed before it is ready.
            others = [self.prometheus, self.alertmanager, *self.job.ranks]
            at_once = dict.fromkeys(others, RESTART_SECONDS)
            self.keeper = keeper = Keeper({self.exporter: EXPORTER_RESTART_SECONDS, **at_once})
            keeper.start()
            undo.callback(keeper.end)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def parts(self) -> list[Part]:
        """Return what can be killed: four parts, and one of the ranks."""
        ranks = [
            Part(process.name, lambda process=process: _kill(process), self._rank_is_back(rank))  # type: ignore[misc]
            for rank, process in enumerate(self.job.ranks)
        ]
        return [
            Part("exporter", lambda: _kill(self.exporter), self._exporter_is_back),
            Part("NVML child", self._kill_worker, self._worker_is_back),
            Part("Prometheus", lambda: _kill(self.prometheus), self._prometheus_is_back),
            Part("Alertmanager", lambda: _kill(self.alertmanager), self._alertmanager_is_back),
            *ranks,
        ]

    def settle(self, seconds: float = 60.0) -> None:
        """Wait until everything works; raises StackError if that takes longer than *seconds*."""
        recoveries(self.parts(), time.time(), seconds)

    def page(self) -> Page:
        """Return the exporter's page by series; empty while it does not answer."""
        with suppress(OSError):
            text = get(f"{self.exporter.url}/metrics", timeout_seconds=1).decode()
            return {
                name: [(sample.labels, sample.value) for sample in family.samples]
                for family in text_string_to_metric_families(text)
                for name in (family.name,)
            }
        return {}

    def steps(self) -> dict[str, float]:
        """Return the steps of each rank on the exporter's page."""
        return {labels["rank"]: value for labels, value in self.page().get("rankskew_steps", [])}

    def state(self) -> str:
        """Return what the exporter's built-in page says of the job; empty if it says nothing."""
        with suppress(StackError):
            job = self.exporter.live_job(JOB_ID)
            return "" if job is None else str(job["verdict"]["state"])
        return ""

    def _kill_worker(self) -> bool:
        with suppress(psutil.Error):
            for child in psutil.Process(self.exporter.pid).children():
                if WORKER in child.cmdline():
                    child.kill()
                    return True
        return False

    def _exporter_is_back(self, since: float) -> bool:
        heard = _heard(self.page())
        return bool(heard) and all(at > since for at in heard.values())

    def _worker_is_back(self, since: float) -> bool:
        page = self.page()
        return (
            _value(page, "rankskew_nvml_worker_up") == 1
            and _value(page, "rankskew_nvml_sample_timestamp_seconds") > since
            and [value for _, value in page["rankskew_gpu_up"]] == [1.0] * GPUS
        )

    def _rank_is_back(self, rank: int) -> Callable[[float], bool]:
        return lambda since: _heard(self.page(), steps=1).get(str(rank), 0.0) > since

    def _prometheus_is_back(self, since: float) -> bool:
        with suppress(StackError):
            scraped = self.prometheus.value('max(timestamp(up{job="rankskew"}))')
            ruled = self.prometheus.value("max(timestamp(job:rankskew_job:group))")
            return None not in (scraped, ruled) and min(scraped or 0, ruled or 0) > since
        return False

    def _alertmanager_is_back(self, since: float) -> bool:
        return can_page(self.alertmanager, self.webhook, f"{since}")


def recoveries(parts: Sequence[Part], since: float, seconds: float = 60.0) -> dict[str, float]:
    """Return how many seconds after *since* each of *parts* was back; raises StackError if not."""
    missing = {part.name: part for part in parts}
    back: dict[str, float] = {}
    while missing:
        for name, part in list(missing.items()):
            if part.is_back(since):
                back[name] = time.time() - since
                del missing[name]
        if missing and time.time() - since > seconds:
            raise StackError(f"{', '.join(missing)} did not come back in {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
    return back


def _kill(process: StackProcess) -> bool:
    if process.exit_code is not None:
        return False
    os.kill(process.pid, signal.SIGKILL)
    return True


def _value(page: Page, name: str) -> float:
    return next((value for _, value in page.get(name, [])), 0.0)


def _heard(page: Page, steps: float = 0) -> dict[str, float]:
    """Return when each rank was heard, of those that have counted that many *steps*."""
    counted = {labels["rank"]: value for labels, value in page.get("rankskew_steps", [])}
    return {
        labels["rank"]: value
        for labels, value in page.get("rankskew_heartbeat_timestamp_seconds", [])
        if counted.get(labels["rank"], 0.0) >= steps
    }
