"""A report names the node that had an address when its alert fired."""

from collections.abc import Sequence

import pytest

from rankskew.client.prometheus import Prometheus
from rankskew.report.history import Grid, PastSeries
from rankskew.report.incidents import Firing, incidents
from rankskew.report.reported import with_names
from tests.rankskew.report.fake_history import FakeHistory, Written

T = 1_700_000_000.0
DAY = Grid(T, T + 86_400, 15)
ADDRESS = "10.0.0.5:9917"


def named(nodename: str, begin: float, end: float, cluster: str = "eu") -> Written:
    labels = {"cluster": cluster, "instance": ADDRESS, "nodename": nodename}
    return labels, [(T + begin, T + end)], 1.0


def places(known: Sequence[Written], *fired: tuple[str, float]) -> list[str]:
    """Return what the incidents of rank 3 on each instance, at each time, are called."""
    labels = {"alertname": "x", "cluster": "eu", "rank": "3"}
    firings = [
        Firing({**labels, "instance": instance}, [(T + at, T + at + 60)]) for instance, at in fired
    ]
    with FakeHistory({"rankskew_exporter_build_info": known}).serve() as url:
        found = with_names(PastSeries(Prometheus(url)), DAY, firings)
    return [each.place for each in incidents(found, 60)]


def test_name_of_the_time_and_cluster() -> None:
    """Minutes are enough to be found, and an address may go to another node."""
    known = [
        named("other", 0, 86_400, cluster="us"),
        named("gpu-7", 40_000, 86_400),
        named("gpu-5", 700, 800),
    ]
    found = places(known, (ADDRESS, 730), (ADDRESS, 50_000), (ADDRESS, 86_300))
    assert found == ["rank 3 on gpu-5", "rank 3 on gpu-7", "rank 3 on gpu-7"]
    # An exporter that nobody knew is named by its address.
    assert places([], (ADDRESS, 730)) == ["rank 3 on 10.0.0.5:9917"]


@pytest.mark.parametrize(
    "labels", [{"instance": "gpu-5"}, {"instance": ADDRESS, "nodename": "gpu-5"}]
)
def test_name_that_is_there_costs_no_query(labels: dict[str, str]) -> None:
    """Of whoever relabels, and of alerts on late ranks and faults, which have one."""
    history = FakeHistory({})
    firing = Firing({"alertname": "x", **labels}, [(T, T + 60)])
    with history.serve() as url:
        assert with_names(PastSeries(Prometheus(url)), DAY, [firing]) == [firing]
    assert history.asked == []
