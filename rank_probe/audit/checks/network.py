"""The network interfaces of the job's sockets: that they exist, and agree on the MTU."""

from collections.abc import Iterator, Sequence

from rank_probe.audit.checks.findings import AuditFinding, fail, names, not_checked, ok, warn
from rank_probe.audit.checks.launch import Launch, grouped, majority
from rank_probe.audit.readings.facts import Facts
from rank_probe.audit.readings.network import CHOOSERS


def socket_interface(launch: Launch) -> Iterator[AuditFinding]:
    """Name the nodes on which a variable chooses no interface, or one that is down."""
    choosing = [facts for facts in launch.facts if any(map(facts.settings.get, CHOOSERS))]
    for facts in _one_for_each_choice(choosing):
        for chooser in CHOOSERS:
            value = facts.settings.get(chooser)
            chosen = [one for one in facts.interfaces if one.chosen_by == chooser]
            if value and not chosen:
                yield fail(
                    f"{chooser}={value} names no interface of {facts.node} (rank {facts.rank}), "
                    f"which has {names(facts.interface_names)}",
                    f"set {chooser} to the interface between the nodes, or leave it out",
                )
    for facts in _one_for_each_choice(launch.facts):
        for one in facts.interfaces:
            if one.is_down:
                yield fail(
                    f"{one.name} of {facts.node} is down (chosen by {one.chosen_by})",
                    f"ip link set {one.name} up, or choose another with {' and '.join(CHOOSERS)}",
                )
    if not choosing:
        yield not_checked(f"neither {' nor '.join(CHOOSERS)} is set")
    yield ok("the chosen interfaces exist and are up")


def mtu(launch: Launch) -> Iterator[AuditFinding]:
    """Name the nodes whose interfaces have another MTU than those of most nodes."""
    nodes = [machine[0] for machine in launch.machines() if machine[0].interfaces]
    if not nodes:
        yield not_checked("no interface is known: there is no default route, and none is chosen")
        return
    groups = grouped(nodes, lambda facts: tuple(sorted({one.mtu for one in facts.interfaces})))
    told = {value: names([facts.node for facts in who]) for value, who in groups.items()}
    usual = majority({facts.rank: value for value, who in groups.items() for facts in who})
    if usual is None:
        each = [f"{_told(value)} on {who}" for value, who in told.items()]
        yield warn(f"the MTU differs: {'; '.join(each)}", SAME)
        return
    for value, who in told.items():
        if value != usual:
            yield warn(
                f"the MTU is {_told(value)} on {who}, and {_told(usual)} on most nodes", SAME
            )
    if len(usual) > 1:
        yield warn(f"interfaces of one node have different MTUs: {_told(usual)}", SAME)
    yield ok(f"{_told(usual)} on all {len(nodes)} nodes" if len(nodes) > 1 else _told(usual))


SAME = (
    "ip link set DEVICE mtu NUMBER, the same on all nodes and switches: with different ones large "
    "packets are split or lost"
)


def _told(mtus: tuple[int, ...]) -> str:
    return " and ".join(map(str, mtus))


def _one_for_each_choice(facts: Sequence[Facts]) -> list[Facts]:
    """Return one rank of each machine for each way in which its ranks choose."""
    return [
        group[0]
        for group in grouped(
            facts, lambda one: (one.machine, *map(one.settings.get, CHOOSERS))
        ).values()
    ]
