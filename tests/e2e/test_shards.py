"""A job whose nodes are shared by three Prometheus is alerted on as if one scraped them all."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from alerts.build_shards import plan
from demo.process import wait_for
from demo.stack import Prometheus, Simulation
from tests.e2e.shards import SHARDS, above, shard, single

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NODES, GPUS = 6, 2
LATE, HUNG = "east", "west"
LATE_RANK, STUCK_RANK = "3", "8"
TRAVELLING: Final = "|".join(plan().travelling())
PATIENCE_SECONDS: Final = 60.0
Labels = frozenset[tuple[str, str]]
# What a text says of the time of the rank's peers, most of which the global Prometheus does not see.
OF_PEERS: Final = re.compile(r" vs \d+ ms")


@dataclass(frozen=True)
class Both:
    """The same nodes under shards and a global Prometheus, and under a single one."""

    shards: tuple[Prometheus, ...]
    whole: Prometheus
    single: Prometheus


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Two clusters with a job of one name: in one a rank is late, in the other one is stuck."""
    directory = tmp_path_factory.mktemp("shards")
    size = [f"--nodes={NODES}", f"--gpus={GPUS}"]
    with ExitStack() as parts:
        fleets = {
            LATE: [*size, "--fault=thermal:node=1,gpu=1"],
            HUNG: [*size, "--fault=hang:node=4,gpu=0"],
        }
        clusters = {
            name: parts.enter_context(Simulation(directory / name, asked)).discovery
            for name, asked in fleets.items()
        }
        shards = tuple(
            parts.enter_context(shard(directory / f"shard-{number}", number, clusters))
            for number in range(SHARDS)
        )
        whole = parts.enter_context(above(directory / "global", shards))
        yield Both(shards, whole, parts.enter_context(single(directory / "single", clusters)))


def alerts(state: str, *prometheus: Prometheus) -> dict[Labels, dict[str, Any]]:
    """Return the alerts in *state* by their labels; fails if there is one twice."""
    found = [
        alert for each in prometheus for alert in each.active_alerts() if alert["state"] == state
    ]
    by_labels = {frozenset(alert["labels"].items()): alert for alert in found}
    assert len(by_labels) == len(found), found
    return by_labels


def of_shards(both: Both, state: str = "firing") -> dict[Labels, dict[str, Any]]:
    """Return the alerts of the global Prometheus and of all shards, as an Alertmanager gets them."""
    return alerts(state, both.whole, *both.shards)


def settled(both: Both) -> tuple[dict[Labels, dict[str, Any]], dict[Labels, dict[str, Any]]]:
    """Return what fires with shards and without, once there are a straggler with a cause and a hang."""

    def found() -> Any:
        whole, one = of_shards(both), alerts("firing", both.single)
        causes = [dict(labels).get("cause", "slow_device") for labels in (*whole, *one)]
        done = causes == ["slow_device"] * 4
        return (whole, one) if done else None

    answer: Any = wait_for(found, PATIENCE_SECONDS, every=0.5)
    assert answer, (of_shards(both), alerts("firing", both.single))
    return answer  # type: ignore[no-any-return]  # wait_for cannot tell.


def value_of(name: str, found: dict[Labels, dict[str, Any]]) -> float:
    """Return the value of the one alert with that *name*."""
    [value] = [alert["value"] for labels, alert in found.items() if ("alertname", name) in labels]
    return float(value)


def text_of(name: str, part: str, found: dict[Labels, dict[str, Any]]) -> str:
    """Return a *part* of the text of the one alert with that *name*."""
    [text] = [
        alert["annotations"][part]
        for labels, alert in found.items()
        if ("alertname", name) in labels
    ]
    return str(text)


def test_every_shard_has_nodes_of_both_jobs(both: Both) -> None:
    """The rest of this file is about jobs of which no Prometheus but one sees all nodes."""
    for each in both.shards:
        nodes = {one.labels["cluster"]: one.value for one in each.query("count by (cluster) (up)")}
        assert nodes.keys() == {LATE, HUNG}
        assert all(0 < number < NODES for number in nodes.values())


def test_late_rank_is_the_alert_of_a_single_prometheus(both: Both) -> None:
    """One alert, with the same labels, the same GPUs lost, and a text with its GPU and process."""
    whole, one = settled(both)
    name = "RankskewStraggler"

    assert whole.keys() == one.keys()
    assert value_of(name, whole) == pytest.approx(value_of(name, one), rel=0.01)
    assert text_of(name, "facts", whole) == OF_PEERS.sub("", text_of(name, "facts", one))
    assert text_of(name, "first", whole) == text_of(name, "first", one)
    assert text_of(name, "headline", whole) == text_of(name, "headline", one)


def test_jobs_of_one_name_in_two_clusters_are_never_mixed(both: Both) -> None:
    """One rank is late in one cluster, and one is stuck in the other: two alerts, two costs."""
    whole, _ = settled(both)

    told = {(found["alertname"], found["cluster"], found["rank"]) for found in map(dict, whole)}
    assert told == {("RankskewStraggler", LATE, LATE_RANK), ("RankskewJobHung", HUNG, STUCK_RANK)}
    for expression in ("job:rankskew_state:info", "job_kind:rankskew_gpus_lost:sum > 1"):
        assert {
            tuple(sorted(one.labels.items())) for one in both.whole.query(expression)
        } == {tuple(sorted(one.labels.items())) for one in both.single.query(expression)}


def test_few_series_travel(both: Both) -> None:
    """Of a job with a judge: two per node, dozens per job and shard, dozens per late rank."""
    settled(both)
    asked = f'count({{shard!="",cluster="{LATE}",__name__=~"{TRAVELLING}"}})'
    per_rank = both.whole.value(asked.replace("{shard", '{rank!="",shard'))
    per_node = both.whole.value(asked.replace("{shard", '{rank="",instance!="",shard'))
    per_job = both.whole.value(asked.replace("{shard", '{rank="",instance="",shard'))
    assert (per_node, per_rank, per_job) == (2 * NODES, 0, 0)


def test_lost_shard_is_told(both: Both) -> None:
    """Its late rank is no longer paged; the shard is told as down, and its ranks as missing."""
    settled(both)
    [lost] = [each for each in both.shards if each.query("rankskew_late_ratio")]
    lost.kill()
    left = tuple(each for each in both.shards if each is not lost)

    def told() -> set[tuple[str, str, str]] | None:
        pending = alerts("pending", both.whole, *left)
        names = {
            (found["alertname"], found["state"], found.get("cluster", ""))
            for found in map(dict, pending)
        }
        gone = not [labels for labels in alerts("firing", both.whole) if ("cluster", LATE) in labels]
        return names if gone and len(names) == 3 else None

    assert wait_for(told, PATIENCE_SECONDS, every=0.5) == {
        ("RankskewExporterDown", "shard", ""),
        ("RankskewRanksMissing", "unseen", LATE),
        ("RankskewRanksMissing", "unseen", HUNG),
    }
