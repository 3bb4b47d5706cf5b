"""The whole stack on loopback ports, with the shipped rules, for the end-to-end tests."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devstack.parts import RULES, AlertmanagerProcess, ExporterProcess, PrometheusProcess
from devstack.process import get, wait_for
from devstack.webhook import Webhook

# Between scrapes and between evaluations: a page is late by no more than that.
INTERVAL_SECONDS = 2.0

# Jobs that hang on purpose need not wait two minutes to count as hung.
# As in production, a job with a silent rank counts as hung at once, and one without much later:
# silence is known after ten seconds, a scrape and an evaluation of three groups.
HANGING, SHRUNK = "hanging", "shrunk"
OVERRIDES = {
    (name, job_id): seconds
    for job_id in (HANGING, SHRUNK)
    for name, seconds in (("hang_seconds", 24.0), ("silent_seconds", 14.0))
}


@dataclass(frozen=True)
class Stack:
    """An exporter, scraped by a Prometheus, that pages a webhook through an Alertmanager."""

    directory: Path
    exporter: ExporterProcess
    prometheus: PrometheusProcess
    webhook: Webhook

    def wait_for_series(self, expression: str, count: int, seconds: float) -> None:
        """Wait until *expression* gives at least *count* series."""
        found = wait_for(
            lambda: True if len(self.prometheus.query(expression)) >= count else None, seconds, 0.5
        )
        assert found, f"{expression} never gave {count} series: {self.prometheus.query(expression)}"

    def wait_for_evaluations(self, count: int) -> None:
        """Wait until the rules that decide whom to page were evaluated *count* times more."""
        wanted = self._evaluations() + count
        assert wait_for(lambda: self._evaluations() >= wanted or None, 120, 0.5), wanted

    def _evaluations(self) -> float:
        page = get(f"{self.prometheus.url}/metrics").decode()
        made = r"^prometheus_rule_group_iterations_total\{.*/late\.yaml;.* (\S+)$"
        [count] = re.findall(made, page, re.MULTILINE)
        return float(count)

    def live_verdict(self, job_id: str) -> dict[str, Any]:
        """Return what the built-in page says of *job_id*, which it must know."""
        job = self.exporter.live_job(job_id)
        assert job is not None, f"the built-in page does not know {job_id}"
        verdict: dict[str, Any] = job["verdict"]
        return verdict


def fast_rules(directory: Path, rules: Path = RULES) -> Path:
    """Write *rules*, those shipped by default, all evaluated as often as they can be."""
    directory.mkdir()
    for path in rules.glob("*.yaml"):
        text = re.sub(r"^    interval: .*\n", "", path.read_text(), flags=re.MULTILINE)
        (directory / path.name).write_text(text)
    return directory


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack, up for all tests of a file; each has jobs of its own."""
    directory = tmp_path_factory.mktemp("stack")
    with ExitStack() as parts:
        webhook = parts.enter_context(Webhook())
        alertmanager = parts.enter_context(AlertmanagerProcess(directory, webhook.url))
        exporter = parts.enter_context(ExporterProcess(directory))
        prometheus = parts.enter_context(
            PrometheusProcess(
                directory,
                [exporter.address],
                alertmanager.address,
                interval_seconds=INTERVAL_SECONDS,
                overrides=OVERRIDES,
            )
        )
        yield Stack(directory, exporter, prometheus, webhook)
