"""Pages of simulated nodes, from the exporter's own collectors and encoder, rendered once.

A page with marked values and names becomes a template; a scrape fills in what has changed.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric

from benchmarks.scale_hardware import FIRST_RANK, NODE, SimulatedHost, SimulatedNvml, pid, process
from benchmarks.scale_job import (
    BLOCK_BUSY,
    BLOCK_STEP,
    FIRST_STEPS,
    RANKS_PER_NODE,
    Job,
    Rank,
    State,
)
from benchmarks.scale_snapshot import FIRST_MARK, JOB, NO_RANK, WORLD_SIZE, Marks, snapshot, verdict
from benchmarks.scale_verdict import LATE_SECONDS, Told
from exporter.collectors.catalog import Sources, makers
from exporter.ingest.app import IngestCounts
from exporter.ranks.store import RankStore
from exporter.scrape.sampling import Scrape
from exporter.scrape.text_format import encode
from exporter.settings import Settings

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "alerts" / "rules"
FIXTURES: Final = ROOT / "tests" / "fixtures"

RANK: Final = re.compile(r'[{,]rank="(\d+)"')
MARK: Final = re.compile(r" (8\d{5})\.25$")

# Series that the exporter computes, so no mark appears: those of a rank, or of the node.
OF_A_RANK: Final = {
    "rankskew_block_busy_seconds": BLOCK_BUSY,
    "rankskew_block_step_seconds": BLOCK_STEP,
}
OF_THE_NODE: Final = {
    "rankskew_late_since_timestamp_seconds": "late_since",
    "rankskew_node_run_seconds": "run",
    "rankskew_node_last_step_age_seconds": "last_step_age",
}


def read_by_rules() -> set[str]:
    """Return every metric name of ours that a shipped rule mentions."""
    return {
        name
        for path in RULES.glob("*.yaml")
        for name in re.findall(r"(?<![\w:])rankskew_\w+", path.read_text())
    }


@dataclass(frozen=True)
class Shape:
    """What a page shows: *everything*, or of GPUs and host only what rules read.

    *late* is the position of the named late rank on its node, if it is on this one.
    """

    joined: bool
    everything: bool = False
    late: int | None = None


def families(marks: Marks, shape: Shape, high: bool) -> Iterator[Metric]:
    """Yield everything a node's exporter shows: ranks with *marks*, GPUs low or *high*."""
    host = Settings(path_procfs=str(FIXTURES / "proc"), path_sysfs=str(FIXTURES / "sys"))
    store = RankStore(clock=lambda: 1.0)
    told = verdict(shape.late, marks) if shape.joined else None
    for index in range(RANKS_PER_NODE):
        store.put(snapshot(index, marks, told))
    processes = {pid(index): process(index) for index in range(RANKS_PER_NODE)}
    sources = Sources(
        host,
        store,
        IngestCounts(),
        SimulatedNvml(high),
        processes=lambda: processes,
        host=SimulatedHost(high),
    )
    yield from Scrape(makers=makers(sources)).collect()


def exposed_name(family: Metric) -> str:
    """Return the name of *family*'s series."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _page(marks: Marks, shape: Shape, high: bool) -> list[str]:
    wanted = read_by_rules()
    chosen = [
        family
        for family in families(marks, shape, high)
        if shape.everything
        or exposed_name(family) in wanted
        or any("job_id" in sample.labels for sample in family.samples)
    ]
    return encode(chosen, openmetrics=True).decode().splitlines()


class Template:
    """A node's page with gaps for everything that changes."""

    def __init__(self, shape: Shape) -> None:
        marks, same = Marks(), Marks()
        low, high = _page(marks, shape, False), _page(same, shape, True)
        self.gaps: list[tuple[int, str]] = []
        self.moves: list[tuple[bool, float, float]] = []
        lines = [self._line(one, other, marks) for one, other in zip(low, high, strict=True)]
        if lost := set(marks.meaning) - set(self.gaps):
            names = sorted({field for _, field in lost})
            raise LookupError(f"the exporter does not show {', '.join(names)} as it is")
        self._text = "\n".join(lines) + "\n"
        self.series = sum(not line.startswith("#") for line in lines)

    def _line(self, low: str, high: str, marks: Marks) -> str:
        plain = low.replace("%", "%%")
        if where := _worked_out(low):  # First: a difference of marks can look like another mark.
            self.gaps.append(where)
        elif mark := MARK.search(low):
            self.gaps.append(marks.meaning[int(mark[1]) - FIRST_MARK])
        elif low == high or low.startswith("#"):
            return plain
        else:
            series, _, number = low.rpartition(" ")
            is_counter = series.partition("{")[0].endswith("_total")
            self.gaps.append((NO_RANK, str(len(self.moves))))
            self.moves.append((is_counter, float(number), float(high.rpartition(" ")[2])))
        return plain.rpartition(" ")[0] + " %r"

    def of(self, job: Job, first_rank: int, node: int) -> str:
        """Return the text for one node, with gaps for the numbers."""
        text = self._text.replace(JOB, job.name).replace(str(WORLD_SIZE), str(job.ranks))
        for index in range(RANKS_PER_NODE):
            text = text.replace(str(FIRST_RANK + index), str(first_rank + index))
        return text.replace(f"GPU-{NODE}", f"GPU-{node:08x}-3f6d-11ef-9454-0242ac12").replace(
            NODE, str(first_rank // RANKS_PER_NODE)
        )


def _worked_out(line: str) -> tuple[int, str] | None:
    """Return whose value *line* needs, and which, if the exporter computes it from several."""
    name = line.partition("{")[0]
    if name in OF_THE_NODE:
        return NO_RANK, OF_THE_NODE[name]
    rank = RANK.search(line)
    if name in OF_A_RANK and rank is not None:
        return int(rank[1]) - FIRST_RANK, OF_A_RANK[name]
    return None


class Node:
    """One node of a job, with the ranks from *first_rank* on."""

    def __init__(
        self, template: Template, job: Job, first_rank: int, node: int, told: Told
    ) -> None:
        self._template = template
        self._text = template.of(job, first_rank, node)
        self._job = job
        self._told = told
        self._draw = random.Random(node)
        self._ranks = [Rank(job, first_rank + index) for index in range(RANKS_PER_NODE)]

    def page(self, elapsed: float, now: float) -> str:
        """Return the page *elapsed* seconds into the run, at *now* in Unix seconds."""
        steps = int(elapsed / self._job.step_seconds)
        states = [rank.show(steps, now) for rank in self._ranks]
        states.append(self._of_no_rank(elapsed, now))  # At NO_RANK.
        return self._text % tuple(states[rank][field] for rank, field in self._template.gaps)

    def _of_no_rank(self, elapsed: float, now: float) -> State:
        gpus = {
            str(number): self._gpu_value(*move, elapsed)
            for number, move in enumerate(self._template.moves)
        }
        return {
            **gpus,
            **self._told.at(elapsed),
            "late_since": round(now - elapsed - LATE_SECONDS, 3),
            "run": FIRST_STEPS * self._job.step_seconds + elapsed,
            "last_step_age": self._draw.random() * self._job.step_seconds,
        }

    def _gpu_value(self, is_counter: bool, low: float, high: float, elapsed: float) -> float:
        """A gauge is between the two samples; a counter grows by their difference each second."""
        share = elapsed if is_counter else self._draw.random()
        return low + (high - low) * share


def fleet(jobs: Sequence[Job], joined: bool, everything: bool) -> list[Node]:
    """Return the nodes of *jobs*, one job after the other."""
    usual = Template(Shape(joined, everything))
    nodes: list[Node] = []
    for job in jobs:
        told = Told(job)
        for first in range(0, job.ranks, RANKS_PER_NODE):
            late = _position(job.straggler, first) if joined else None
            template = usual if late is None else Template(Shape(joined, everything, late))
            nodes.append(Node(template, job, first, len(nodes), told))
    return nodes


def _position(rank: int | None, first: int) -> int | None:
    """Return the position of *rank* on the node that begins with *first*, None if elsewhere."""
    return rank - first if rank is not None and 0 <= rank - first < RANKS_PER_NODE else None
