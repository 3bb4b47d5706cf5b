"""What a rank reads of its host and tells of itself, to other ranks and to an audit."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from rank_probe.audit import gather
from rank_probe.audit.facts import HIDDEN, Interface, NodeMounts, Port, pack, unpack
from rank_probe.audit.gather import shown
from rank_probe.audit.network import interfaces, matching, ports
from rank_probe.process import facts, runtime
from rank_probe.process.small_files import beginning, content, number_in, text_of
from rank_probe.torch_hooks import process_group
from rank_probe.version import __version__

NODE = os.uname().nodename
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"


def test_what_is_known_is_told(tmp_path: Path) -> None:
    """A rank posts what it knows, with torch's version if imported; unknown facts are absent.

    A label overrides the detected value.
    """
    version = tmp_path / "version"
    environment = {"APPTAINER_CONTAINER": "/images/train.sif", "RANK_PROBE_LABELS": "node=rack7-3"}
    bare = facts.own_facts({}, "", "", version)
    version.write_text(f"{DRIVER}\nGCC version:  gcc version 12.2.0 \n")
    known = facts.own_facts(environment, "NVIDIA H100", "generation 4 x16", version)

    for found in (bare, known):
        found.pop("torch", None)
        assert facts.read_facts(facts.message(found)) == found
    assert bare == {"node": NODE}
    assert known == {
        "node": "rack7-3",
        "GPU model": "NVIDIA H100",
        "PCIe": "generation 4 x16",
        "driver": "535.104.05",
        "image": "/images/train.sif",
    }


MANY = [f"l{at}={at}" for at in range(10)]


@pytest.mark.parametrize(
    ("said", "known", "wrong"),
    [
        ("rack=r12, switch = s3,", {"rack": "r12", "switch": "s3"}, []),
        ("a=b=c", {"a": "b=c"}, []),
        ("rack", {}, ["rack="]),
        ("r k=1,7=2,<b>=3,ok=4", {"ok": "4"}, ["r k=1", "7=2", "<b>=3"]),
        ("rack=1,rack=1,rack=2", {"rack": "1"}, ["rack=2"]),
        ("rack=a\nb", {}, ["rack=a\nb"]),
        *((long, {}, [long]) for long in (f"rack={'x' * 97}", f"{'x' * 33}=1")),
        (",".join(MANY), {f"l{at}": f"{at}" for at in range(8)}, MANY[8:]),
    ],
)
def test_labels_that_cannot_be_told_are_left_out(
    said: str, known: dict[str, str], wrong: list[str]
) -> None:
    """The others are told, if they are few; `rank-probe check` says which are not."""
    environment = {"RANK_PROBE_LABELS": said}

    assert facts.labels(environment) == known
    assert facts.wrong_labels(environment) == wrong


def test_nonsense_from_another_rank_is_no_fact() -> None:
    """Malformed or overlong messages and control characters are dropped."""
    wrong = {"node": 7, "rack": None, "a\nb": "1", "b": "1\n2", "x" * 33: "1"}
    for said in (b"\xff\xfe", b"[1]", b"[" * 10_000, json.dumps(wrong).encode()):
        assert facts.read_facts(said) == {}
    assert facts.read_facts(json.dumps({"node": "x" * 20_000}).encode()) == {}


def fake_torch() -> SimpleNamespace:
    """Return as much of torch as the probe asks, on a machine with two GPUs."""
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="13.0"),
        cuda=SimpleNamespace(
            is_initialized=lambda: True,
            current_device=lambda: 1,
            device_count=lambda: 2,
            get_device_properties=lambda index: SimpleNamespace(
                **{"uuid": f"0000-{index}", "name": "NVIDIA H100"},
                **{"pci_domain_id": 0, "pci_bus_id": 0xC0 + index, "pci_device_id": 0},
            ),
            nccl=SimpleNamespace(version=lambda: (2, 28, 3)),
        ),
        distributed=SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            is_nccl_available=lambda: True,
            get_backend=lambda: "nccl",
            group=SimpleNamespace(WORLD=SimpleNamespace(rank=lambda: 5, size=lambda: 8)),
        ),
    )


def test_versions_of_a_gpu_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As they print themselves; the GPU's UUID has NVML's prefix, so that it joins its series.

    Its PCIe link is unknown in a container without sysfs, where the kernel does not know it, and on
    a torch that does not say where the GPU is.
    """
    torch = fake_torch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = runtime.runtime_info()
    monkeypatch.setitem(sys.modules, "torch", torch)
    of_torch = {"torch": "2.13.0", "cuda": "13.0", "device_count": "2", "backend": "nccl"}

    assert before["probe"] == __version__
    assert runtime.runtime_info() == before | of_torch | {"nccl": "2.28.3"}
    assert (runtime.cuda_device(), runtime.cuda_device(0)) == (1, 0)
    assert (runtime.gpu_uuid(1), runtime.gpu_model(1)) == ("GPU-0000-1", "NVIDIA H100")
    assert process_group.rank_and_world_size() == (5, 8)
    link = tmp_path / "0000:c1:00.0"
    assert runtime.pcie_link(1, tmp_path) == ""
    link.mkdir()
    (link / "current_link_width").write_text("16\n")
    for speed, said in (("16.0 GT/s PCIe", "generation 4 x16"), ("Unknown", "")):
        (link / "current_link_speed").write_text(f"{speed}\n")
        assert runtime.pcie_link(1, tmp_path) == said
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(name="NVIDIA H100")
    assert (runtime.pcie_link(1, tmp_path), runtime.gpu_uuid(1)) == ("", "")
    assert (runtime.gpu_uuid(None), runtime.gpu_model(None), runtime.pcie_link(None)) == ("",) * 3


def test_environments_that_differ_have_other_hashes() -> None:
    """A variable more, or another value, is seen, whatever the order; and no value can be read.

    Ranks that each see their own GPU and write their own files have one hash.
    """
    base = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"}
    known = runtime.environment_hash(base)
    own = {"RANK": "1", "CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG_FILE": "/tmp/1"}

    for same in (dict(reversed(base.items())), base | own):
        assert runtime.environment_hash(same) == known
    for other in ({}, base | {"NCCL_ALGO": "Tree"}, base | {"TORCH_NCCL_BLOCKING_WAIT": "1"}):
        assert runtime.environment_hash(other) != known
    assert (len(known), int(known, 16) >= 0) == (8, True)


def test_only_the_beginning_of_a_regular_file_is_read(tmp_path: Path) -> None:
    """A pipe is not waited for, and a link followed only where a mounted secret is one.

    However long the file is; files of /proc come in several pieces.
    """
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "sparse"
    os.mkfifo(pipe)
    file.write_bytes(b"begin")
    os.truncate(file, 1 << 40)
    link.symlink_to(file)

    assert content(link, 4, follows_links=True) == content(file, 4) == b"begi"
    assert beginning(file, 100_000) == b"begin".ljust(100_000, b"\0")
    assert (text_of("/proc/self/maps") or "").splitlines()[-1]
    for path, problem in (
        (tmp_path / "absent", "No such file"),
        (pipe, "not a regular file"),
        (tmp_path, "not a regular file"),
        (link, "it is a link"),
    ):
        with pytest.raises(OSError, match=problem):
            content(path, 100)
        assert (beginning(path), text_of(path), number_in(path)) == (None, None, None)
    link.unlink()
    link.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        content(link, 100, follows_links=True)


def machine(folder: Path, files: Mapping[str, str]) -> NodeMounts:
    """Return a machine with *files*."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return NodeMounts(folder / "proc", folder / "sys", folder / "dev")


def test_process_knows_its_own_limits(tmp_path: Path) -> None:
    """CPUs and variables are those of this process; the checks look at few of them.

    Those are compared that may not differ between the ranks of a healthy job. What a machine does
    not show is missing, and the rest can still be posted.
    """
    bare = gather.facts(0, 0, {}, machine(tmp_path, {}), with_torch=False)
    kernel = "proc/sys/kernel"
    mounts = machine(tmp_path, {f"{kernel}/hostname": "node-7", f"{kernel}/random/boot_id": "b"})
    to_compare = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "PYTORCH_ALLOC_CONF": "native"}
    read = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment = to_compare | read | {"HOME": "/root", "NCCL_DEBUG_FILE": "/tmp/rank3"}
    found = gather.facts(3, 1, environment, mounts, with_torch=False)

    assert (bare.node, bare.shared_memory_bytes, bare.cpus_of_node) == (NODE, None, 0)
    assert unpack(pack(bare)) == bare
    assert (found.rank, found.local_rank, found.node, found.machine) == (3, 1, "node-7", "b")
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert (found.compared, found.settings) == (to_compare, read)
    assert found.versions["probe"] == __version__


def test_secrets_are_hidden_and_long_values_cut() -> None:
    """Only a digest leaves the rank, which shows whether they differ; the sentence is readable."""
    for name in ("FI_OPX_TOKEN", "NCCL_PLUGIN_SECRET", "UCX_AUTH", "FI_KEY", "NCCL_COMM_ID"):
        assert shown(name, "hunter2").startswith(HIDDEN)
        assert "hunter2" not in shown(name, "hunter2")
        assert shown(name, "hunter2") != shown(name, "hunter2x")
    assert "hunter2" not in shown("CUDA_URL", "http://user:hunter2@proxy:3128")

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
        ("eth1,ib", True, ["eth10", "ib0"]),
        ("=eth0", True, ["eth0"]),
        ("^eth,ib", True, []),
        ("^=eth0", True, ["eth10", "ib0"]),
        ("eth,ib0", False, ["ib0"]),
    ],
)
def test_names_are_read_as_the_library_does(chosen: str, by_prefix: bool, found: list[str]) -> None:
    """NCCL takes prefixes, = and ^; gloo takes whole names."""
    assert matching(chosen, NAMES, by_prefix) == found


def test_chosen_interface_replaces_that_of_the_default_route(tmp_path: Path) -> None:
    """Of several default routes the one with the lowest metric counts. Ports are of adapters."""
    net = "sys/class/net"
    files = {f"{net}/{name}/mtu": "9000" for name in NAMES} | {"proc/net/route": ROUTES}
    states = {f"{net}/{name}/operstate": "down" if name == "ib0" else "up" for name in NAMES}
    mounts = machine(tmp_path, files | states)
    chosen = {"GLOO_SOCKET_IFNAME": "ib0"}
    fixture = NodeMounts(sysfs=Path(__file__).parents[1] / "fixtures/sys")
    found = {port.device: port for port in ports(fixture)}

    assert list(interfaces(mounts, {})) == [Interface("eth0", 9000, False, "the default route")]
    assert list(interfaces(mounts, chosen)) == [Interface("ib0", 9000, True, "GLOO_SOCKET_IFNAME")]
    assert not found["mlx5_2"].is_active
    assert found["mlx5_0"] == Port("mlx5_0", "1", "InfiniBand", True, 400.0)
