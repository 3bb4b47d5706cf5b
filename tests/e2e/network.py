"""A small network on this machine: a namespace for each rank, on one bridge, with slow links.

It needs root, ip(8) and tc(8). A link gets a lower rate from tc's htb. Everything lies in
namespaces of a name of its own, and ends with the context. As a program, this runs a module in the
namespace of its rank.
"""

import ctypes
import os
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Self

BRIDGE: Final = "b"
INTERFACE: Final = "eth0"
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000
PORT: Final = 29500
# The variable that names a rank's namespace.
NAMESPACE: Final = "NETWORK_NAMESPACE"


def why_not() -> str | None:
    """Return why this process cannot make a network; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} must be installed (iproute2, util-linux)"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"network namespaces cannot be made: {done.stderr.strip()}" if done.returncode else None


class Network:
    """Namespaces for *ranks* ranks, each of which sees a host name of its own."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._prefix = f"rankskew-{os.getpid()}-"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._remove)
            self._make()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def environment(self, rank: int) -> dict[str, str]:
        """Return what a launcher would set for *rank*."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self._ranks),
            "MASTER_ADDR": self._address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            NAMESPACE: self._name(rank),
        }

    def limit(self, sender: int, receivers: Sequence[int], megabits: int) -> None:
        """Let *sender* send no more than *megabits* a second to *receivers* together."""
        tc = ("tc", "-n", self._name(sender))
        _run(*tc, "qdisc", "add", "dev", INTERFACE, "root", "handle", "1:", "htb")
        rate = ("rate", f"{megabits}mbit", "burst", "64kb", "quantum", "60000")
        _run(*tc, "class", "add", "dev", INTERFACE, "parent", "1:", "classid", "1:1", "htb", *rate)
        for receiver in receivers:
            match = ("u32", "match", "ip", "dst", f"{self._address(receiver)}/32", "flowid", "1:1")
            add = ("filter", "add", "dev", INTERFACE, "parent", "1:", "protocol", "ip")
            _run(*tc, *add, "prio", "1", *match)

    def _make(self) -> None:
        self._namespace(BRIDGE)
        _run("ip", "-n", self._name(BRIDGE), "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self._name(BRIDGE), "link", "set", "br0", "up")
        for rank in range(self._ranks):
            self._namespace(rank)
            bridge, own, port = self._name(BRIDGE), self._name(rank), f"port{rank}"
            ends = ("type", "veth", "peer", "name", port, "netns", bridge)
            _run("ip", "link", "add", INTERFACE, "netns", own, *ends)
            _run("ip", "-n", bridge, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", own, "addr", "add", f"{self._address(rank)}/24", "dev", INTERFACE)
            _run("ip", "-n", own, "link", "set", INTERFACE, "up")
            _run("ip", "-n", own, "link", "set", "lo", "up")

    def _namespace(self, what: object) -> None:
        _run("ip", "netns", "add", self._name(what))
        self._made.append(self._name(what))

    def _remove(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False)

    def _name(self, what: object) -> str:
        return f"{self._prefix}{what}"

    @staticmethod
    def _address(rank: int) -> str:
        return f"10.77.0.{rank + 1}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _call(done: int) -> None:
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter() -> None:
    """Enter this rank's namespace, on a host called node RANK."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{os.environ[NAMESPACE]}") as namespace:
        _call(libc.setns(namespace.fileno(), CLONE_NEWNET))
    _call(libc.unshare(CLONE_NEWUTS))
    socket.sethostname(f"node{os.environ['RANK']}")


if __name__ == "__main__":
    enter()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
