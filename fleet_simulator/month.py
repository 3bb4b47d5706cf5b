"""A month of a fleet with lemons, as the rules of alerts/rules/nodes.yaml would have recorded it.

Jobs of all sizes and lengths follow each other on the nodes. Some bring a fault of their own, which
makes one of their nodes late, and each node is late now and then for no reason that is known.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rankskew.nodes.model import LateHour, NodePast, incidents
from rankskew.nodes.read import GPU_USED, LOST, USED, FleetPast
from rankskew.report.times import DAY_SECONDS, Span

HOUR: Final = 3600.0
HOURS: Final = 30 * 24
GPUS: Final = 8
# Nodes and hours of jobs, and how often: most are small and short.
SIZES: Final = {1: 30, 2: 20, 4: 20, 8: 15, 16: 10, 32: 4, 64: 1}
MOST_HOURS: Final = 96
# A job that waits for something that only it has.
FAULTY_JOBS: Final = 0.2
JOB_CAUSES: Final = ("input", "code", "uneven_batches", "unknown")
# Incidents that a healthy node has in an hour of use.
CHANCE: Final = 1 / 300

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Lemon:
    """A node that is late with *cause*, in *share* of its hours of use, in spells of so many.

    *since* is an hour, with which another driver comes if *driver* is set; *gpu* is to blame, if it
    is one.
    """

    cause: str
    share: float
    spell_hours: int
    gpu: int | None = None
    since: int = 0
    driver: str = ""


# Each is late every other day or so.
KINDS: Final = (
    Lemon("slow_device", 0.1, 4, gpu=5),  # a GPU that becomes hot
    Lemon("network", 0.04, 1),  # a link that flaps
    Lemon("cpu", 0.15, 6),  # a daemon that takes CPUs now and then
    Lemon("unknown", 0.3, 6, since=HOURS // 2, driver="560.35.03"),  # since a driver change
)


@dataclass
class Month:
    """What was recorded: by name and labels, a value at each hour; *lemons* has their nodes."""

    lemons: dict[str, Lemon]
    samples: dict[str, dict[Labels, dict[float, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    def add(self, name: str, labels: Mapping[str, str], at: float, value: float) -> None:
        """Add *value* at the hour *at*."""
        self.samples[name][tuple(sorted(labels.items()))][at] = value

    def past(self, end: float) -> FleetPast:
        """Return what a Prometheus would say of it at its *end*."""
        used: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
        jobs: dict[str, set[str]] = defaultdict(set)
        for labels, points in self.samples[USED].items():
            of = dict(labels)
            jobs[of["nodename"]].add(of["job_id"])
            for at, seconds in points.items():
                day = end - (end - at) // DAY_SECONDS * DAY_SECONDS
                used[of["nodename"]][day] += seconds / HOUR
        late: dict[str, dict[str, list[LateHour]]] = {
            key: defaultdict(list) for key in ("nodename", "gpu_uuid")
        }
        for labels, points in self.samples[LOST].items():
            of = dict(labels)
            hours = [
                LateHour(of["job_id"], at, lost, of["cause"], of["gpu_uuid"])
                for at, lost in points.items()
            ]
            for key, found in late.items():
                found[of[key]] += hours
        nodes = [
            NodePast(
                name,
                incidents=incidents(late["nodename"][name]),
                used=used[name],
                jobs=len(jobs[name]),
                drivers=self._drivers(name),
            )
            for name in sorted(used)
        ]
        gpus = [
            NodePast(
                uuid,
                incidents=incidents(late["gpu_uuid"][uuid]),
                used={end: sum(points.values()) / HOUR},
            )
            for ((_, uuid),), points in self.samples[GPU_USED].items()
        ]
        return FleetPast((end - HOURS * HOUR, end), nodes, gpus)

    def _drivers(self, name: str) -> list[tuple[str, Span]]:
        found = []
        for labels, points in self.samples["rankskew_nvml_info"].items():
            of = dict(labels)
            if of["instance"] == f"{name}:9917":
                found.append((of["driver_version"], (min(points), max(points))))
        return found

    def openmetrics(self) -> Iterator[str]:
        """Yield the lines that `promtool tsdb create-blocks-from openmetrics` reads."""
        for name, found in self.samples.items():
            yield f"# TYPE {name} gauge\n"
            for labels, points in found.items():
                said = ",".join(f'{key}="{value}"' for key, value in labels)
                for at, value in points.items():
                    yield f"{name}{{{said}}} {value:g} {at:.0f}\n"
        yield "# EOF\n"


def simulate(seed: int, begin: float, nodes: int = 256, lemons: int = 8) -> Month:
    """Return the month from the Unix time *begin* of so many *nodes*."""
    draw = random.Random(seed)
    names = [f"node{number:03}" for number in range(nodes)]
    bad = draw.sample(names, lemons)
    month = Month({name: KINDS[number % len(KINDS)] for number, name in enumerate(bad)})
    spells = {name: _spells(draw, name, month.lemons.get(name)) for name in names}
    free = dict.fromkeys(names, 0)
    number = 0
    for hour in range(HOURS):
        idle = [name for name in names if free[name] <= hour]
        draw.shuffle(idle)
        while idle:
            size = draw.choices(list(SIZES), list(SIZES.values()))[0]
            those, idle = idle[:size], idle[size:]
            length = min(HOURS - hour, round(draw.expovariate(1 / 12)) + 1, MOST_HOURS)
            # A queue is empty now and then.
            rest = draw.choice((0, 0, 1, 3))
            for name in those:
                free[name] = hour + length + rest
            number += 1
            _run(month, draw, spells, f"job{number}", those, begin, range(hour, hour + length))
    _drivers(month, names, begin)
    for name in names:
        for gpu in range(GPUS):
            card = {"gpu_uuid": f"GPU-{name}-{gpu}", "serial": f"165-{name}-{gpu}"}
            month.add("rankskew_gpu_info", card, begin + HOURS * HOUR, 1.0)
    return month


def _spells(draw: random.Random, name: str, lemon: Lemon | None) -> list[Lemon | None]:
    """Return for each hour what a node would be late with if it were used."""
    found: list[Lemon | None] = []
    while len(found) < HOURS:
        if lemon is None or len(found) < lemon.since:
            spell = Lemon("unknown", 0, 1) if draw.random() < CHANCE else None
            found.append(spell)
            continue
        late = draw.random() < lemon.share
        found += [lemon if late else None] * lemon.spell_hours
    return found[:HOURS]


def _run(
    month: Month,
    draw: random.Random,
    spells: Mapping[str, list[Lemon | None]],
    job: str,
    those: list[str],
    begin: float,
    hours: range,
) -> None:
    gpus = GPUS * len(those)
    first = begin + (hours.start + 1) * HOUR
    month.add("job:rankskew_gpu_power_watts:avg", {"job_id": job}, first, 500.0)
    month.add("job:rankskew_gpu_hour_price:value", {"job_id": job}, first, 2.0)
    month.add("rankskew:team:override", {"job_id": job, "team": f"team{gpus % 3}"}, first, 1.0)
    faulty = Lemon(draw.choice(JOB_CAUSES), 0, 1) if draw.random() < FAULTY_JOBS else None
    where = draw.choice(those)
    for hour in hours:
        at = begin + (hour + 1) * HOUR
        for name in those:
            labels = {"job_id": job, "instance": f"{name}:9917", "nodename": name}
            month.add(USED, labels, at, GPUS * HOUR)
            for gpu in range(GPUS):
                uuid = {"gpu_uuid": f"GPU-{name}-{gpu}"}
                month.add(GPU_USED, uuid, at, HOUR)
            late = spells[name][hour] or (faulty if name == where else None)
            if late is not None and gpus > 1:
                gpu = late.gpu if late.gpu is not None else int(job[3:]) % GPUS
                lost = draw.uniform(0.05, 0.3) * (gpus - 1) * HOUR
                more = {"cause": late.cause, "stage": "forward", "gpu_uuid": f"GPU-{name}-{gpu}"}
                month.add(LOST, labels | more, at, lost)


def _drivers(month: Month, names: list[str], begin: float) -> None:
    for name in names:
        lemon = month.lemons.get(name)
        for hour in range(0, HOURS, 6):
            new = lemon is not None and lemon.driver and hour >= lemon.since
            version = lemon.driver if lemon is not None and new else "550.54.15"
            labels = {"instance": f"{name}:9917", "driver_version": version}
            month.add("rankskew_nvml_info", labels, begin + (hour + 1) * HOUR, 1)
