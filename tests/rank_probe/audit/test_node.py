"""What a rank reads of itself and its node, and posts, without secrets."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rank_probe.audit import gather
from rank_probe.audit.devices import device_files
from rank_probe.audit.facts import HIDDEN, Facts, Interface, NodeMounts, Port, pack, unpack
from rank_probe.audit.gather import shown
from rank_probe.audit.network import interfaces, matching, ports
from rank_probe.version import __version__
from tests import nvmlstub
from tests.rank_probe.audit.healthy import facts


def machine(folder: Path, files: Mapping[str, str]) -> NodeMounts:
    """Return a machine with *files*."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return NodeMounts(folder / "proc", folder / "sys", folder / "dev")


def test_process_knows_its_own_limits(tmp_path: Path) -> None:
    """CPUs and variables are those of this process; the checks look at few of them.

    Those are compared that may not differ between the ranks of a healthy job.
    """
    kernel = "proc/sys/kernel"
    mounts = machine(tmp_path, {f"{kernel}/hostname": "node-7", f"{kernel}/random/boot_id": "b"})
    to_compare = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "PYTORCH_ALLOC_CONF": "native"}
    read = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment = to_compare | read | {"HOME": "/root", "NCCL_DEBUG_FILE": "/tmp/rank3"}
    found = gather.facts(3, 1, environment, mounts, with_torch=False)

    assert (found.rank, found.local_rank, found.node, found.machine) == (3, 1, "node-7", "b")
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert (found.compared, found.settings) == (to_compare, read)
    assert found.versions["probe"] == __version__


def test_machine_that_shows_nothing_has_no_facts(tmp_path: Path) -> None:
    """What cannot be read is missing, and what is left can still be posted."""
    found = gather.facts(0, 0, {}, machine(tmp_path, {}), with_torch=False)

    assert found.node == os.uname().nodename
    assert found.shared_memory_bytes is None
    assert found.cpus_of_node == 0
    assert unpack(pack(found)) == found


def test_control_group_and_lockable_memory_are_the_processes(tmp_path: Path) -> None:
    """Another group is another key; CAP_IPC_LOCK, bit 14, lifts the limit."""

    def read(file: str, text: str) -> Facts:
        mounts = machine(tmp_path, {f"proc/self/{file}": text})
        return gather.facts(0, 0, {}, mounts, with_torch=False)

    first, same, other = (
        read("cgroup", group).container for group in ("0::/a\n", "0::/a\n", "0::/b")
    )
    bound = read("status", "CapEff:\t0000000000003fff\n").locked_bytes
    free = read("status", "CapEff:\t0000000000004000\n").locked_bytes

    assert first == same != other
    assert bound is not None
    assert bound < 2**63 or resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == -1
    assert free == 2**63


def test_facts_arrive_as_they_were_posted() -> None:
    """Every field, with its type, and small: the store of 16,384 ranks holds tens of megabytes."""
    posted = pack(facts(5))

    assert unpack(posted) == facts(5)
    assert len(posted) < 2000


@pytest.mark.parametrize(
    "posted",
    [
        b"",
        b"nothing of ours",
        zlib.compress(b"[]"),
        zlib.compress(json.dumps({**dataclasses.asdict(facts(0)), "later": 1}).encode()),
        zlib.compress(b" " * 2**21 + json.dumps(dataclasses.asdict(facts(0))).encode()),
    ],
)
def test_anything_else_is_refused(posted: bytes) -> None:
    """What another release posts counts as not reported; a bomb is not unpacked."""
    assert unpack(posted) is None


@pytest.mark.parametrize(
    "name", ["FI_OPX_TOKEN", "NCCL_PLUGIN_SECRET", "UCX_AUTH", "FI_KEY", "NCCL_COMM_ID", "CUDA_URL"]
)
def test_secrets_are_hidden(name: str) -> None:
    """Only a digest leaves the rank, which shows whether they differ."""
    value = "http://user:hunter2@proxy:3128" if name == "CUDA_URL" else "hunter2"

    assert shown(name, value).startswith(HIDDEN)
    assert "hunter2" not in shown(name, value)
    assert shown(name, value) != shown(name, f"{value}x")


def test_long_values_are_cut_and_still_differ() -> None:
    """The sentence stays readable, on any terminal."""
    first, second = shown("UCX_TLS", "a" * 500), shown("UCX_TLS", "a" * 499 + "b")

    assert len(first) < 140
    assert first != second
    assert shown("UCX_TLS", "tcp\x1b[2J").startswith("tcp?[2J... (")


ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    "ib0\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n"
    "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
)
NAMES = ["docker0", "eth0", "eth10", "ib0", "lo"]


@pytest.mark.parametrize(
    ("chosen", "by_prefix", "found"),
    [
        ("eth", True, ["eth0", "eth10"]),
        ("eth1,ib", True, ["eth10", "ib0"]),
        ("=eth1", True, []),
        ("=eth0", True, ["eth0"]),
        ("^eth,ib", True, []),
        ("^docker", True, ["eth0", "eth10", "ib0"]),
        ("^=eth0", True, ["eth10", "ib0"]),
        ("eth", False, []),
        ("eth0,ib0", False, ["eth0", "ib0"]),
    ],
)
def test_names_are_read_as_the_library_reads_them(
    chosen: str, by_prefix: bool, found: list[str]
) -> None:
    """NCCL takes prefixes, = and ^; gloo takes whole names."""
    assert matching(chosen, NAMES, by_prefix) == found


def test_chosen_interface_replaces_that_of_the_default_route(tmp_path: Path) -> None:
    """Of several default routes the one with the lowest metric counts."""
    net = "sys/class/net"
    files = {f"{net}/{name}/mtu": "9000" for name in NAMES} | {"proc/net/route": ROUTES}
    states = {f"{net}/{name}/operstate": "down" if name == "ib0" else "up" for name in NAMES}
    mounts = machine(tmp_path, files | states)
    chosen = {"GLOO_SOCKET_IFNAME": "ib0"}

    assert list(interfaces(mounts, {})) == [Interface("eth0", 9000, False, "the default route")]
    assert list(interfaces(mounts, chosen)) == [Interface("ib0", 9000, True, "GLOO_SOCKET_IFNAME")]


def test_ports_are_those_of_real_adapters(tmp_path: Path) -> None:
    """State, rate and kind; one that is down reports its lowest rate. Without network: none."""
    fixture = Path(__file__).parents[2] / "fixtures/sys"
    found = {port.device: port for port in ports(NodeMounts(sysfs=fixture))}

    assert found["mlx5_0"] == Port("mlx5_0", "1", "InfiniBand", True, 400.0)
    assert not found["mlx5_2"].is_active
    assert [*interfaces(NodeMounts(tmp_path, tmp_path), {})] == []
    assert [*ports(NodeMounts(tmp_path, tmp_path))] == []


READS = (
    "import json; from dataclasses import asdict; from rank_probe.audit.devices import read_gpus; "
    "gpus, problem = read_gpus(); print(json.dumps([[asdict(gpu) for gpu in gpus], problem]))"
)
WITHOUT_PYNVML = "import sys; sys.modules['pynvml'] = None; "


def read(library: Path, scenario: Path, said: str, before: str = "") -> tuple[Any, str]:
    """Return the GPUs and the problem that a process finds while the stub plays what is *said*."""
    scenario.write_text(said)
    done = subprocess.run(
        [sys.executable, "-c", before + READS],
        env=os.environ | nvmlstub.environment(library, 8, scenario),
        capture_output=True,
        text=True,
        check=True,
    )
    gpus, problem = json.loads(done.stdout)
    return gpus, problem


@pytest.mark.parametrize(
    ("said", "near_5"), [("", list(range(32, 64))), ("nvmlDeviceGetCpuAffinity * 3\n", [])]
)
def test_gpus_have_their_place(library: Path, tmp_path: Path, said: str, near_5: list[int]) -> None:
    """Two sockets of four; a GPU without a known place is still a GPU."""
    gpus, problem = read(library, tmp_path / "scenario", said)

    assert problem == ""
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert gpus[5]["cpus"] == near_5


@pytest.mark.parametrize(
    ("said", "before", "problem"),
    [
        ("nvmlInitWithFlags * 9\n", "", "NVML does not start: "),
        ("nvmlDeviceGetUUID 3 15\n", "", "NVML does not answer: GPU is lost"),
        ("nvmlDeviceGetCount_v2 -1 =0\n", "", "NVML shows no GPU"),
        ("", WITHOUT_PYNVML, "pynvml is not installed (pip install nvidia-ml-py)"),
    ],
)
def test_host_without_answer_says_why(
    library: Path, tmp_path: Path, said: str, before: str, problem: str
) -> None:
    """A sentence instead of the GPUs."""
    gpus, why = read(library, tmp_path / "scenario", said, before)

    assert gpus == []
    assert why.startswith(problem)


def test_device_files_count_gpus_only(tmp_path: Path) -> None:
    """The other files of the driver are no GPUs."""
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    assert device_files(NodeMounts(devices=tmp_path)) == 2
    assert device_files(NodeMounts(devices=tmp_path / "absent")) == 0
