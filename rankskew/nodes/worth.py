"""What late nodes cost in GPU-hours, US$ and kWh: of a node, by cause, job and team, a week."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from rankskew.nodes.model import JobRate, NodeIncident, NodePast
from rankskew.nodes.read import FleetPast
from rankskew.report.document import ENERGY, MONEY, Section
from rankskew.report.times import DAY_SECONDS, HOUR_SECONDS, gpu_hours, money

NOBODY: Final = "no team"


@dataclass(frozen=True, slots=True)
class Worth:
    """GPU-hours that were lost, and what they cost; None for what no job has a rate of."""

    gpu_hours: float = 0.0
    dollars: float | None = None
    kilowatt_hours: float | None = None

    def cells(self) -> tuple[str, str]:
        """Return US$ and kWh for a table."""
        return money(self.dollars), gpu_hours(self.kilowatt_hours)

    def json(self) -> dict[str, float | None]:
        """Return it for a program."""
        return {
            "gpu_hours": self.gpu_hours,
            "dollars": self.dollars,
            "kilowatt_hours": self.kilowatt_hours,
        }


# A cause, and the GPU-hours that a job lost to it.
Part = tuple[JobRate, NodeIncident, str, float]


def worth(fleet: FleetPast, past: NodePast) -> Worth:
    """Return what one node of *fleet*, or one GPU, cost."""
    return _sum((rate, hours) for rate, _, _, hours in _parts(fleet, [past]))


def a_week(fleet: FleetPast) -> dict[str, dict[str, Worth]]:
    """Return what a week cost by cause, by job and by team, the largest first."""
    weeks = max((fleet.span[1] - fleet.span[0]) / (7 * DAY_SECONDS), 1e-9)
    parts = list(_parts(fleet, fleet.nodes))
    keys: dict[str, Callable[[Part], str]] = {
        "cause": lambda part: part[2],
        "job": lambda part: part[1].job,
        "team": lambda part: part[0].team or NOBODY,
    }
    found = {}
    for what, key in keys.items():
        groups = defaultdict(list)
        for part in parts:
            groups[key(part)].append((part[0], part[3] / weeks))
        sums = {name: _sum(those) for name, those in groups.items()}
        found[what] = dict(sorted(sums.items(), key=lambda each: -each[1].gpu_hours))
    if list(found["team"]) == [NOBODY]:
        del found["team"]
    return found


def sections(fleet: FleetPast, most: int) -> list[Section]:
    """Return a table for each way to divide what a week cost, with the *most* expensive rows."""
    found = []
    for what, sums in a_week(fleet).items():
        rows = [
            (name, gpu_hours(each.gpu_hours), *each.cells())
            for name, each in list(sums.items())[:most]
        ]
        names = (what.capitalize(), ">GPU-hours", MONEY, ENERGY)
        found.append(Section(f"A week, by {what}", (), names, rows))
    return found


def weekly_json(fleet: FleetPast) -> dict[str, Any]:
    """Return a_week for a program."""
    return {
        f"by_{what}": {name: each.json() for name, each in sums.items()}
        for what, sums in a_week(fleet).items()
    }


def _parts(fleet: FleetPast, pasts: Iterable[NodePast]) -> Iterable[Part]:
    for past in pasts:
        for incident in past.incidents:
            rate = fleet.rates.get((past.cluster, incident.job), JobRate())
            for cause, seconds in incident.causes.items():
                yield rate, incident, cause, seconds / HOUR_SECONDS


def _sum(those: Iterable[tuple[JobRate, float]]) -> Worth:
    found = list(those)
    dollars = [hours * rate.dollars for rate, hours in found if rate.dollars is not None]
    energy = [hours * rate.kilowatts for rate, hours in found if rate.kilowatts is not None]
    return Worth(
        sum(hours for _, hours in found),
        sum(dollars) if dollars else None,
        sum(energy) if energy else None,
    )
