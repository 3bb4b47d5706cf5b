"""`make demo`: plant a straggler, wait until it is named, and print one line about it.

Prometheus judges the training with the shipped rules and Alertmanager pages. Without these two
programs the exporter's built-in page alone names the late rank.
"""

import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from devstack.parts import (
    ALERTMANAGER,
    PROMETHEUS,
    AlertmanagerProcess,
    ExporterProcess,
    PrometheusProcess,
    TrainingProcess,
)
from devstack.process import StackError, StackProcess, missing_programs
from devstack.webhook import ReceivedAlert, Webhook

FAULTS: Final = ("data", "forward", "backward", "optimizer", "none")
JOB_ID: Final = "demo"
RANK: Final = "2"
RANKS: Final = 4
STEP_SECONDS: Final = 0.2
DELAY_SECONDS: Final = 0.1
WAIT_SECONDS: Final = 300.0
# A straggler is named within seconds once the job can be judged, so a quiet minute is an answer.
HEALTHY_SECONDS: Final = 60.0
# The judge has already waited for enough steps: this only checks that the page's verdict lasts.
LATE_SECONDS: Final = 5.0
# The usual ports, if they are free.
EXPORTER_PORT: Final = 9917
PROMETHEUS_PORT: Final = 9090
ALERTMANAGER_PORT: Final = 9093

STRAGGLER: Final = "RankskewStraggler"
JOB: Final = f'{{job_id="{JOB_ID}"}}'
LATEST: Final = f"topk(1, rank_stage:rankskew_gpus_lost:sum{JOB})"
GPUS_LOST: Final = f"job:rankskew_gpus_lost:sum{JOB}"
NOT_JUDGEABLE: Final = f"job_reason:rankskew_not_judgeable:bool{JOB}"
JUDGED: Final = f"job:rankskew_coverage:ratio{JOB} > 0 unless on (job_id) {NOT_JUDGEABLE}"

# The demo's job in the built-in page's data; None until the exporter knows the job.
LiveJob = dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The rank and stage that *alert* named; both empty if none was named for long enough."""

    rank: str = ""
    stage: str = ""
    gpus_lost: float
    alert: str
    judged_seconds: float = 0.0
    after_seconds: float

    def line(self) -> str:
        """Return the last line of the demo."""
        named = f"rank={self.rank} stage={self.stage}" if self.rank else "no straggler"
        judged = "" if self.rank else f"judged={self.judged_seconds:.0f}s "
        return (
            f"verdict: job={JOB_ID} {named} gpus_lost={self.gpus_lost:.2f} "
            f"{judged}alert={self.alert} after={self.after_seconds:.0f}s"
        )

    def what_is_wrong(self, fault: str) -> str | None:
        """Return how this verdict differs from the planted *fault*; None if it does not."""
        planted = ("", "") if fault == "none" else (RANK, fault)
        if (self.rank, self.stage) == planted:
            return None
        slow = "no rank" if fault == "none" else f"rank {RANK} in {fault}"
        named = f"rank {self.rank} in {self.stage}" if self.rank else "nobody"
        return f"{self.alert} names {named}, but {slow} was slow"


class Lasting:
    """Measures for how long a value has stayed the same."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def seconds(self, value: object) -> float:
        """Return for how many seconds every call has passed this *value*."""
        now = time.monotonic()
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since


class PageWatch:
    """Takes the built-in page's verdict once it has lasted a while; nobody is paged."""

    def __init__(self, exporter: ExporterProcess) -> None:
        self.look_at = [f"{exporter.url}/  the built-in page: every rank and stage, live"]
        self._exporter = exporter
        self._lasting = Lasting()

    def live(self) -> LiveJob:
        """Return what the built-in page shows of the job."""
        return self._exporter.live_job(JOB_ID)

    def say_pages(self, started: float) -> None:
        """Print the pages that came since the last call, with the time since *started*."""

    def verdict(self, started: float) -> Verdict | None:
        """Return the verdict, None while there is none."""
        job = self.live()
        if job is None:
            return None
        state, late = job["verdict"]["state"], job["verdict"]["late"]
        named = late[:1] if state in ("straggler", "slow_node") else []
        rank, stage = (str(named[0]["rank"]), named[0]["stage"]) if named else ("", "")
        seconds = self._lasting.seconds((state, rank, stage))
        if seconds < (LATE_SECONDS if named else HEALTHY_SECONDS):
            return None
        if not named and state != "healthy":
            return None
        return Verdict(
            rank=rank,
            stage=stage,
            gpus_lost=sum(each["gpus_lost"] for each in named or late),
            alert="none(page)",
            judged_seconds=seconds,
            after_seconds=time.monotonic() - started,
        )

    def wrong_names(self) -> list[str]:
        """Return who else was named, although only the planted rank is slow."""
        return []

    def diagnosis(self) -> str:
        """Return which part of the path kept the verdict from coming."""
        return f"the built-in page says: {sentence(self.live())}"


class AlertWatch(PageWatch):
    """Waits for a page from Alertmanager, or for a quiet period long enough to count."""

    def __init__(
        self,
        fault: str,
        exporter: ExporterProcess,
        prometheus: PrometheusProcess,
        alertmanager: AlertmanagerProcess,
        webhook: Webhook,
    ) -> None:
        super().__init__(exporter)
        query = {"g0.expr": LATEST, "g0.tab": 0, "g0.range_input": "10m"}
        self.look_at += [
            f"{prometheus.url}/graph?{urllib.parse.urlencode(query)}  GPUs lost, by rank and stage",
            f"{prometheus.url}/alerts  and  {alertmanager.url}/",
            "dashboards/json  for Grafana",
        ]
        self._fault, self._prometheus, self._webhook = fault, prometheus, webhook
        self._pages_said = 0

    def say_pages(self, started: float) -> None:
        """Print the pages that came since the last call, with the time since *started*."""
        new = self._webhook.pages()[self._pages_said :]
        self._pages_said += len(new)
        for page in new:
            said = "PAGE" if page.status == "firing" else page.status
            print(f"\n{said} after {page.received - started:.0f} s: {page.alert}", flush=True)
            first = page.annotations.get("first")
            texts = [page.annotations.get(name, "") for name in ("summary", "description")]
            for text in [*texts, f"First: {first}"] if first else texts:
                print(textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  "))

    def verdict(self, started: float) -> Verdict | None:
        """Return the verdict of the first straggler page, or of any page if no rank is slow."""
        self.say_pages(started)
        awaited = None if self._fault == "none" else STRAGGLER
        for page in self._webhook.pages(awaited, "firing"):
            return verdict_of(page, self._prometheus.active_alerts(), page.received - started)
        if awaited:
            return None
        is_judged = bool(self._prometheus.query(JUDGED))
        judged_seconds = self._lasting.seconds(is_judged)
        gpus_lost = self._prometheus.value(GPUS_LOST)
        if not is_judged or judged_seconds < HEALTHY_SECONDS or gpus_lost is None:
            return None
        return Verdict(
            gpus_lost=gpus_lost,
            alert="none",
            judged_seconds=judged_seconds,
            after_seconds=time.monotonic() - started,
        )

    def wrong_names(self) -> list[str]:
        """Return who else was named, although only the planted rank is slow."""
        named = [page.labels for page in self._webhook.pages(STRAGGLER, "firing")]
        return [
            f"rank {labels.get('rank')} in {labels.get('stage')}"
            for labels in named
            if (labels.get("rank"), labels.get("stage")) != (RANK, self._fault)
        ]

    def diagnosis(self) -> str:
        """Return which part of the path kept the page from coming."""
        prometheus = self._prometheus
        if prometheus.value('up{job="rankskew"}') != 1:
            return "the exporter: Prometheus cannot scrape it"
        if not prometheus.query(f"rankskew_steps_total{JOB}"):
            return "the probe: no rank's snapshot reached the exporter"
        if reasons := prometheus.query(NOT_JUDGEABLE):
            named = ", ".join(each.labels["reason"] for each in reasons)
            return f"the rules: not judgeable ({named})"
        if any(alert["labels"]["alertname"] == STRAGGLER for alert in prometheus.active_alerts()):
            return f"Alertmanager: {STRAGGLER} fires, but was not delivered"
        return f"the rules: {STRAGGLER} is quiet, while {super().diagnosis()}"


def verdict_of(page: ReceivedAlert, active: Sequence[Any], after_seconds: float) -> Verdict:
    """Return the verdict in *page*; its cost is the value of its alert among the *active* ones."""
    cost = [float(alert["value"]) for alert in active if alert["labels"] == page.labels]
    return Verdict(
        rank=page.labels.get("rank", "?"),
        stage=page.labels.get("stage", "?"),
        gpus_lost=cost[0] if cost else float("nan"),
        alert=page.alert,
        after_seconds=after_seconds,
    )


# ---- What is printed -----------------------------------------------------------------------------


def what_it_says(job: LiveJob) -> tuple[object, ...]:
    """Return the lasting part of the page's verdict on *job*; its figures change all the time."""
    if job is None:
        return ()
    verdict = job["verdict"]
    late = {(each["rank"], each["stage"], each["kind"]) for each in verdict["late"]}
    return verdict["state"], verdict["reason"], late, bool(_causes(job))


def sentence(job: LiveJob) -> str:
    """Return the page's own words for its verdict on *job*, and for the first cause if known."""
    if job is None:
        return "The job is not known yet."
    causes = [f"Cause: {each}." for each in _causes(job)[:1]]
    return " ".join([job["verdict"]["sentence"], *causes])


def _causes(job: dict[str, Any]) -> list[str]:
    return [each["cause"]["sentence"] for each in job["verdict"]["late"] if each["cause"]]


def say_started(part: str, what: str) -> None:
    """Print that *part* is running now."""
    print(f"  {part:<13} {what}", flush=True)


# ---- Its course ----------------------------------------------------------------------------------


class Demo:
    """One run: *fault* is planted in one rank; *once* ends it with the verdict."""

    def __init__(self, fault: str, once: bool) -> None:
        self.concluded = False
        self._fault, self._once = fault, once
        self._parts: list[StackProcess] = []
        self._started = 0.0

    def run(self, directory: Path, with_prometheus: bool) -> str | None:
        """Run it until it ends; return what is wrong with the verdict, None if nothing."""
        with ExitStack() as stack:
            watch = self._start(stack, directory, with_prometheus)
            verdict = self.wait(watch)
            wrong = verdict.what_is_wrong(self._fault) or " and ".join(watch.wrong_names())
            self._conclude(verdict, watch.look_at)
            while not wrong and not self._once:
                self._check_alive()
                watch.say_pages(self._started)
                time.sleep(0.5)
            return wrong or None

    def _start(self, stack: ExitStack, directory: Path, with_prometheus: bool) -> PageWatch:
        """Start all parts until *stack* closes, the training last; time counts from there."""
        exporter = stack.enter_context(ExporterProcess(directory, EXPORTER_PORT))
        self._parts = [exporter]
        say_started("exporter", f"{exporter.url}/  (built-in page, /metrics)")
        watch = PageWatch(exporter)
        if with_prometheus:
            webhook = stack.enter_context(Webhook())
            alertmanager = stack.enter_context(
                AlertmanagerProcess(directory, webhook.url, port=ALERTMANAGER_PORT)
            )
            say_started("Alertmanager", f"{alertmanager.url}/  (its webhook prints here)")
            prometheus = stack.enter_context(
                PrometheusProcess(
                    directory, [exporter.address], alertmanager.address, port=PROMETHEUS_PORT
                )
            )
            say_started("Prometheus", f"{prometheus.url}/alerts  (the shipped rules, every 5 s)")
            self._parts += [alertmanager, prometheus]
            watch = AlertWatch(self._fault, exporter, prometheus, alertmanager, webhook)
        arguments = [f"--fault={self._fault}", f"--fault-rank={RANK}", f"--delay={DELAY_SECONDS}"]
        arguments += [f"--step-seconds={STEP_SECONDS}", "--steps=10000000"]
        training = TrainingProcess(
            directory, arguments, exporter=exporter.target, job_id=JOB_ID, ranks=RANKS
        )
        self._started = time.monotonic()
        self._parts.append(stack.enter_context(training))
        slow = f"rank {RANK} is {DELAY_SECONDS:g} s a step slower in {self._fault}"
        say_started(
            "training",
            f"torchrun --nproc-per-node {RANKS} -m rank_probe demo/train.py; "
            + ("no rank is slow" if self._fault == "none" else slow),
        )
        return watch

    def wait(self, watch: PageWatch) -> Verdict:
        """Return the verdict; meanwhile print the page's sentence whenever it changes.

        Raises StackError when a part ends, or when no verdict comes in time.
        """
        said = what_it_says(None)
        while (elapsed := time.monotonic() - self._started) < WAIT_SECONDS:
            self._check_alive()
            job = watch.live()
            if (now := what_it_says(job)) != said:
                print(f"  {elapsed:4.0f} s  {sentence(job)}", flush=True)
            said = now
            if (verdict := watch.verdict(self._started)) is not None:
                return verdict
            time.sleep(0.2)
        raise StackError(f"no verdict in {WAIT_SECONDS:.0f} s, because of {watch.diagnosis()}")

    def _check_alive(self) -> None:
        for part in self._parts:
            part.check_alive()

    def _conclude(self, verdict: Verdict, look_at: Sequence[str]) -> None:
        self.concluded = True
        print(f"\n{verdict.line()}\n", flush=True)
        print(
            "Where to look, on a terminal and without DEMO_ONCE, as it then goes on:"
            if self._once
            else "Where to look; Ctrl-C ends it:"
        )
        for place in look_at:
            print(f"  {place}", flush=True)


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal to end the demo: like KeyboardInterrupt, but it carries the signal's number."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


def interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    """Unwind to stop every part; ignore further signals, which must not cut that short."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal_number)


def main() -> int:
    """Run the demo; return its exit status."""
    fault = os.environ.get("DEMO_FAULT") or "data"
    if fault not in FAULTS:
        print(f"DEMO_FAULT={fault} is not one of {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    for each in SIGNALS:
        signal.signal(each, interrupt)
    missing = missing_programs(PROMETHEUS, ALERTMANAGER)
    if missing:
        print(
            f"Not installed: {' and '.join(missing)}. To see the rules and the alert as well:\n"
            f"    sudo apt-get install {' '.join(missing)}\n"
            "Without them the demo shows only the exporter and its built-in page.\n"
        )
    # Without a terminal nobody can press Ctrl-C.
    once = os.environ.get("DEMO_ONCE", "") not in ("", "0") or not sys.stdout.isatty()
    demo = Demo(fault, once)
    directory = Path(tempfile.mkdtemp(prefix="rankskew-demo-"))
    try:
        wrong = demo.run(directory, with_prometheus=not missing)
    except StackError as error:
        print(f"\ndemo failed: {error}\nlogs and data: {directory}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        shutil.rmtree(directory)
        print("\nStopped; nothing is left running.")
        return 0 if demo.concluded else 128 + interrupted.signal_number
    shutil.rmtree(directory)
    if wrong:
        print(f"demo failed: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
