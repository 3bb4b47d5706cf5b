"""What the nodes of a simulated fleet expose over time, as promtool takes it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import JobPlan
from tests.exporter.asgi import ask
from tests.exporter.node import Clock

SCRAPE_SECONDS: Final = 15
SERIES: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def input_series(
    plans: Sequence[JobPlan], directory: Path, scrapes: int, cluster: str, *detail: str
) -> list[dict[str, str]]:
    """Return the series of so many *scrapes* of all nodes, with *detail*, and of their targets."""
    clock = Clock(0.0)  # promtool's clock starts at 0 too.
    fleet = Fleet(plans, directory, clock, frozenset(detail))
    values: dict[str, list[str]] = {}
    for number in range(scrapes):
        for node in fleet.nodes.values():
            answer = ask(fleet_app(fleet, ""), "GET", f"/node/{node.name}/metrics")
            assert answer is not None
            target = f'instance="{node.instance}",job="rankskew",cluster="{cluster}"'
            for name, labels, value in [("up", "", "1"), *SERIES.findall(answer.text)]:
                series = f"{name}{{{','.join(filter(None, (labels, target)))}}}"
                values.setdefault(series, ["_"] * scrapes)[number] = value
        clock.seconds += SCRAPE_SECONDS
    return [{"series": series, "values": " ".join(each)} for series, each in values.items()]
