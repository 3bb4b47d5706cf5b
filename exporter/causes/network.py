"""Causes: the network of the rank's node."""

from functools import partial
from typing import Final

from exporter.causes.model import BLOCKED, GPU, SOCKET
from exporter.causes.row import CauseRow, Certainty
from exporter.causes.shares import has_less, has_more
from exporter.causes.tokens import LUSTRE, NFS, NOT_KNOWN, OTHER_MOUNT, both, on, worker

NETWORK: Final = "network"
# A port that falls back has half of its speed or less.
SLOWER: Final = 0.9
# A healthy fabric has a few errors an hour.
ERRORS_PER_SECOND: Final = 1.0
# A healthy network has 0.0001; from 0.01 on a stream is down to some 100 MB/s.
RETRANSMITTED: Final = 0.01
# A port that waits a tenth as long as it sends: one of eight has half its rate.
WAITING: Final = 0.1
# States of a thread that waits for the network, perhaps through its GPU or a file system.
WAITS: Final = both(SOCKET, BLOCKED, GPU, on(NFS), on(LUSTRE), on(OTHER_MOUNT), on(NOT_KNOWN))

_of_node = partial(
    CauseRow,
    cause=NETWORK,
    certainty=Certainty.NODE,
    states=WAITS,
    proof=frozenset({SOCKET, worker(SOCKET)}),
    healthy=0.0,
)
# A slow port explains the counts on it, so it comes first.
ROWS: Final = (
    _of_node(
        detail="speed",
        figure="node_network_link_bytes_per_second",
        share=has_less(SLOWER),
        lowers=True,
        says="a network port of its node[, {fact},] runs at {own}, its peers' at {peers}",
        before="a network port[, {fact},] runs at {own}, before at {peers}",
        first_action="`ibstat` on NODE, and `ethtool DEVICE | grep -e Speed -e Link`",
    ),
    _of_node(
        detail="errors",
        figure="node_network_errors_per_second",
        share=has_more(ERRORS_PER_SECOND),
        says="its node's network[, {fact},] has an error rate of {own}[, its peers' {peers}]",
        before="the network[, {fact},] has an error rate of {own}, before {peers}",
        first_action="`ibstat` and `ip -s link` on NODE: which port counts errors or drops?",
    ),
    _of_node(
        detail="retransmits",
        figure="node_tcp_retransmitted_ratio",
        share=has_more(RETRANSMITTED),
        says="its node retransmits {own} of its TCP segments[, its peers' {peers}]",
        before="the node retransmits {own} of its TCP segments, before {peers}",
        first_action="`ss -tinp | grep -B1 retrans` on NODE: to all peers, or to one?",
    ),
    _of_node(
        detail="congestion",
        figure="node_network_waiting_ratio",
        share=has_more(WAITING),
        says="its node's network ports[, {fact},] wait to send {own} of the time"
        "[, its peers' {peers}]",
        before="network ports[, {fact},] wait to send {own} of the time, before {peers}",
        first_action="`grep . /sys/class/infiniband/*/ports/*/counters/port_xmit_wait` on NODE, "
        "twice",
    ),
)
