"""The interfaces of the job's sockets, and its InfiniBand and RoCE ports: there, up, and alike."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rank_probe.audit.facts import Facts, Interface, NodeMounts, Port, text_of
from rank_probe.audit.findings import (
    AuditFinding,
    Launch,
    comma_list,
    fail,
    grouped,
    majority,
    not_checked,
    ok,
    warn,
)
from rank_probe.process.small_files import names_in, number_in

# Variables that choose interfaces by name.
CHOOSERS: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ADAPTERS: Final = "NCCL_IB_HCA"
DEFAULT_ROUTE: Final = "the default route"
# A node of many pods has a thousand interfaces, and a job uses a few.
MOST_INTERFACES: Final = 16
MOST_PORTS: Final = 64
SAME: Final = (
    "ip link set DEVICE mtu NUMBER, the same on all nodes and switches: with different ones large "
    "packets are split or lost"
)
REMOVE: Final = f"set {ADAPTERS} to adapters that ibv_devices shows on every node, or leave it out"


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
    """Return the *names* that *chosen* selects: with *by_prefix* as NCCL reads it, else as gloo.

    NCCL matches prefixes; = matches whole names, ^ selects the rest but for loopback and docker.
    """
    if not by_prefix:
        return [name for name in names if name in chosen.split(",")]
    excluded, exact = chosen.startswith("^"), chosen.lstrip("^").startswith("=")
    wanted = [word for word in chosen.lstrip("^=").split(",") if word]
    found = {name for name in names for word in wanted if _means(word, name, exact)}
    if not excluded:
        return [name for name in names if name in found]
    return [name for name in names if name not in found and not name.startswith(("lo", "docker"))]


def _means(word: str, name: str, exact: bool) -> bool:
    """Whether *word* means *name*; either may end with a port, as in mlx5_0:1."""
    chosen, _, wanted = word.partition(":")
    device, _, port = name.partition(":")
    is_it = device == chosen if exact else device.startswith(chosen)
    return is_it and wanted in ("", port or wanted)


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


def socket_interface(launch: Launch) -> Iterator[AuditFinding]:
    """Name the nodes on which a variable chooses no interface, or one that is down."""
    choices = grouped(
        launch.facts, lambda facts: (facts.machine, *map(facts.settings.get, CHOOSERS))
    )
    for facts, *_ in choices.values():
        for chooser in CHOOSERS:
            value = facts.settings.get(chooser)
            if value and not any(one.chosen_by == chooser for one in facts.interfaces):
                yield fail(
                    f"{chooser}={value} names no interface of {facts.node} (rank {facts.rank}), "
                    f"which has {comma_list(facts.interface_names)}",
                    f"set {chooser} to the interface between the nodes, or leave it out",
                )
        for one in facts.interfaces:
            if one.is_down:
                yield fail(
                    f"{one.name} of {facts.node} is down (chosen by {one.chosen_by})",
                    f"ip link set {one.name} up, or choose another with {' and '.join(CHOOSERS)}",
                )
    if not any(facts.settings.get(chooser) for facts in launch.facts for chooser in CHOOSERS):
        yield not_checked(f"neither {' nor '.join(CHOOSERS)} is set")
    yield ok("the chosen interfaces exist and are up")


def mtu(launch: Launch) -> Iterator[AuditFinding]:
    """Name the nodes whose interfaces have another MTU than those of most nodes."""
    nodes = [machine[0] for machine in launch.machines() if machine[0].interfaces]
    if not nodes:
        yield not_checked("no interface is known: there is no default route, and none is chosen")
        return
    groups = grouped(
        nodes, lambda one: " and ".join(map(str, sorted({each.mtu for each in one.interfaces})))
    )
    told = {value: comma_list([facts.node for facts in who]) for value, who in groups.items()}
    usual = majority({facts.rank: value for value, who in groups.items() for facts in who})
    if usual is None:
        each = "; ".join(f"{value} on {who}" for value, who in told.items())
        yield warn(f"the MTU differs: {each}", SAME)
        return
    for value, who in told.items():
        if value != usual:
            yield warn(f"the MTU is {value} on {who}, and {usual} on most nodes", SAME)
    if not usual.isdecimal():
        yield warn(f"interfaces of one node have different MTUs: {usual}", SAME)
    yield ok(f"{usual} on all {len(nodes)} nodes" if len(nodes) > 1 else usual)


def infiniband(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ports that are down, or slower than most, and adapters that are missing."""
    nodes = [machine[0] for machine in launch.machines()]
    if all(facts.settings.get("NCCL_IB_DISABLE") == "1" for facts in nodes):
        yield not_checked("NCCL_IB_DISABLE=1 turns InfiniBand off")
        return
    if not any(facts.ports for facts in nodes):
        if any(facts.settings.get(ADAPTERS) for facts in nodes):
            yield fail(f"{ADAPTERS} is set, and there is no InfiniBand or RoCE port", REMOVE)
        else:
            yield not_checked("there is no InfiniBand or RoCE port")
        return
    used = [(facts, port) for facts in nodes for port in _used(facts)]
    counts = {index: len(_used(facts)) for index, facts in enumerate(nodes)}
    for index, facts in enumerate(nodes):
        if facts.settings.get(ADAPTERS) and not counts[index]:
            chosen = facts.settings[ADAPTERS]
            yield fail(f"{ADAPTERS}={chosen} names no port of {facts.node}", REMOVE)
    yield from _down(used)
    yield from _slow([(facts, port) for facts, port in used if port.is_active])
    usual = majority(counts)
    if odd := [index for index, count in counts.items() if usual is not None and count < usual]:
        yield fail(
            f"fewer ports than on most nodes, which have {usual}: "
            f"{comma_list([f'{nodes[index].node} ({counts[index]})' for index in odd])}",
            "look for an adapter that is missing in lspci or ibv_devices, or that the container "
            "does not get",
        )
    yield ok(f"{len(used)} ports are active and equally fast")


def _used(facts: Facts) -> list[Port]:
    """Return the ports that NCCL would take."""
    chosen = facts.settings.get(ADAPTERS)
    if not chosen:
        return list(facts.ports)
    by_name = {f"{port.device}:{port.number}": port for port in facts.ports}
    return [by_name[name] for name in matching(chosen, list(by_name), by_prefix=True)]


def _down(used: Sequence[tuple[Facts, Port]]) -> Iterator[AuditFinding]:
    active = {(port.device, port.number) for _, port in used if port.is_active}
    for facts, port in used:
        if not port.is_active:
            # A port that nothing is plugged into is down on every node.
            matters = (port.device, port.number) in active or facts.settings.get(ADAPTERS)
            yield (fail if matters else warn)(
                f"port {port.number} of {port.device} on {facts.node} is not active",
                f"look at ibstat {port.device}, the cable and the switch; if it is not meant for "
                f"the job, leave it out of {ADAPTERS}",
            )


def _slow(active: Sequence[tuple[Facts, Port]]) -> Iterator[AuditFinding]:
    for layer in sorted({port.layer for _, port in active}):
        alike = [(facts, port) for facts, port in active if port.layer == layer]
        usual = majority({index: port.rate for index, (_, port) in enumerate(alike)})
        slow = [
            f"{port.device} on {facts.node} ({port.rate:g} Gb/s)"
            for facts, port in alike
            if usual is not None and port.rate < usual
        ]
        if slow:
            yield warn(
                f"slower than most {layer} ports, which have {usual:g} Gb/s: {comma_list(slow)}",
                "look at the cable, the switch port and the width in ibstat; if the port is for "
                f"something else, leave it out of {ADAPTERS}",
            )
