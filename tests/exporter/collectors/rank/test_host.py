"""What a rank costs its host is exposed, and no reading is no series."""

from pathlib import Path

import pytest

from exporter.collectors.rank.host import RankHostCollector
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes import rank_cost
from exporter.processes.host_watch import HostWatch
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import write
from tests.exporter.fake_proc import FakeProc, process, torchrun
from tests.exporter.nvml.fixed import NO_DRIVER, node

WHO = 'job_id="llama",peer_group="all",rank="0"'


class Host:
    """A node on whose GPU rank 0 runs as process 10, with a worker."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeProc(folder / "proc")
        self.sysfs = folder / "sys"
        self.watch = HostWatch(self.fake.path, self.sysfs)
        rank = process(10, torchrun(0), start_ticks=1000)
        gpu = GpuSample(0, up=True, uuid="GPU-0", processes=(GpuProcess(10),))
        self.join = RankJoin(node(gpu), lambda: {10: rank}, RankStore())
        self.collector = RankHostCollector(self.join, RankStore(), self.watch)

    def look(self) -> None:
        """Let a scrape name the ranks, and look at them."""
        expose(self.collector)
        self.watch.look()

    def series(self) -> list[str]:
        return [line.removeprefix("rankskew_rank_") for line in shown(self.collector)]

    def complete(self) -> None:
        """Show all that there is of rank 0 and its worker."""
        self.fake.use(10, cpu=150, faults=3, read=4096, run_queue=10**9)
        self.fake.use(11, parent=10, cpu=900, read=4096, run_queue=3 * 10**9)
        write(self.fake.path / "10" / "cgroup", "0::/pod\n")
        cgroup = self.sysfs / "fs" / "cgroup" / "pod"
        write(cgroup / "cpu.max", "100000 100000\n")
        write(cgroup / "cpu.stat", "nr_periods 100\nnr_throttled 25\nthrottled_usec 2500000\n")
        for number, resource in enumerate(("cpu", "io", "memory"), 1):
            write(cgroup / f"{resource}.pressure", f"some avg10=0.00 total={number}000000\n")
        self.look()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def split(name: str, main: float, workers: float) -> list[str]:
    labels = 'job_id="llama",peer_group="all",process="{}",rank="0"'
    values = {"main": main, "workers": workers}
    return [f"{name}{{{labels.format(of)}}} {value}" for of, value in values.items()]


def test_node_without_ranks_has_no_series(tmp_path: Path) -> None:
    """Nothing runs, nothing was looked at, and that is not a failure."""
    store, watch = RankStore(), HostWatch(tmp_path, tmp_path)
    collector = RankHostCollector(RankJoin(NO_DRIVER, dict, store), store, watch)
    expose(collector)
    watch.look()

    assert shown(collector) == []


def test_rank_whose_process_cannot_be_read_has_no_series(host: Host) -> None:
    """An exporter in another process namespace shows no zeros."""
    host.look()

    assert host.series() == ["processes_left_out 0.0"]


def test_readings_that_the_node_refuses_have_no_series(host: Host) -> None:
    """No rights for io, no schedstat, no cgroups: what there is stays."""
    host.fake.use(10, cpu=150, faults=3)
    host.look()

    assert host.series() == [
        *split("cpu_seconds_total", 1.5, 0.0),
        f"major_faults_total{{{WHO}}} 3.0",
        f"workers{{{WHO}}} 0.0",
        "processes_left_out 0.0",
    ]


def test_all_that_is_read_is_exposed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """In base units; CPU and run queue of the workers apart, everything else as a sum."""
    monkeypatch.setattr(rank_cost, "SATURATED_SECONDS", 0.0)
    host.complete()
    host.look()

    assert host.series() == [
        *split("cpu_seconds_total", 1.5, 9.0),
        *split("run_queue_seconds_total", 1.0, 3.0),
        f"major_faults_total{{{WHO}}} 3.0",
        f"read_bytes_total{{{WHO}}} 8192.0",
        f"workers{{{WHO}}} 1.0",
        f"cgroup_throttled_periods_total{{{WHO}}} 25.0",
        f'cgroup_pressure_seconds_total{{{WHO},resource="cpu"}} 1.0',
        f'cgroup_pressure_seconds_total{{{WHO},resource="io"}} 2.0',
        f'cgroup_pressure_seconds_total{{{WHO},resource="memory"}} 3.0',
        "processes_left_out 0.0",
    ]


def test_rank_that_has_ended_since_the_look_has_no_series(host: Host) -> None:
    """Its last numbers are not shown until the next look."""
    host.complete()
    host.join.processes = dict

    assert host.series() == ["processes_left_out 0.0"]


def test_scrape_reads_no_file(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape tells the watch who is there, and shows what that found."""
    host.complete()
    page = expose(host.collector)
    for call in ("os.open", "os.listdir", "pathlib.Path.open"):
        monkeypatch.setattr(call, None)

    assert expose(host.collector) == page
