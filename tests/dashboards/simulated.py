"""What simulated jobs expose over some minutes, as input for promtool."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from exporter.scrape.levels import ALL
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import tour
from tests.exporter.asgi import ask
from tests.exporter.clock import Clock

SCRAPE_SECONDS: Final = 15
MINUTES: Final = 8


def input_series(job_ids: Sequence[str], **labels: str) -> list[dict[str, str]]:
    """Return all that the nodes of jobs of the tour expose over MINUTES, with further *labels*."""
    clock = Clock(0.0)  # As that of promtool.
    plans = [plan for plan in tour() if plan.job_id in job_ids]
    samples = MINUTES * 60 // SCRAPE_SECONDS + 1
    values: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(plans, Path(directory), clock, frozenset({ALL}))
        app = fleet_app(fleet, "")
        for index in range(samples):
            for node in fleet.nodes.values():
                answer = ask(app, "GET", f"/node/{node.name}/metrics")
                assert answer is not None
                target = {"instance": node.instance, "job": "rankskew"} | labels
                text = answer.text if answer.status == 200 else ""
                found = {"up" + _labels(target): str(int(answer.status == 200))}
                for series, value in (found | _scraped(text, target)).items():
                    values.setdefault(series, ["_"] * samples)[index] = value
            clock.seconds += SCRAPE_SECONDS
    return [{"series": series, "values": " ".join(v)} for series, v in values.items()]


def _scraped(text: str, target: dict[str, str]) -> dict[str, str]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name + _labels(sample.labels | target)] = str(sample.value)
    return found


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
