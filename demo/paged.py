"""The whole path: Prometheus judges the training with the shipped rules, Alertmanager pages."""

import textwrap
import time
import urllib.parse
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from demo.scenario import (
    HEALTHY_SECONDS,
    JOB_ID,
    RANK,
    WAIT_SECONDS,
    Scenario,
    say_started,
    sentence,
)
from demo.verdict import STRAGGLER, Conclusion, Health, NamedRank, verdict_of, wrong_names
from devstack.parts import AlertmanagerProcess, ExporterProcess, PrometheusProcess
from devstack.process import StackError, StackProcess
from devstack.webhook import ReceivedAlert, Webhook

# The usual ports, if they are free.
PROMETHEUS_PORT: Final = 9090
ALERTMANAGER_PORT: Final = 9093

JOB: Final = f'{{job_id="{JOB_ID}"}}'
LATEST: Final = f"topk(1, rank_stage:rankskew_gpus_lost:sum{JOB})"
GPUS_LOST: Final = f"job:rankskew_gpus_lost:sum{JOB}"
NOT_JUDGEABLE: Final = f"job_reason:rankskew_not_judgeable:bool{JOB}"
JUDGED: Final = f"job:rankskew_coverage:ratio{JOB} > 0 unless on (job_id) {NOT_JUDGEABLE}"


def demonstrate(scenario: Scenario, directory: Path) -> str | None:
    """Run *scenario*; return what is wrong with its verdict, None if nothing."""
    with ExitStack() as stack:
        webhook = stack.enter_context(Webhook())
        alertmanager = stack.enter_context(
            AlertmanagerProcess(directory, webhook.url, port=ALERTMANAGER_PORT)
        )
        say_started("Alertmanager", f"{alertmanager.url}/  (its webhook prints here)")
        exporter = scenario.start_exporter(stack, directory)
        prometheus = stack.enter_context(
            PrometheusProcess(
                directory, [exporter.address], alertmanager.address, port=PROMETHEUS_PORT
            )
        )
        say_started("Prometheus", f"{prometheus.url}/alerts  (the shipped rules, every 5 s)")
        training = scenario.start_training(stack, directory, exporter)
        parts = [exporter, prometheus, alertmanager, training]
        watch = AlertWatch(scenario, exporter, prometheus, webhook, parts)
        verdict, wrong = watch.healthy() if scenario.fault == "none" else watch.straggler()
        scenario.conclude(
            verdict,
            [
                f"{exporter.url}/  the built-in page: every rank and stage, live",
                f"{graph(prometheus, LATEST)}  GPUs lost, by rank and stage",
                f"{prometheus.url}/alerts  and  {alertmanager.url}/",
                "dashboards/json  for Grafana",
            ],
        )
        if wrong is None:
            scenario.hold(parts, meanwhile=watch.say_pages)
        return wrong


def graph(prometheus: PrometheusProcess, expression: str) -> str:
    """Return the address of Prometheus's graph of *expression* over the last ten minutes."""
    query = urllib.parse.urlencode({"g0.expr": expression, "g0.tab": 0, "g0.range_input": "10m"})
    return f"{prometheus.url}/graph?{query}"


class AlertWatch:
    """Waits for the page, or for a quiet period that is long enough to count."""

    def __init__(
        self,
        scenario: Scenario,
        exporter: ExporterProcess,
        prometheus: PrometheusProcess,
        webhook: Webhook,
        parts: list[StackProcess],
    ) -> None:
        self._scenario, self._prometheus, self._webhook = scenario, prometheus, webhook
        self._live = partial(exporter.live_job, JOB_ID)
        self._parts = parts
        self._judged_since: float | None = None
        self._pages_said = 0

    def straggler(self) -> tuple[Conclusion, str | None]:
        """Wait for the straggler's page; return the verdict and what is wrong with it."""
        verdict = self._scenario.watch(self._parts, self._named, self._live)
        if verdict is None:
            raise StackError(f"no page in {WAIT_SECONDS:.0f} s, because of {self.diagnosis()}")
        others = wrong_names(self._webhook.pages(), RANK, self._scenario.fault)
        wrong = f"the page names {', '.join(others)}, but rank {RANK} was slow" if others else None
        return verdict, wrong

    def healthy(self) -> tuple[Conclusion, str | None]:
        """Wait until the job was judged for long enough without a page; a page is wrong."""
        verdict = self._scenario.watch(self._parts, self._paged_or_healthy, self._live)
        if verdict is None:
            raise StackError(f"the job could not be judged, because of {self.diagnosis()}")
        wrong = f"{verdict.alert} paged, but no rank was slow" if verdict.alert != "none" else None
        return verdict, wrong

    def say_pages(self) -> None:
        """Print the pages that came since the last call."""
        new = self._webhook.pages()[self._pages_said :]
        self._pages_said += len(new)
        for page in new:
            said = "PAGE" if page.status == "firing" else page.status
            print(f"\n{said} after {self._after_seconds(page):.0f} s: {page.alert}", flush=True)
            for text in said_in(page):
                print(textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  "))

    def _after_seconds(self, page: ReceivedAlert) -> float:
        return page.received - self._scenario.started

    def _named(self) -> NamedRank | None:
        self.say_pages()
        for page in self._webhook.pages(STRAGGLER, "firing", job_id=JOB_ID):
            return self._verdict(page)
        return None

    def _paged_or_healthy(self) -> Conclusion | None:
        self.say_pages()
        for page in self._webhook.pages(status="firing"):
            return self._verdict(page)
        if not self._prometheus.query(JUDGED):
            self._judged_since = None
            return None
        self._judged_since = self._judged_since or time.monotonic()
        judged_seconds = time.monotonic() - self._judged_since
        gpus_lost = self._prometheus.value(GPUS_LOST)
        if judged_seconds < HEALTHY_SECONDS or gpus_lost is None:
            return None
        elapsed = self._scenario.elapsed_seconds
        return Health(JOB_ID, gpus_lost, judged_seconds, alert="none", after_seconds=elapsed)

    def _verdict(self, page: ReceivedAlert) -> NamedRank:
        return verdict_of(page, self._prometheus.active_alerts(), self._after_seconds(page))

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
        if any(is_straggler(alert["labels"]) for alert in prometheus.active_alerts()):
            return f"Alertmanager: {STRAGGLER} fires, but was not delivered"
        said = sentence(self._live())
        return f"the rules: {STRAGGLER} is quiet, while the built-in page says: {said}"


def said_in(page: ReceivedAlert) -> list[str]:
    """Return the sentences of *page*, with what to do first if it knows."""
    texts = [page.annotations.get(name, "") for name in ("summary", "description")]
    first = page.annotations.get("first")
    return [*texts, f"First: {first}"] if first else texts


def is_straggler(labels: dict[str, str]) -> bool:
    """Return whether *labels* are those of the demo's straggler alert."""
    return labels.get("alertname") == STRAGGLER and labels.get("job_id") == JOB_ID
