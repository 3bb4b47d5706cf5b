"""Node InfiniBand: bytes, errors, congestion and rate of each InfiniBand and RoCE port."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts
from exporter.past import Sum
from rank_probe.process.small_files import names_in, number_in, text_of

# The port counts data in words of 4 bytes, on RoCE too (Linux: ABI/stable/sysfs-class-infiniband).
WORD_BYTES: Final = 4
BYTES_PER_GIGABIT: Final = 1e9 / 8
# The byte counters. Before Linux 4.5 the 64-bit counters were in a folder of their own, and the
# others stopped at 16 GiB.
RECEIVED: Final = ("counters_ext/port_rcv_data_64", "counters/port_rcv_data")
SENT: Final = ("counters_ext/port_xmit_data_64", "counters/port_xmit_data")
# A bad link or lost packets. Not included: congestion (port_xmit_wait), events that are normal on
# a fabric (VL15_dropped, port_rcv_switch_relay_errors) and wrong partitions (*_constraint_errors).
ERRORS: Final = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/port_xmit_discards",
    # On RoCE the counters above stay at 0, but these count retransmitted packets.
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
)
# Congestion of a RoCE port (mlx5): marked packets received, and requests to send more slowly; lost
# packets arrive out of sequence. An InfiniBand port waits to send instead.
CONGESTION: Final = (
    "hw_counters/np_ecn_marked_roce_packets",
    "hw_counters/np_cnp_sent",
    "hw_counters/rp_cnp_handled",
    "hw_counters/out_of_sequence",
)
WAITS: Final = ("counters/port_xmit_wait",)


class NodeInfinibandCollector:
    """Expose each port of the node's RDMA devices; a missing reading has no series.

    Virtual functions are left out: there may be hundreds, and they share their device's port. The
    error counters are narrow, some only 8 bits: they stop at their maximum until they are reset.
    """

    name = "node_infiniband"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts) -> None:
        self._folder = mounts.sysfs / "class" / "infiniband"
        self._sums: dict[tuple[Path, tuple[str, ...]], Sum] = {}

    def collect(self) -> Iterator[Metric]:
        families = received, sent, errors, rate = _families()
        for labels, port in self._ports():
            _add(received, labels, _data_bytes(port, RECEIVED))
            _add(sent, labels, _data_bytes(port, SENT))
            _add(errors, labels, self._sum_of(port, ERRORS))
            is_ethernet = text_of(port / "link_layer") == "Ethernet"
            self._sum_of(port, CONGESTION if is_ethernet else WAITS)
            _add(rate, labels, _rate_bytes_per_second(port))
        yield from families
        yield from _congestion(self._known_sums(WAITS), self._known_sums(CONGESTION))

    def _ports(self) -> list[tuple[list[str], Path]]:
        """Return the labels and the folder of each port."""
        return [
            ([device, port], self._folder / device / "ports" / port)
            for device in names_in(self._folder)
            if not (self._folder / device / "device" / "physfn").exists()
            for port in names_in(self._folder / device / "ports")
        ]

    def _sum_of(self, port: Path, files: tuple[str, ...]) -> int | None:
        found = {file: count for file in files if (count := number_in(port / file)) is not None}
        if found:
            self._sums.setdefault((port, files), Sum()).add(found)
        known = self._sums.get((port, files))
        return known.total if known else None

    def _known_sums(self, files: tuple[str, ...]) -> list[int]:
        """Return the last sum of each port, of those that are gone too."""
        return [known.total for (_, of), known in self._sums.items() if of == files]


def _data_bytes(port: Path, files: tuple[str, ...]) -> int | None:
    counts = (number_in(port / file) for file in files)
    words = next((count for count in counts if count is not None), None)
    return None if words is None else words * WORD_BYTES


def _rate_bytes_per_second(port: Path) -> float | None:
    state = text_of(port / "state")  # For example "4: ACTIVE".
    rate = re.match(r"([0-9.]+) Gb/sec", text_of(port / "rate") or "")  # "400 Gb/sec (4X NDR)".
    if state is None or rate is None:
        return None
    # A port that is down still reports a rate, its lowest.
    return float(rate[1]) * BYTES_PER_GIGABIT if state.endswith(": ACTIVE") else 0.0


def _add(
    family: CounterMetricFamily | GaugeMetricFamily, labels: list[str], value: float | None
) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _congestion(waits: Sequence[int], events: Sequence[int]) -> Iterator[CounterMetricFamily]:
    # Not by port: eight more series would take a node without room over its budget.
    waited = CounterMetricFamily(
        "rankskew_infiniband_transmit_wait_total",
        "Ticks for which InfiniBand ports had data to send and could not, because of congestion, "
        "all ports together (port_xmit_wait in /sys, read every 5 s). A tick is the time to send "
        "some bytes, 8 on most devices.",
    )
    congested = CounterMetricFamily(
        "rankskew_infiniband_congestion_events_total",
        "Signs of congestion on RoCE ports, all ports together: the sum of the counters "
        f"{', '.join(Path(file).name for file in CONGESTION)}, if they have them (/sys, read every "
        "5 s).",
    )
    for family, counts in ((waited, waits), (congested, events)):
        if counts:
            family.add_metric([], sum(counts))
        yield family


def _families() -> tuple[
    CounterMetricFamily, CounterMetricFamily, CounterMetricFamily, GaugeMetricFamily
]:
    labels = ["device", "port"]
    return (
        CounterMetricFamily(
            "rankskew_infiniband_receive_bytes_total",
            "Bytes received by the InfiniBand or RoCE port (4 x port_rcv_data in /sys, read every "
            "5 s).",
            labels=labels,
        ),
        CounterMetricFamily(
            "rankskew_infiniband_transmit_bytes_total",
            "Bytes sent by the InfiniBand or RoCE port (4 x port_xmit_data in /sys, read every "
            "5 s).",
            labels=labels,
        ),
        CounterMetricFamily(
            "rankskew_infiniband_errors_total",
            "Link errors and lost packets of the port: the sum of the counters "
            f"{', '.join(Path(file).name for file in ERRORS)}, if the port has them (/sys, read "
            "every 5 s).",
            labels=labels,
        ),
        GaugeMetricFamily(
            "rankskew_infiniband_rate_bytes_per_second",
            "Rate of the port's link in each direction, in bytes per second; 0 while the port is "
            "not active (rate and state in /sys, read every 5 s).",
            labels=labels,
        ),
    )
