"""The network interfaces that the job's sockets use, and the InfiniBand and RoCE ports."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from rank_probe.audit.readings.facts import Interface, Port
from rank_probe.audit.readings.files import NodeMounts, text_of
from rank_probe.process.small_files import names_in, number_in

# Variables that choose interfaces by name.
CHOOSERS: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
DEFAULT_ROUTE: Final = "the default route"
# A node of many pods has a thousand interfaces, and a job uses a few.
MOST_INTERFACES: Final = 16
MOST_PORTS: Final = 64


def interface_names(mounts: NodeMounts) -> tuple[str, ...]:
    """Return the names of the first interfaces of this network namespace."""
    return tuple(names_in(mounts.sysfs / "class/net")[:MOST_INTERFACES])


def interfaces(mounts: NodeMounts, environment: Mapping[str, str]) -> Iterator[Interface]:
    """Yield the interfaces that a variable chooses, and that of the default route if none does."""
    names = names_in(mounts.sysfs / "class/net")
    chosen = {
        chooser: matching(environment[chooser], names, by_prefix=chooser.startswith("NCCL"))
        for chooser in CHOOSERS
        if environment.get(chooser)
    }
    chosen = chosen or {DEFAULT_ROUTE: [name for name in names if name == _default(mounts)]}
    for chooser, found in chosen.items():
        for name in found[:MOST_INTERFACES]:
            folder = mounts.sysfs / "class/net" / name
            mtu = number_in(folder / "mtu")
            if mtu is not None:
                yield Interface(name, mtu, text_of(folder / "operstate") == "down", chooser)


def matching(chosen: str, names: list[str], by_prefix: bool) -> list[str]:
    """Return those of *names* that *chosen* means, as NCCL or, not *by_prefix*, gloo reads it.

    NCCL takes prefixes; = makes them whole names and ^ excludes them, without loopback and docker.
    """
    if not by_prefix:
        return [name for name in names if name in chosen.split(",")]
    excluded, exact = chosen.startswith("^"), chosen.lstrip("^").startswith("=")
    wanted = [word for word in chosen.lstrip("^=").split(",") if word]
    found = {
        name
        for name in names
        for word in wanted
        if (name == word.partition(":")[0] if exact else name.startswith(word))
    }
    if not excluded:
        return [name for name in names if name in found]
    return [name for name in names if name not in found and not name.startswith(("lo", "docker"))]


def ports(mounts: NodeMounts) -> Iterator[Port]:
    """Yield the ports of the RDMA devices, without those of virtual functions."""
    folder = mounts.sysfs / "class/infiniband"
    found = [
        (device, port, folder / device / "ports" / port)
        for device in names_in(folder)
        if not (folder / device / "device/physfn").exists()
        for port in names_in(folder / device / "ports")
    ]
    for device, port, files in found[:MOST_PORTS]:
        rate = re.match(r"([0-9.]+) Gb/sec", text_of(files / "rate"))
        state = text_of(files / "state")  # For example "4: ACTIVE".
        if rate and state:
            layer = text_of(files / "link_layer")
            yield Port(device, port, layer, state.endswith(": ACTIVE"), float(rate[1]))


def _default(mounts: NodeMounts) -> str:
    """Return the interface of the default route with the lowest metric; empty without one."""
    routes = []
    for line in text_of(mounts.procfs / "net/route").splitlines()[1:]:
        columns = line.split()
        if len(columns) > 7 and columns[1] == "00000000" and columns[7] == "00000000":
            routes.append((int(columns[6]), columns[0]))
    return min(routes)[1] if routes else ""
