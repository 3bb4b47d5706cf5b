"""What is exposed of a node: the page of one whole, and what each oddity of its files changes.

The list of collectors is complete, within a node's budget, and has the exporter's own.
"""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import generate_latest
from prometheus_client.samples import Sample

from exporter.collectors.catalog import COLLECTORS, Sources, collectors
from exporter.collectors.exporter_self import ExporterSelfCollector
from exporter.collectors.node.busiest import Busiest
from exporter.collectors.node.files import Mounts
from exporter.errors import Failures
from exporter.ingest.app import IngestCounts
from exporter.nvml.sample import NvmlSource
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import ScrapedFamilies
from exporter.scrape.levels import exposed_name
from exporter.settings import Settings
from exporter.web.reload import WatchedConfig
from generators.metrics import families_by_collector
from rank_probe.version import __version__
from tests.exporter.collectors.host import (
    FIXTURES,
    HOST,
    REFUSED,
    Files,
    change,
    copy_of_host,
    disk,
    expose,
    mounted,
    series,
    settings_of,
)
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.node import NO_DRIVER, NO_SAMPLE, node
from tests.exporter.running import promtool_check_metrics

GOLDEN: Final = FIXTURES / "exporter" / "node.txt"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """A node that a test may change."""
    return mounted(copy_of_host(tmp_path / "host"), monkeypatch)


class Pages:
    """The collectors of an exporter on *host*: each page is a scrape of all that read the node."""

    def __init__(self, host: Mounts, **flags: Any) -> None:
        sources = Sources(settings_of(host, **flags), RankStore(), IngestCounts(), NO_SAMPLE)
        self._collectors = [each for each in collectors(sources) if each.name.startswith("node_")]

    def __call__(self) -> str:
        return expose(*self._collectors)

    def of(self, name: str) -> str:
        """Return the series of such names, each as its labels and its value."""
        page = self()
        assert not re.search(r"rankskew_collector_success\{.*\} 0", page)
        found = [line for line in series(page) if line.startswith(f"rankskew_{name}")]
        return ", ".join(" ".join([*re.findall('"(.*?)"', f), f.split()[-1]]) for f in found)


def test_page_of_a_node_is_the_golden_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets, disks, mounts, Ethernet, InfiniBand and RoCE, all of it in base units.

    RANKSKEW_WRITE_FIXTURES=1 writes the page instead.
    """
    page = "".join(f"{line}\n" for line in series(Pages(mounted(HOST, monkeypatch))()))
    if os.environ.get("RANKSKEW_WRITE_FIXTURES") == "1":
        GOLDEN.write_text(page)

    assert page == GOLDEN.read_text()


def test_node_without_proc_fails_visibly(tmp_path: Path) -> None:
    """A wrong --path.procfs is a failure that can be alerted on, not a node without CPUs."""
    page = Pages(Mounts(tmp_path, tmp_path))()

    for name in ("node_cpu", "node_network"):
        assert f'rankskew_collector_success{{collector="{name}"}} 0.0' in page


def test_what_a_node_lacks_is_absent_and_no_failure(host: Mounts) -> None:
    """A virtual machine has no clocks, NUMA nodes and ports; pressure may not be built.

    Before Linux 4.13 kills are not counted; 0 would mean that there was none.
    """
    lacks = ("sys/devices/system/cpu", NUMA, PSI, PORTS, "proc/diskstats", "proc/net/snmp")
    old: Files = {"proc/vmstat": "pgoom_kill 5\n", "proc/1/mountstats": "device a mounted on /\n"}
    change(host, dict.fromkeys(lacks) | old | {f"proc/fs/{LLITE}": None})
    pages = Pages(host)

    for start in ("node_cpu_clock", "node_numa", "node_pressure", "node_disk", "node_tcp"):
        assert pages.of(start) == ""
    assert pages.of("infiniband") == pages.of("node_oom") == pages.of("node_mount") == ""
    # Without NUMA all is node 0.
    assert Pages(host).of(CPU % ("idle", 0)) == "idle 0 800.0"


def test_devices_that_a_flag_names_are_left_out(host: Mounts) -> None:
    """It takes whole names: nvme1 is no disk."""
    excluded = {
        "node_disk_device_exclude": r"sda|sr.*|nvme1",
        "node_network_device_exclude": "ens1.*",
    }
    page = Pages(host, **excluded)

    assert page.of("node_disk_read_bytes") == "2.048e+06"
    assert page.of("node_network_receive_bytes") == "ibp24s0 40960.0, lo 9000.0, vethd1f0a2b3 700.0"


def ticks(cpu: int, user: int, idle: int) -> str:
    """Return the line of a CPU in /proc/stat."""
    return f"cpu{cpu} {user} 0 0 {idle} 0 0 0 0 0 0\n"


def stat(*cpus: str) -> Files:
    return {"proc/stat": "".join(["cpu  1 1 1 1 1 1 1 1 1 1\n", *cpus, "intr 1\n"])}


def busy(*each: int, idle: int = 0) -> Files:
    """Let each CPU have been busy for so many of 1,000 ticks, and *idle* more."""
    return stat(*(ticks(cpu, user, 1000 - user + idle) for cpu, user in enumerate(each)))


def carry(*devices: str, errors: tuple[int, int] = (0, 0), of: str = "net") -> Files:
    """Give the node these network devices only."""
    counts = "{}: 10 1 {} 0 0 0 0 0 20 1 {} 0 0 0 0 0\n"
    each = (counts.format(device, *errors) for device in devices)
    return {f"proc/{of}/dev": "".join(["Inter-| Receive\n face |bytes\n", *each])}


def speeds(**megabits: str) -> Files:
    return {f"sys/class/net/{device}/speed": text for device, text in megabits.items()}


LLITE = "lustre/llite/scratch-ffff8f0c1e2d3000/stats"
DISKSTATS, NFS, LUSTRE = (
    (HOST.procfs / file).read_text() for file in ("diskstats", "1/mountstats", f"fs/{LLITE}")
)


def disks(*lines: str) -> Files:
    """Let *lines* be in /proc/diskstats too; a later one of a disk counts."""
    names = ("sdb", "nvme5n1", "nvme5c1n1", "nvme5c2n1")
    physical: Files = {f"sys/block/{name}/device/model": "Disk" for name in names}
    return physical | {"proc/diskstats": DISKSTATS + "".join(lines)}


def paths(sectors: int) -> Files:
    """Let a disk count *sectors*, and the two paths to it 2,000 and 3,000."""
    each = [disk(f"nvme5c{n}n1", 1000 * n + 1000, 50, 700, 500) for n in (1, 2)]
    return disks(disk("nvme5n1", sectors), *each)


def served(nfs: str | None, lustre: str | None) -> Files:
    return {"proc/1/mountstats": nfs, f"proc/fs/{LLITE}": lustre}


CPU = 'node_cpu_seconds_total{mode="%s",numa_node="%d"'
NUMA, PSI, PORTS = "sys/devices/system/node", "proc/pressure", "sys/class/infiniband"
PORT = f"{PORTS}/mlx5_0/ports/1"
COUNTERS = f"{PORT}/counters"
PORT_WORDS: Files = {
    f"{COUNTERS}/port_rcv_data": "4294967295\n",
    f"{PORT}/counters_ext/port_rcv_data_64": "5000000000\n",
}
ONCE: Files = {f"{COUNTERS}/symbol_error": REFUSED, f"{COUNTERS}/link_downed": "2\n"}
RDMA = ("mlx5_0", "mlx5_1", "mlx5_2", "irdma0")
RATE = 'infiniband_rate_bytes_per_second{device="mlx5_%d"'
ERRORS = 'infiniband_errors_total{device="mlx5_%d"'
VIRTUAL = ["lo", "veth12ab", "docker0", "br-90ab", "cali1234", "flannel.1", "tap0", "ifb0"]
VIRTUAL += [
    "lxc1f2e3d",
    "cilium_host",
    "eni0123456789a",
    "vxlan.calico",
    "tunl0",
    "azv12",
    "0123456789abcde",
]
REAL = ["bond0", "ens1f0", "enp3s0", "eth0", "eth0:1", "ib0", "rocep1"]
RECEIVED = "node_network_receive_bytes_total"
OF_PATHS = "4.6336e+06, 3.07712e+06, nvme5n1 1.0, nvme5n1 100.0, nvme5n1 1.4"
BEFORE_5_3 = "device " + NFS.rpartition("device ")[2]
SLOWER = served(NFS, LUSTRE.replace("1600000 ", "3600000 "))
DATA, SCRATCH = "10.0.0.5:/data nfs 1500.0", "scratch lustre 500.0"


def without(*files: str) -> Files:
    return dict.fromkeys(files)


# Names of series, what changes at the node before the first look, and what the series say then.
ODDITIES: Final[list[tuple[str, Files, str]]] = [
    # An idle CPU has a low clock, and nobody waits for it.
    ("node_cpu_clock", busy(10, 500, 199, 900), "2.8e+09"),
    # One may go offline between the look at its time and at its clock.
    ("node_cpu_clock", busy(900, 0, 0, 900) | without("sys/devices/system/cpu/cpu3"), "2e+09"),
    # A NUMA node has no memory, and one no file.
    (
        "node_numa_memory",
        {
            f"{NUMA}/node2/meminfo": "Node 2 MemTotal: 0 kB\nNode 2 MemFree: 0 kB\n",
            f"{NUMA}/node3/cpulist": "\n",
        },
        "0 2.048e+08, 1 1.024e+08",
    ),
    # A bond repeats what its devices have counted.
    (
        "node_network_errors",
        carry("eth0", "eth1", "bond0", errors=(20, 5))
        | {"sys/class/net/bond0/bonding/slaves": "eth0 eth1\n"},
        "50.0",
    ),
    # Turned off (psi=0), the files are there.
    ("node_pressure_stalled", {f"{PSI}/io": REFUSED}, "memory 0.25"),
    # Older kernels count at the paths of an NVMe disk only, newer ones at the disk as well.
    ("node_disk", paths(0), OF_PATHS),
    ("node_disk", paths(5000), OF_PATHS),
    # Before 2.13 Lustre only counted, from which nothing can be concluded.
    ("node_mount", served(None, "read  1 samples [bytes] 1 2 3\n"), ""),
    # Before Linux 5.3 operations have no column of errors.
    ("node_mount", served(BEFORE_5_3, None), "home:/home nfs 100.0, home:/home nfs 0.19"),
    ("node_mount_operations", served(None, None) | {f"sys/kernel/debug/{LLITE}": LUSTRE}, SCRATCH),
    # Only root reads the mounts of process 1.
    ("node_mount_operations", served(None, None) | {"proc/self/mountstats": NFS}, DATA),
    # Damaged packets count whichever way they went, and not those of a device left out.
    ("node_network_errors", carry("eth0", "eth1", "veth7", errors=(20, 5)), "50.0"),
    # A virtual device says -1 or 0, one without a link refuses, one without traffic is hidden.
    (
        "node_network_speed",
        carry("eth0", "eth1", "bond0", "team0")
        | speeds(eth0="10000\n", eth1=REFUSED, bond0="-1\n", team0="0\n"),
        "eth0 1.25e+09",
    ),
    # Every container brings a device; none of them may cost series. Real devices all stay.
    (RECEIVED, carry(*VIRTUAL, *REAL), ", ".join(f"{real} 10.0" for real in sorted(REAL))),
    # Under net/ a process sees its own network; the node's is that of its first process.
    (RECEIVED, carry("ens9f0", of="1/net"), "ens9f0 10.0"),
    # A driver may refuse any of a port's files; the rest of the page is complete.
    (RATE % 1, without(f"{PORT}/state"), "mlx5_1 1 2.5e+10"),
    (ERRORS % 0, without(COUNTERS), "mlx5_0 1 0.0"),
    # Counters of 32 bits stop at 16 GiB, so those of 64 bits of an old kernel come first.
    ('infiniband_receive_bytes_total{device="mlx5_0"', PORT_WORDS, "mlx5_0 1 2e+10"),
    # A node that lends its port to virtual machines may have hundreds; they share the port.
    (
        "infiniband_rate",
        {f"{PORTS}/{d}/device/physfn/vendor": "0x15b3\n" for d in RDMA[:2]},
        "irdma0 1 3.125e+09, mlx5_2 1 0.0",
    ),
]


@pytest.mark.parametrize(("name", "files", "told"), ODDITIES)
def test_oddity_changes_what_it_concerns(host: Mounts, name: str, files: Files, told: str) -> None:
    """What cannot be read is absent, and no failure."""
    change(host, files)

    assert Pages(host).of(name) == told


# For each oddity: names of series, and what they say after each change of files.
OVER_TIME: Final[dict[str, tuple[str, list[tuple[Files, str]]]]] = {
    # The kernel's idle time may dip, and a rate must not explode for it; a real reset passes.
    "a small step back is no reset": (
        CPU % ("idle", 0),
        [
            (stat(ticks(0, 1, 10_000)), "idle 0 100.0"),
            (stat(ticks(0, 1, 9_950)), "idle 0 100.0"),
            (stat(ticks(0, 1, 10_100)), "idle 0 101.0"),
            (stat(ticks(0, 1, 300)), "idle 0 3.0"),
        ],
    ),
    # A sum that fell by one CPU would look like a reset of all of them.
    "a CPU that goes offline stays in the sum": (
        CPU % ("user", 1),
        [
            (stat(ticks(2, 100, 700), ticks(3, 200, 30)), "user 1 3.0"),
            (stat(ticks(2, 150, 700)) | {f"{NUMA}/node1/cpulist": "2\n"}, "user 1 3.5"),
        ],
    ),
    "what a CPU did before the last look does not count": (
        "node_cpu_clock",
        [
            (busy(900, 100), "2e+09"),
            (busy(900, 1100, idle=1000), "2.4e+09"),
            (busy(900, 1100, idle=1000), ""),
        ],
    ),
    # A falling sum would look like a reset of all disks, and show bytes that nobody read.
    "a disk goes and comes back": (
        "node_disk_read_bytes",
        [
            (disks(disk("sdb", 100)), "2.1248e+06"),
            (disks(), "2.1248e+06"),
            (disks(disk("sdb", 1)), "2.125312e+06"),
        ],
    ),
    "a port goes": (
        "infiniband_transmit_wait",
        [({}, "70000.0"), (without(f"{PORTS}/mlx5_0"), "70000.0")],
    ),
    "a network device goes": (
        "node_network_errors",
        [(carry("eth0", "eth1", errors=(20, 5)), "50.0"), (carry("eth0", errors=(21, 5)), "51.0")],
    ),
    "an administrator clears the counters of a port": (
        ERRORS % 0,
        [({}, "mlx5_0 1 4.0"), ({f"{COUNTERS}/symbol_error": "0\n"}, "mlx5_0 1 4.0")],
    ),
    # All operations count, the queue does not; two mounts of an export count once.
    "the export that is slow now": (
        "node_mount",
        [({}, f"{DATA}, 10.0.0.5:/data nfs 2.88"), (SLOWER, f"{SCRATCH}, scratch lustre 3.7")],
    ),
    # The sums keep what they knew of it; a rate must not explode when it comes back.
    "an error that cannot be read once": (
        ERRORS % 0,
        [({}, "mlx5_0 1 4.0"), (ONCE, "mlx5_0 1 5.0")],
    ),
}


@pytest.mark.parametrize(("name", "looks"), OVER_TIME.values(), ids=OVER_TIME)
def test_what_cannot_be_read_once_never_looks_like_a_reset(
    host: Mounts, name: str, looks: list[tuple[Files, str]]
) -> None:
    pages, found = Pages(host), []
    for files, _ in looks:
        change(host, files)
        found.append(pages.of(name))

    assert found == [expected for _, expected in looks]


def test_busiest_of_late_is_shown() -> None:
    """At first the one with most in total; each change of what is shown begins new series.

    A counter that begins again is not work, such as that of a mount that is made anew. One that is
    gone leaves its place, and one that was never used is not shown.
    """
    busiest = Busiest()
    assert Busiest().of({"a": 0.0}) is None
    assert [busiest.of({"a": 1.1 * n, "b": 2.0 + n}) for n in range(9)] == ["b"] * 9
    assert [busiest.of({"a": 20.0, "b": 10.0}), busiest.of({"a": 20.0, "b": 1.0})] == ["a", "a"]
    assert [busiest.of({"b": 2.0}), busiest.of({"a": 20.0, "b": 3.0})] == ["b", "b"]


SERIES_OF_A_NODE = 121


def page_of(settings: Settings, store: RankStore, nvml: NvmlSource = NO_SAMPLE) -> str:
    """Return what all collectors show together."""
    return expose(*collectors(Sources(settings, store, IngestCounts(), nvml)))


def test_collector_has_a_switch_of_its_name() -> None:
    """Who sees one fail on the page knows the flag that turns it off; then it leaves no trace."""
    sources = Sources(settings_of(HOST), RankStore(), IngestCounts(), NO_SAMPLE)
    page = page_of(Settings(collectors_off=frozenset({"node_cpu"})), RankStore())

    assert [each.name for each in collectors(sources)] == [entry.name for entry in COLLECTORS]
    assert "node_cpu" not in page
    assert "rankskew_node_memory_total_bytes" in page


@pytest.mark.parametrize("nvml", [NO_DRIVER, NO_SAMPLE], ids=["no driver", "no sample"])
def test_what_a_node_does_not_have_is_no_series_and_no_failure(nvml: NvmlSource) -> None:
    """Without GPU, without a fresh sample, without ranks: whatever else runs there."""
    running, counts = {10: process(10, torchrun(0))}, IngestCounts()
    sources = Sources(settings_of(HOST), RankStore(), counts, nvml, processes=lambda: running)
    always = ("gpu_devices", "node_", "exporter")
    made = [each.make(sources) for each in COLLECTORS if not each.name.startswith(always)]
    page = expose(*made)

    assert series(page) == []
    assert "rankskew_collector_success{" not in page


def test_every_metric_is_defined_once_and_promtool_finds_nothing_to_say_about_any() -> None:
    """Names, units and help texts of all that there can be are sound, whatever a node has."""
    families = [family for _, _, found in families_by_collector() for family in found]
    for family in families:
        labels = dict.fromkeys(getattr(family, "_labelnames", ()), "x")
        family.samples = [Sample(exposed_name(family), labels, 1.0)]
    names = [exposed_name(family) for family in families]
    checked = promtool_check_metrics(generate_latest(ScrapedFamilies(families)).decode())

    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_node_stays_within_its_series_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets and any disks, with eight InfiniBand ports, without ranks and GPUs, cost 121."""
    page = page_of(settings_of(mounted(HOST, monkeypatch)), RankStore(), node())
    found = [line for line in page.splitlines() if not line.startswith("#")]
    of_ports = [line for line in found if line.startswith("rankskew_infiniband_")]

    assert len([line for line in found if line.startswith("rankskew_node_disk_reads_")]) == 1
    assert len(found) - len(of_ports) + 4 * 8 + 1 <= SERIES_OF_A_NODE


def test_exporter_tells_of_itself(tmp_path: Path) -> None:
    """A fleet's releases can be compared by a label, a target has a name, and its cost is seen.

    A counter that starts at 0 lets rate() see the first refusal. Prometheus's own two series tell
    of the web configuration, and neither of them without a file.
    """
    counts, failures, config = IngestCounts(), Failures(), tmp_path / "web.yaml"
    config.write_text("")
    web = WatchedConfig(config, lambda: 100.0)
    collector = ExporterSelfCollector(counts, failures, node_name="gpu-12", web_config=web)
    page, reload = expose(collector), "rankskew_exporter_web_config_last_reload"
    assert 'rankskew_exporter_build_info{nodename="gpu-12",python="3.' in page
    assert f'version="{__version__}"}} 1.0' in page
    assert "\nprocess_cpu_seconds_total " in page
    assert "rankskew_exporter_errors_total 0.0" in page
    assert 'rankskew_ingest_snapshots_total{result="oversized"} 0.0' in page
    assert f"{reload}_successful 1.0" in page
    assert f"{reload}_success_timestamp_seconds 100.0" in page

    counts.unknown_fields += 2
    with failures.caught("its own work"):
        raise KeyError
    config.write_text("[]")
    web.current()
    page = expose(collector)
    assert "rankskew_ingest_unknown_fields_total 2.0" in page
    assert "rankskew_exporter_errors_total 1.0" in page
    assert f"{reload}_successful 0.0" in page
    assert f"\n{reload}_" not in expose(ExporterSelfCollector(counts, Failures()))
