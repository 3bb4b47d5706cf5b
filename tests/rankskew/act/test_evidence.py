"""What Prometheus says of a node is read as the policy wants it."""

import pytest

from rankskew.act.evidence import NodeEvidence
from rankskew.act.model import Node, Seen
from rankskew.client.prometheus import Prometheus
from rankskew.report.times import seconds
from tests.rankskew.act.fake_site import FakeSite
from tests.rankskew.act.nodes import HOUR, NOW

N1 = Node("", "n1:9917")


def minutes(begin: float, end: float) -> tuple[float, float]:
    """Return a span between so many minutes ago."""
    return NOW - 60 * begin, NOW - 60 * end


def look(site: FakeSite, node: Node = N1) -> Seen:
    with site.serve() as url:
        return NodeEvidence(Prometheus(url), 24 * HOUR).of(node, NOW)


def test_alert_is_an_episode_with_the_cause_that_it_had_longest() -> None:
    """Severity and cause may change while it lasts; a short break does not end it."""
    site = FakeSite()
    site.late(minutes(90, 80), cause="unknown", detail="")
    site.late(minutes(80, 30), minutes(25, 0))
    (episode,) = look(site).episodes

    assert (episode.cause, episode.detail) == ("slow_device", "clocks")
    assert seconds(episode.spans) == pytest.approx(85 * 60, abs=60)
    assert (episode.job_id, episode.place) == ("llama", "rank 9 on n1:9917")


def test_two_ranks_of_a_node_at_once_are_late_once() -> None:
    """Eight ranks that share a cause are not eight times."""
    site = FakeSite()
    for rank in ("8", "9"):
        site.late(minutes(60, 50), minutes(5, 0), rank=rank)
    found = look(site).episodes

    assert [round(seconds(each.spans) / 60) for each in found] == [10, 5]
    assert [len(each.incidents) for each in found] == [2, 2]


def test_cause_of_the_job_is_not_counted_with_one_of_the_node() -> None:
    """A rank that waits for its input does not make the slow GPU beside it last longer."""
    site = FakeSite()
    site.late(minutes(300, 0), rank="8", cause="input", detail="nfs")
    site.late(minutes(20, 0))
    found = {each.cause: round(seconds(each.spans) / 60) for each in look(site).episodes}

    assert found == {"input": 300, "slow_device": 20}


def test_detail_is_that_of_the_rank() -> None:
    """A late rank beside it may have the same cause for another reason."""
    site = FakeSite()
    site.late(minutes(20, 0), cause="cpu", detail="thermal")
    site.late(minutes(200, 0), cause="cpu", detail="run_queue", rank="8")
    found = {(each.cause, each.detail) for each in look(site).episodes}

    assert found == {("cpu", "thermal"), ("cpu", "run_queue")}


def test_slow_node_has_the_detail_of_its_ranks() -> None:
    """Its alert names no rank."""
    site = FakeSite()
    site.late(minutes(20, 0), alert="RankskewSlowNode", rank="", cause="cpu", detail="thermal")
    (episode,) = look(site).episodes

    assert (episode.detail, episode.place) == ("thermal", "n1:9917")


def test_names_jobs_and_cluster_are_told() -> None:
    """Whatever the instances are called; a job that runs elsewhere does not matter."""
    site = FakeSite()
    site.node("n1", "llama", "bert", instance="10.0.0.1:9917")
    site.node("n2", "llama", instance="10.0.0.2:9917")
    site.node("", "gpt", instance="n3:9917")
    found = look(site, Node("", "10.0.0.1:9917"))

    assert found.name == "n1"
    assert found.jobs == {"llama": {"n1", "n2"}, "bert": {"n1"}}
    assert found.pools == {"cluster": {"n1", "n2", "n3"}}


def test_other_clusters_are_others() -> None:
    """Of one Prometheus for several."""
    site = FakeSite()
    site.late(minutes(20, 0), cluster="us")

    assert look(site, Node("eu", "n1:9917")).episodes == []
    assert len(look(site, Node("us", "n1:9917")).episodes) == 1


def test_time_in_which_it_was_judged_is_told() -> None:
    site = FakeSite()
    site.add("rankskew_job_coverage_ratio", minutes(90, 60), minutes(30, 0), instance="n1:9917")

    assert seconds(look(site).judged) == pytest.approx(HOUR, abs=120)
