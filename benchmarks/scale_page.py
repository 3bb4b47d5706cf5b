"""Pages of simulated nodes, from the exporter's own collectors and encoder, rendered once.

A page of a node with marked values and names becomes a template; a scrape fills in what has moved.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from prometheus_client.metrics_core import Metric

from benchmarks.scale_job import RANKS_PER_NODE, Job, Rank, join_fields
from benchmarks.scale_job import fields as moving_fields
from exporter.cgroups import Cgroup
from exporter.collectors import Sources, makers
from exporter.nvml.sample import GpuProcess, GpuSample, NodeSample
from exporter.nvml.throttle import REASON_BITS
from exporter.proc import Process
from exporter.ranks import RankStore
from exporter.scrape import Scrape
from exporter.settings import Settings
from exporter.text_format import encode
from rank_probe.snapshot import Snapshot

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "alerts" / "rules"
FIXTURES: Final = ROOT / "tests" / "fixtures"

# Marks: a value that no reading has, and names that are exchanged for each node's own.
FIRST_MARK: Final = 800_000
MARK: Final = re.compile(r" (8\d{5})\.25$")
FIRST_RANK: Final = 700_000
JOB, NODE, WORLD_SIZE = "@job@", "@node@", 999_983


class SimulatedNvml:
    """Eight GPUs; a *high* sample shows more than a low one in all that moves."""

    worker_up = True
    worker_restarts = 0
    stuck_call = None
    released = False

    def __init__(self, high: bool) -> None:
        self._high = high

    def latest(self) -> NodeSample:
        """Return the sample."""
        gpus = tuple(_gpu(index, self._high) for index in range(RANKS_PER_NODE))
        return NodeSample(1.0, RANKS_PER_NODE, "580.95", "13.580", gpus)


def _gpu(index: int, high: bool) -> GpuSample:
    more = int(high)
    others = [str(other) for other in range(RANKS_PER_NODE) if other != index]
    return GpuSample(
        index=index,
        up=True,
        uuid=f"GPU-{NODE}-{index}",
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index + 16:02X}:00.0",
        gpu_busy_percent=97.0 + 2 * more,
        gpu_busy_min_percent=91.0 + 3 * more,
        memory_busy_percent=44.0 + 4 * more,
        memory_total_bytes=85_520_809_984,
        memory_used_bytes=70_000_000_000 + 10_000_000 * more,
        pcie_transmit_bytes_per_second=1.1e9 + 2e8 * more,
        pcie_receive_bytes_per_second=2.1e9 + 3e8 * more,
        pcie_link_generation=5,
        pcie_link_generation_max=5,
        pcie_link_width=16,
        pcie_link_width_max=16,
        pcie_replays=3,
        sm_clock_megahertz=1_950 + 30 * more,
        sm_clock_max_megahertz=1_980,
        memory_clock_megahertz=2_619,
        memory_clock_max_megahertz=2_619,
        throttle_reasons=0,
        throttle_seconds=dict.fromkeys(REASON_BITS, 0.0) | {"sw_power_cap": 3.0 + 0.05 * more},
        power_milliwatts=640_000 + 20_000 * more,
        power_limit_milliwatts=700_000,
        energy_millijoules=10_000_000_000 + 650_000 * more,
        gpu_temperature_celsius=58 + 3 * more,
        memory_temperature_celsius=71 + 3 * more,
        temperature_margin_celsius=26 + 3 * more,
        ecc_corrected_errors=1,
        ecc_uncorrected_errors=0,
        remapped_rows_corrected=1,
        remapped_rows_uncorrected=0,
        row_remap_pending=0,
        row_remap_failed=0,
        recovery_action=0,
        minor_number=index,
        numa_node=index // 4,
        cpu_affinity=_cpus(index),
        topology=dict.fromkeys(others, "system"),
        processes=(GpuProcess(_pid(index), 70_000_000_000),),
        xid_events=0,
        xid_errors={},
        xid_source="kmsg",
        pcie_source="gpm",
        sm_active_percent=81.0 + 4 * more,
        sm_occupancy_percent=33.0 + 3 * more,
        tensor_active_percent=48.0 + 4 * more,
        dram_active_percent=39.0 + 4 * more,
        nvlink_links=18,
        nvlink_links_up=18,
        nvlink_speed_min_megabytes_per_second=26_562,
        nvlink_transmit_bytes=10**13 + 10**11 * more,
        nvlink_receive_bytes=10**13 + 10**11 * more,
        nvlink_errors={"crc": 0, "replay": 0, "recovery": 0},
    )


def _pid(index: int) -> int:
    return 4_000 + index


def _cpus(index: int) -> tuple[int, ...]:
    first = 48 * (index // 4)
    return tuple(range(first, first + 48))


def _process(index: int) -> Process:
    """The process of a rank that Slurm started."""
    environment = {
        "RANK": str(FIRST_RANK + index),
        "LOCAL_RANK": str(index),
        "SLURM_JOB_PARTITION": "train",
        "SLURM_JOB_USER": "someone",
    }
    return Process(
        pid=_pid(index),
        start_ticks=1,
        name="python",
        uid=1000,
        namespace_pid=_pid(index),
        cpus=frozenset(_cpus(index)),
        environment=environment,
        cgroup=Cgroup(slurm_job_id="4242", slurm_step_id="0"),
    )


class Marks:
    """Gives out numbers that can be found again on the page."""

    def __init__(self) -> None:
        self.meaning: list[tuple[int, str]] = []

    def __call__(self, rank: int, field: str) -> Any:
        self.meaning.append((rank, field))
        return FIRST_MARK + len(self.meaning) - 1 + 0.25

    def all_of(self, rank: int, names: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of Snapshot that *names* stand for."""
        found: dict[str, Any] = {}
        for name in names:
            field, _, key = name.partition(".")
            if key:
                found.setdefault(field, {})[key] = self(rank, name)
            else:
                found[field] = self(rank, name)
        return found


def _snapshot(index: int, marks: Marks, joined: bool) -> Snapshot:
    names = [name for name in moving_fields() if joined or name not in join_fields()]
    plain = Snapshot(
        job_id=JOB,
        peer_group="all",
        rank=FIRST_RANK + index,
        world_size=WORLD_SIZE,
        attempt=0,
        pid=_pid(index),
        started_timestamp_seconds=1.7e9,
        sequence=1,
        heartbeat_timestamp_seconds=0.0,
        steps=0,
        stage_seconds={},
        busy_seconds=0.0,
        busy_seconds_squared=0.0,
        stage="backward",
        stage_elapsed_seconds=0.0,
        rank_info={
            "local_rank": str(index),
            "node_rank": NODE,
            "gpu_uuid": f"GPU-{NODE}-{index}",
            "dp": str(FIRST_RANK + index),
            "tp": "0",
            "pp": "0",
            "clock": "device",
            "source": "torchrun",
        },
        runtime_info={
            "torch": "2.13.0",
            "cuda": "13.0",
            "nccl": "2.28.3",
            "python": "3.11.7",
            "backend": "nccl",
            "probe": "0.1.0",
            "driver": "580.95",
            "env_hash": "5f1d7a84",
            "device_count": "8",
        },
        cuda_memory_reserved_bytes=70_123_456_789,
        cuda_memory_peak_bytes=69_234_567_890,
        cuda_alloc_retries=0,
        lifecycle_seconds={"init": 21.4, "rendezvous": 8.2, "first_step": 64.1, "compile": 48.7},
    )
    always = {"join_coverage": 1.0} if joined else {}
    known = {field.name for field in fields(Snapshot)}
    values = marks.all_of(index, names) | always
    if unknown := sorted(values.keys() - known):
        raise LookupError(f"a snapshot has no {', '.join(unknown)}")
    return replace(plain, **values)


def read_by_rules() -> set[str]:
    """Return every name of ours that a shipped rule mentions."""
    return {
        name
        for path in RULES.glob("*.yaml")
        for name in re.findall(r"(?<![\w:])rankskew_\w+", path.read_text())
    }


def families(marks: Marks, joined: bool, high: bool) -> Iterator[Metric]:
    """Yield all that the exporter of a node shows: ranks with *marks*, GPUs low or *high*."""
    host = Settings(path_procfs=str(FIXTURES / "proc"), path_sysfs=str(FIXTURES / "sys"))
    store = RankStore(clock=lambda: 1.0)
    for index in range(RANKS_PER_NODE):
        store.put(_snapshot(index, marks, joined))
    processes = {_pid(index): _process(index) for index in range(RANKS_PER_NODE)}
    sources = Sources(
        host, store, {"accepted": 1}, SimulatedNvml(high), processes=lambda: processes
    )
    yield from Scrape(makers=makers(sources)).collect()


def exposed_name(family: Metric) -> str:
    """Return the name of *family*'s series."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _page(marks: Marks, joined: bool, high: bool, everything: bool) -> list[str]:
    wanted = read_by_rules()
    chosen = [
        family
        for family in families(marks, joined, high)
        if everything
        or exposed_name(family) in wanted
        or any("job_id" in sample.labels for sample in family.samples)
    ]
    return encode(chosen, openmetrics=True).decode().splitlines()


class Template:
    """A node's page with gaps: *everything* it shows, or else of GPUs and host what rules read."""

    def __init__(self, joined: bool, everything: bool) -> None:
        marks, same = Marks(), Marks()
        low = _page(marks, joined, False, everything)
        high = _page(same, joined, True, everything)
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
        if mark := MARK.search(low):
            self.gaps.append(marks.meaning[int(mark[1]) - FIRST_MARK])
            return plain[: -len(mark[0])] + " %r"
        if low == high or low.startswith("#"):
            return plain
        series, _, number = low.rpartition(" ")
        is_counter = series.partition("{")[0].endswith("_total")
        self.gaps.append((-1, str(len(self.moves))))
        self.moves.append((is_counter, float(number), float(high.rpartition(" ")[2])))
        return plain[: len(series.replace("%", "%%"))] + " %r"

    def of(self, job: Job, first_rank: int, node: int) -> str:
        """Return the text for one node, the numbers still missing."""
        text = self._text.replace(JOB, job.name).replace(str(WORLD_SIZE), str(job.ranks))
        for index in range(RANKS_PER_NODE):
            text = text.replace(str(FIRST_RANK + index), str(first_rank + index))
        return text.replace(f"GPU-{NODE}", f"GPU-{node:08x}-3f6d-11ef-9454-0242ac12").replace(
            NODE, str(first_rank // RANKS_PER_NODE)
        )


class Node:
    """One node of a job, with the ranks from *first_rank* on."""

    def __init__(self, template: Template, job: Job, first_rank: int, node: int) -> None:
        self._template = template
        self._text = template.of(job, first_rank, node)
        self._job = job
        self._draw = random.Random(node)
        self._ranks = [Rank(job, first_rank + index) for index in range(RANKS_PER_NODE)]

    def page(self, elapsed: float, now: float) -> str:
        """Return the page *elapsed* seconds into the run, at *now* in Unix seconds."""
        steps = int(elapsed / self._job.step_seconds)
        states = [rank.show(steps, now) for rank in self._ranks]
        gpus = {str(number): self._gpu_value(*move, elapsed) for number, move in self._moves}
        states.append(gpus)
        # Index -1 is what is no rank's.
        return self._text % tuple(states[rank][field] for rank, field in self._template.gaps)

    @property
    def _moves(self) -> Iterator[tuple[int, tuple[bool, float, float]]]:
        return enumerate(self._template.moves)

    def _gpu_value(self, is_counter: bool, low: float, high: float, elapsed: float) -> float:
        """A gauge is between the two samples, a counter grows by their difference each second."""
        share = elapsed if is_counter else self._draw.random()
        return low + (high - low) * share


def fleet(jobs: Sequence[Job], joined: bool, everything: bool) -> list[Node]:
    """Return the nodes of *jobs*, one job after the other."""
    template = Template(joined, everything)
    nodes: list[Node] = []
    for job in jobs:
        for first in range(0, job.ranks, RANKS_PER_NODE):
            nodes.append(Node(template, job, first, len(nodes)))
    return nodes
