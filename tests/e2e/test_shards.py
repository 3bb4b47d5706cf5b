"""A job whose nodes are shared by three Prometheus is alerted on as if one scraped them all."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from demo.process import wait_for
from demo.stack import Prometheus, Simulation
from tests.e2e.shards import SHARDS, above, shard, single

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NODES, GPUS = 6, 2
LATE, HUNG = "east", "west"
LATE_RANK, STUCK_RANK = "3", "8"
MOST_OF_A_SHARD, MOST_OF_A_LATE_RANK = 48, 32
PATIENCE_SECONDS: Final = 60.0
Labels = frozenset[tuple[str, str]]
# Times change from scrape to scrape, and the global Prometheus has none of the rank's peers.
TIMES: Final = re.compile(r" backward \d+ ms( vs \d+ ms)?| Slow in backward")


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
    """Return the alerts of the global Prometheus and of the shards, as an Alertmanager does."""
    return alerts(state, both.whole, *both.shards)


def settled(both: Both) -> tuple[dict[Labels, dict[str, Any]], dict[Labels, dict[str, Any]]]:
    """Return what fires with shards and without, once the straggler and the hang do."""

    def found() -> Any:
        whole, one = of_shards(both), alerts("firing", both.single)
        told = [dict(labels) for labels in (*whole, *one)]
        done = all("rank" in labels and labels.get("cause") != "unknown" for labels in told)
        return (whole, one) if done and len(told) == 4 else None

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
    settled(both)
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
    # A text has what comes from elsewhere, such as the price, perhaps an evaluation later.
    assert wait_for(
        lambda: "GPU 1, PID" in text_of(name, "facts", of_shards(both)) or None, PATIENCE_SECONDS
    )
    for part in ("facts", "first", "headline"):

        def told(part: str = part) -> list[str]:
            return [TIMES.sub("", text_of(name, part, found)) for found in settled(both)]

        wait_for(lambda told=told: len(set(told())) == 1 or None, PATIENCE_SECONDS)  # type: ignore[misc]
        assert len(set(told())) == 1, told()


def test_jobs_of_one_name_in_two_clusters_are_never_mixed(both: Both) -> None:
    """One rank is late in one cluster, and one is stuck in the other: two alerts, two costs."""
    whole, _ = settled(both)

    told = {(found["alertname"], found["cluster"], found["rank"]) for found in map(dict, whole)}
    assert told == {("RankskewStraggler", LATE, LATE_RANK), ("RankskewJobHung", HUNG, STUCK_RANK)}
    for expression in ("job:rankskew_state:info", "job_kind:rankskew_gpus_lost:sum > 1"):

        def of(prometheus: Prometheus, asked: str = expression) -> list[list[tuple[str, str]]]:
            return sorted(sorted(one.labels.items()) for one in prometheus.query(asked))

        wait_for(lambda: True if of(both.whole) == of(both.single) else None, PATIENCE_SECONDS)
        assert of(both.whole) == of(both.single)


def test_few_series_travel(both: Both) -> None:
    """Of a job with a judge: two per node, and dozens per shard and late rank, not per rank."""
    settled(both)

    def travelled(labels: str) -> float:
        return both.whole.value(f'count({{shard!="",cluster="{LATE}",{labels}}})') or 0.0

    assert travelled('rank="",instance!=""') == 2 * NODES
    assert travelled('rank="",instance=""') <= MOST_OF_A_SHARD * SHARDS
    assert 0 < travelled(f'rank="{LATE_RANK}"') <= MOST_OF_A_LATE_RANK
    # Its neighbour's GPU is compared with its own.
    assert travelled(f'rank!~"|{LATE_RANK}"') <= 2


def test_lost_shard_is_told(both: Both) -> None:
    """The shard of the late rank is told as down, and its ranks as missing from both jobs."""
    settled(both)
    [lost] = [each for each in both.shards if each.query("rankskew_late_ratio")]
    lost.kill()
    expected = {
        ("RankskewExporterDown", "shard", ""),
        ("RankskewRanksMissing", "unseen", LATE),
        ("RankskewRanksMissing", "unseen", HUNG),
    }

    def told() -> set[tuple[str, str, str]]:
        return {
            (found["alertname"], found.get("state", ""), found.get("cluster", ""))
            for found in map(dict, alerts("pending", both.whole))
        }

    wait_for(lambda: True if expected <= told() else None, PATIENCE_SECONDS, every=0.5)
    assert expected <= told()
