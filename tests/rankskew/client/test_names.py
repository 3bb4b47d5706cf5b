"""Addresses become names where the exporter there has told one."""

from rankskew.client.prometheus import Prometheus, Sample, names_of_nodes, with_names
from tests.rankskew.top.fake_prometheus import FakePrometheus, Series, series


def named(instance: str, nodename: str, cluster: str = "eu") -> Series:
    where = {"instance": instance, "cluster": cluster, "job_id": ""}
    return series("rankskew_exporter_build_info", nodename=nodename, **where)


def test_names_are_those_of_the_cluster() -> None:
    """Private addresses are the same in every cluster; whoever has relabelled one knows better."""
    known = [named("10.0.0.5:9917", "gpu-5"), named("10.0.0.5:9917", "other", cluster="us")]
    with FakePrometheus([*known, named("gpu-5:9917", "ip-10-0-0-5", "us")]).serve() as url:
        assert names_of_nodes(Prometheus(url), 'cluster="us"') == {("us", "10.0.0.5:9917"): "other"}


def test_only_addresses_are_asked_for() -> None:
    """Whoever relabels instance pays no query, and an address without a name stays."""
    prometheus = FakePrometheus([named("10.0.0.5:9917", "gpu-5"), named("[fd00::6]:9917", "gpu-6")])
    instances = ("gpu-1:9917", "10.0.0.5:9917", "[fd00::6]:9917", "10.0.0.7:9917", "")
    samples = [Sample("s", {"cluster": "eu", "instance": each}, 1.0) for each in instances]
    with prometheus.serve() as url:
        found = with_names(Prometheus(url), samples)
        assert with_names(Prometheus(url), samples[:1]) == samples[:1]

    assert [each["instance"] for each in found] == [
        "gpu-1:9917",
        "gpu-5",
        "gpu-6",
        "10.0.0.7:9917",
        "",
    ]
    (query,) = prometheus.asked
    assert query.startswith("last_over_time(rankskew_exporter_build_info{instance=~")
    assert "5:9917|" in query
    assert "gpu-1" not in query
