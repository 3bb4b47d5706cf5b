"""`rank-probe bench-collectives` with four real ranks: a slow link, and a rank that dies.

As a program, this runs a module in the network namespace of its rank.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devstack.process import wait_for
from tests.rank_probe.forks import Zygote

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANKS = 4
# Long enough for a step on a busy machine.
TIMEOUT_SECONDS = 20
COMMAND = ("rank_probe", "bench-collectives", "--backend", "gloo")

# A namespace for each rank, on one bridge; ranks 1 and 3 send each other 50 Mbit/s at the most.
NETWORK: Final = f"rankskew-{os.getpid()}"
BUILD: Final = f"""
ip netns add {NETWORK}-bridge
ip -n {NETWORK}-bridge link add br0 type bridge
ip -n {NETWORK}-bridge link set br0 up
for rank in 0 1 2 3; do
  own={NETWORK}-$rank
  ip netns add $own
  ip link add eth0 netns $own type veth peer name port$rank netns {NETWORK}-bridge
  ip -n {NETWORK}-bridge link set port$rank master br0 up
  ip -n $own addr add 10.77.0.1$rank/24 dev eth0
  ip -n $own link set eth0 up
  ip -n $own link set lo up
done
slow() {{
  tc -n {NETWORK}-$1 qdisc add dev eth0 root handle 1: htb
  tc -n {NETWORK}-$1 class add dev eth0 parent 1: classid 1:1 htb \
    rate 50mbit burst 64kb quantum 60000
  tc -n {NETWORK}-$1 filter add dev eth0 parent 1: protocol ip prio 1 \
    u32 match ip dst 10.77.0.1$2/32 flowid 1:1
}}
slow 1 3
slow 3 1
"""
REMOVE: Final = f"for each in bridge 0 1 2 3; do ip netns del {NETWORK}-$each || true; done"
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run *script* up to its first failure."""
    return subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)


@pytest.fixture
def network() -> Iterator[str]:
    """What begins the name of each rank's namespace."""
    if (can := shell("command -v ip tc && unshare --net true")).returncode:
        pytest.skip(f"needs root, ip, tc and unshare: {can.stderr}")
    built = shell(BUILD)
    try:
        assert built.returncode == 0, built.stderr
        yield NETWORK
    finally:
        shell(REMOVE)


def enter(namespace: str) -> None:
    """Enter the *namespace*, on a host of its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as opened:
        assert libc.setns(opened.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    assert libc.unshare(CLONE_NEWUTS) == 0, os.strerror(ctypes.get_errno())
    socket.sethostname(f"node{os.environ['RANK']}")


def test_slow_link_is_named(zygote: Zygote, network: str, tmp_path: Path) -> None:
    """Every output names the link between ranks 1 and 3, which tc slows down."""
    textfile = tmp_path / "links.prom"
    options = ("--duration", "3s", "--max-mib", "1", "--json", "--textfile", str(textfile))
    launcher = {
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "10.77.0.10",
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    ranks = [
        zygote.start(
            tmp_path / f"output-{rank}",
            *("tests.e2e.test_collectives", f"{network}-{rank}", *COMMAND, *options),
            **launcher | {"RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    ended = [rank.wait(120) for rank in ranks]
    said = ranks[0].output.read_text()
    document = json.loads(said[said.index("{") :])
    named = [(one["kind"], one["ranks"]) for one in document["named"]]
    assert ended == [1] * RANKS
    # The slowest comes first; a busy machine may make others slow.
    assert named[0] == ("link", [1, 3]), document["verdict"]
    assert (document["slow"], document["backend"], document["ranks"]) == (True, "gloo", RANKS)
    assert document["hosts"] == ["node0", "node1", "node2", "node3"]
    assert {pair["scope"] for pair in document["pairs"]} == {"inter-node"}
    assert {one["collective"] for one in document["collectives"]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }
    assert 'rankskew_collective_slow_info{kind="link",ranks="1,3"' in textfile.read_text()


def test_rank_that_dies_ends_all_with_a_sentence(zygote: Zygote, tmp_path: Path) -> None:
    """All others end within the timeout: those that gloo tells at once, and the rest by it."""
    options = ("--duration", "10m", "--timeout", f"{TIMEOUT_SECONDS}s")
    met = "rank-probe: 4 ranks on 1 node measure with gloo"
    with zygote.ranks(tmp_path, *COMMAND, *options, ranks=RANKS) as ranks:
        assert wait_for(lambda: met in ranks[0].output.read_text() or None, 60)
        os.kill(ranks[2].pid, signal.SIGKILL)
        ended = [rank.wait(TIMEOUT_SECONDS + 10) for rank in ranks]
    said = [line for rank in ranks for line in rank.output.read_text().splitlines()]
    sentences = [line for line in said if met not in line]
    told = ["a rank has ended, a link is down, or" in sentence for sentence in sentences]

    assert ended == [2, 2, -signal.SIGKILL, 2]
    assert len(sentences) == RANKS - 1, sentences
    assert any(told)
    in_vain = f"waited {TIMEOUT_SECONDS} s in vain"
    assert all(knows or in_vain in each for knows, each in zip(told, sentences, strict=True))


if __name__ == "__main__":
    enter(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
