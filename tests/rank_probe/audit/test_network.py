"""Which interfaces and ports a job would take."""

from pathlib import Path

import pytest

from rank_probe.audit.facts import Interface, NodeMounts, Port
from rank_probe.audit.network import interfaces, matching, ports

ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    "ib0\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n"
    "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
)
NAMES = ["docker0", "eth0", "eth10", "ib0", "lo"]


@pytest.fixture
def mounts(tmp_path: Path) -> NodeMounts:
    """A machine with a few interfaces."""
    for name in NAMES:
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "mtu").write_text("9000\n")
        (folder / "operstate").write_text("down\n" if name == "ib0" else "up\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTES)
    return NodeMounts(tmp_path / "proc", tmp_path / "sys")


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


def test_chosen_interface_replaces_that_of_the_default_route(mounts: NodeMounts) -> None:
    """Of several default routes the one with the lowest metric counts."""
    chosen = {"GLOO_SOCKET_IFNAME": "ib0"}

    assert list(interfaces(mounts, {})) == [Interface("eth0", 9000, False, "the default route")]
    assert list(interfaces(mounts, chosen)) == [Interface("ib0", 9000, True, "GLOO_SOCKET_IFNAME")]


def test_host_without_network_has_no_interface(tmp_path: Path) -> None:
    """Nothing is found, and nothing fails."""
    assert list(interfaces(NodeMounts(tmp_path, tmp_path), {})) == []
    assert list(ports(NodeMounts(tmp_path, tmp_path))) == []


def test_ports_are_those_of_real_adapters() -> None:
    """State, rate and kind of each port; a port that is down reports its lowest rate."""
    fixture = Path(__file__).parents[2] / "fixtures/sys"
    found = {port.device: port for port in ports(NodeMounts(sysfs=fixture))}

    assert found["mlx5_0"] == Port("mlx5_0", "1", "InfiniBand", True, 400.0)
    assert not found["mlx5_2"].is_active
