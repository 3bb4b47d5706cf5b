"""The tour of `rankskew simulate`, scraped by a real Prometheus with the shipped rules."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from devstack.parts import ROOT, PrometheusProcess, SimulationProcess
from devstack.process import get, wait_for
from exporter.live.states import HUNG
from fleet_simulator.faults import BY_NAME, Scope
from fleet_simulator.plan import tour
from tests.e2e.diagnosed import TOUR, fast_rules

# A scrape that is missed changes a state: on a busy machine a node's page takes seconds.
INTERVAL_SECONDS: Final = 6.0
PATIENCE_SECONDS: Final = 420.0
PLACES: Final = {plan.job_id: plan for plan in tour()}
LATE_RANK: Final = "6"
MISSING: Final = "job_reason:rankskew_not_judgeable:bool"
# Money is told only where somebody has set a price, and that is for one cluster.
PRICE: Final = """\
groups:
  - name: price
    rules:
      - record: rankskew:gpu_hour_price:override
        labels: {cluster: simulated}
        expr: vector(2.5)
"""


def _late(scope: Scope) -> dict[str, tuple[str, str, str]]:
    """Return stage, cause and detail that have to be found, by fault of that *scope*."""
    late = [kind.name for kind in BY_NAME.values() if kind.extra and kind.scope is scope]
    right = ((name, TOUR[name]) for name in late)
    return {name: (each.stage or "", each.what[0], each.detail or "") for name, each in right}


FOUND: Final = _late(Scope.GPU)
FOUND_ON_NODE: Final = _late(Scope.NODE)
CAUSES: Final = {name: found[1:] for name, found in (FOUND | FOUND_ON_NODE).items()}


@dataclass(frozen=True)
class Row:
    """What docs/concepts.md says of one state; `…` stands for anything."""

    state: str
    job_id: str
    dashboard: str
    page: str
    top: str
    alert: str


def documented() -> list[Row]:
    """Return the rows of the table in docs/concepts.md: a job for each state."""
    lines = (ROOT / "docs" / "concepts.md").read_text().splitlines()
    lines = lines[
        lines.index("| state | fault | job dashboard | live page | `rankskew top` | alert |") :
    ]
    rows = list(takewhile(lambda line: line.startswith("| "), lines))[2:]
    return [Row(*(cell.strip() for cell in row.strip("|").split(" | "))) for row in rows]


@dataclass(frozen=True)
class Tour:
    """The simulated fleet, and the Prometheus that scrapes it."""

    simulation: SimulationProcess
    prometheus: PrometheusProcess

    def url(self, node: int) -> str:
        """Return where the exporter of that node of the fleet is."""
        return f"{self.simulation.url}/node/sim-{node:02}"

    def live(self, job_id: str) -> dict[str, Any]:
        """Return what the page of a node says of its job: of the node with the fault, if it can."""
        plan = PLACES[job_id]
        is_silent = job_id in ("missing", "down")
        node = plan.first_node if is_silent else plan.first_node + plan.nodes - 1
        (job,) = json.loads(get(f"{self.url(node)}/api/v1/live"))["jobs"]
        verdict: dict[str, Any] = job["verdict"]
        return verdict

    def states(self) -> dict[str, str]:
        """Return the state that the rules record, by job."""
        found = self.prometheus.query("job:rankskew_state:info")
        return {series.labels["job_id"]: series.labels["state"] for series in found}

    def causes(self) -> dict[str, tuple[str, str]]:
        """Return cause and detail that the exporter tells of the late rank, by job."""
        found = self.prometheus.query(f'rankskew_late_cause_info{{rank="{LATE_RANK}"}}')
        return {
            series.labels["job_id"]: (series.labels["cause"], series.labels.get("detail", ""))
            for series in found
        }

    def is_settled(self, expected: Mapping[str, str]) -> bool:
        """Say whether the jobs have the *expected* states, and the late ranks their causes."""
        right = expected.items() <= self.states().items()
        # The last to be known: ranks whose exporter is down are missing from the judged ones.
        missing = bool(self.prometheus.query(f"{MISSING}{{job_id='down'}}"))
        return right and missing and CAUSES.items() <= self.causes().items()


@contextmanager
def settled_tour(directory: Path) -> Iterator[Tour]:
    """Run the tour, with all series that a dashboard shows; yields it once it has settled.

    That is once every job has its state, and every late rank its cause.
    """
    # A rank of it dies after a minute: before it hangs, its state changes from scrape to scrape.
    expected = {row.job_id: row.state for row in documented()} | {"oom": HUNG}
    rules = fast_rules(directory / "rules")
    (rules / "price.yaml").write_text(PRICE)
    with (
        SimulationProcess(directory / "simulation", ["--series.detail", "all"]) as simulation,
        PrometheusProcess(
            directory,
            discovery=simulation.discovery,
            rules=rules,
            interval_seconds=INTERVAL_SECONDS,
            scrapes_itself=True,
        ) as prometheus,
    ):
        found = Tour(simulation, prometheus)
        settled = wait_for(
            lambda: True if found.is_settled(expected) else None, PATIENCE_SECONDS, 2.0
        )
        states, causes = found.states(), found.causes()
        assert settled, (
            {job: states.get(job) for job in expected if states.get(job) != expected[job]},
            {job: causes.get(job) for job in CAUSES if causes.get(job) != CAUSES[job]},
        )
        # What a group of rules makes of another one's records is an evaluation later.
        time.sleep(INTERVAL_SECONDS)
        yield found
