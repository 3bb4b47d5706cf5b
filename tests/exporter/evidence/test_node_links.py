"""Figures of the node's network, from the samples of its collectors."""

from collections.abc import Mapping

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.evidence.node import NodeReadings
from exporter.scrape.sampling import CollectorRun

LINK = "node_network_link_bytes_per_second"
Ports = Mapping[tuple[str, str], float]


def ports(rates: Ports) -> Metric:
    """Return the rates of InfiniBand ports, by device and port."""
    family = GaugeMetricFamily(
        "rankskew_infiniband_rate_bytes_per_second", "", labels=["device", "port"]
    )
    for port, rate in rates.items():
        family.add_metric(list(port), rate)
    return family


def devices(speeds: Mapping[str, float], sent: Mapping[str, float]) -> list[Metric]:
    """Return the speeds of network devices, and what they have sent."""
    speed = GaugeMetricFamily("rankskew_node_network_speed_bytes_per_second", "", labels=["device"])
    total = CounterMetricFamily("rankskew_node_network_transmit_bytes_total", "", labels=["device"])
    for family, values in ((speed, speeds), (total, sent)):
        for device, value in values.items():
            family.add_metric([device], value)
    return [speed, total]


def read(collector: str, *moments: list[Metric]) -> tuple[float | None, str | None]:
    """Return the speed and the name of the link after these samples, five seconds apart."""
    latest: dict[str, CollectorRun] = {}
    node, link = NodeReadings(latest.get), None
    for at, families in enumerate(moments):
        latest[collector] = CollectorRun(tuple(families), True, 0.0, 100.0 + 5 * at)
        found = {name: (amount, weight) for name, amount, weight in node.read()}
        if LINK in found:
            link = found[LINK][0] / found[LINK][1]
    return link, node.facts.get(LINK)


def test_slowest_port_that_was_connected_is_the_link() -> None:
    """With its name, for who has to look at it."""
    before = {("mlx5_0", "1"): 50e9, ("mlx5_1", "1"): 50e9, ("mlx5_2", "1"): 0.0}
    after = {**before, ("mlx5_1", "1"): 12.5e9}

    assert read("node_infiniband", [ports(before)], [ports(after)]) == (12.5e9, "mlx5_1 port 1")


@pytest.mark.parametrize(
    ("sent", "link"),
    [({"eth0": 9.0, "eth1": 1.0}, (25e9, "eth0")), ({"eth0": 1.0, "eth1": 9.0}, (1e8, "eth1"))],
)
def test_device_that_sends_most_is_the_link(
    sent: dict[str, float], link: tuple[float, str]
) -> None:
    """Where there is no InfiniBand: a slow one for administrators says nothing of the job."""
    moment = devices({"eth0": 25e9, "eth1": 1e8}, {**sent, "lo": 99.0})

    assert read("node_network", moment, moment) == link


def test_node_whose_speeds_are_not_known_has_no_link() -> None:
    """A virtual device tells none."""
    moment = devices({}, {"eth0": 1.0})

    assert read("node_network", moment, moment) == (None, None)
