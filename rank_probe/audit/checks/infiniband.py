"""InfiniBand and RoCE ports: down, or slower than the same kind of ports."""

from collections.abc import Iterator

from rank_probe.audit.checks.findings import AuditFinding, fail, names, not_checked, ok, warn
from rank_probe.audit.checks.launch import Launch, majority
from rank_probe.audit.readings.facts import Facts, Port
from rank_probe.audit.readings.network import matching

CHOOSER = "NCCL_IB_HCA"


def infiniband(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ports that are down, or slower than most, and adapters that are missing."""
    nodes = [machine[0] for machine in launch.machines()]
    if all(facts.settings.get("NCCL_IB_DISABLE") == "1" for facts in nodes):
        yield not_checked("NCCL_IB_DISABLE=1 turns InfiniBand off")
        return
    if not any(facts.ports for facts in nodes):
        if any(facts.settings.get(CHOOSER) for facts in nodes):
            yield fail(f"{CHOOSER} is set, and there is no InfiniBand or RoCE port", REMOVE)
            return
        yield not_checked("there is no InfiniBand or RoCE port")
        return
    used = {index: _used(facts) for index, facts in enumerate(nodes)}
    for index, facts in enumerate(nodes):
        if facts.settings.get(CHOOSER) and not used[index]:
            chosen = facts.settings[CHOOSER]
            yield fail(f"{CHOOSER}={chosen} names no port of {facts.node}", REMOVE)
    yield from _down(nodes, used)
    yield from _slow(nodes, used)
    yield from _fewer(nodes, used)
    yield ok(f"{sum(map(len, used.values()))} ports are active and equally fast")


REMOVE = f"set {CHOOSER} to adapters that ibv_devices shows on every node, or leave it out"


def _used(facts: Facts) -> list[Port]:
    """Return the ports that NCCL would take."""
    chosen = facts.settings.get(CHOOSER)
    if not chosen:
        return list(facts.ports)
    devices = matching(chosen, sorted({port.device for port in facts.ports}), by_prefix=True)
    return [port for port in facts.ports if port.device in devices]


def _down(nodes: list[Facts], used: dict[int, list[Port]]) -> Iterator[AuditFinding]:
    active = {
        (port.device, port.number) for ports in used.values() for port in ports if port.is_active
    }
    for index, ports in used.items():
        for port in ports:
            if port.is_active:
                continue
            # A port that nothing is plugged into is down on every node.
            matters = (port.device, port.number) in active or nodes[index].settings.get(CHOOSER)
            finding = fail if matters else warn
            yield finding(
                f"port {port.number} of {port.device} on {nodes[index].node} is not active",
                f"look at ibstat {port.device}, the cable and the switch; if it is not meant for "
                f"the job, leave it out of {CHOOSER}",
            )


def _slow(nodes: list[Facts], used: dict[int, list[Port]]) -> Iterator[AuditFinding]:
    everything = [
        (nodes[index], port) for index, ports in used.items() for port in ports if port.is_active
    ]
    for layer in sorted({port.layer for _, port in everything}):
        rates = {i: port.rate for i, (_, port) in enumerate(everything) if port.layer == layer}
        usual = majority(rates)
        slow = [i for i, rate in rates.items() if usual is not None and rate < usual]
        if slow:
            told = [
                f"{port.device} on {facts.node} ({port.rate:g} Gb/s)"
                for facts, port in (everything[i] for i in slow)
            ]
            yield warn(
                f"slower than most {layer} ports, which have {usual:g} Gb/s: {names(told)}",
                "look at the cable, the switch port and the width in ibstat; if the port is for "
                f"something else, leave it out of {CHOOSER}",
            )


def _fewer(nodes: list[Facts], used: dict[int, list[Port]]) -> Iterator[AuditFinding]:
    counts = {index: len(ports) for index, ports in used.items()}
    usual = majority(counts)
    odd = [index for index, count in counts.items() if usual is not None and count < usual]
    if odd:
        yield fail(
            f"fewer ports than on most nodes, which have {usual}: "
            f"{names([f'{nodes[index].node} ({counts[index]})' for index in odd])}",
            "look for an adapter that is missing in lspci or ibv_devices, or that the container "
            "does not get",
        )
