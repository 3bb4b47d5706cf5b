"""Two Prometheus that share the nodes of a job alert as one that scrapes them all would."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devstack.parts import PrometheusProcess, SimulationProcess
from devstack.process import wait_for
from tests.e2e.conftest import fast_rules

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
NODES, GPUS = 6, 2
LATE_RANK, STUCK_RANK = "3", "8"
PARTS: Final = 2
BEATING: Final = 'sum(rankskew_node_ranks{cluster="east",state="beating"})'
COVERAGE: Final = 'sum(job:rankskew_coverage:ratio{cluster="east"})'
# Without a cause, which simulated nodes may not have, a page waits for a minute.
PATIENCE_SECONDS: Final = 150.0


def part(directory: Path, number: int, clusters: dict[str, str]) -> PrometheusProcess:
    """Return part *number* of the nodes of *clusters*, divided as part.yaml does it."""
    directory.mkdir()
    rules = fast_rules(directory / "rules")
    (rules / "part_rules.yaml").write_text((DEPLOY / "part_rules.yaml").read_text())
    prometheus = PrometheusProcess(directory / "prometheus", interval_seconds=2.0, rules=rules)
    [shipped] = yaml.safe_load((DEPLOY / "part.yaml").read_text())["scrape_configs"]
    by_hash, keep = shipped["relabel_configs"]
    divided = [
        by_hash | {"modulus": PARTS, "source_labels": ["instance"]},
        keep | {"regex": str(number)},
    ]
    config = directory / "prometheus" / "prometheus.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["scrape_configs"] = [
        {
            "job_name": f"rankskew-{cluster}",
            "http_sd_configs": [{"url": url}],
            "relabel_configs": [{"target_label": "cluster", "replacement": cluster}, *divided],
        }
        for cluster, url in clusters.items()
    ]
    config.write_text(yaml.safe_dump(settings))
    return prometheus


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PrometheusProcess]]:
    """Two clusters with a job of one name: in one a rank is late, in the other one is stuck."""
    directory = tmp_path_factory.mktemp("parts")
    size = [f"--nodes={NODES}", f"--gpus={GPUS}"]
    faults = {"east": "thermal:node=1,gpu=1", "west": "hang:node=4,gpu=0"}
    with ExitStack() as running:
        clusters = {
            name: running.enter_context(
                SimulationProcess(directory / name, [*size, f"--fault={fault}"])
            ).discovery
            for name, fault in faults.items()
        }
        yield [
            running.enter_context(part(directory / f"part-{number}", number, clusters))
            for number in range(PARTS)
        ]


def firing(parts: list[PrometheusProcess], name: str) -> list[dict[str, Any]]:
    return [
        alert
        for each in parts
        for alert in each.active_alerts()
        if alert["state"] == "firing" and alert["labels"]["alertname"] == name
    ]


def test_late_rank_is_told_by_the_part_that_scrapes_it(parts: list[PrometheusProcess]) -> None:
    """Once, with its cost in GPUs of the whole job."""
    found = wait_for(lambda: firing(parts, "RankskewStraggler") or None, PATIENCE_SECONDS)

    assert found
    assert [(one["labels"]["cluster"], one["labels"]["rank"]) for one in found] == [
        ("east", LATE_RANK)
    ]
    assert f" of {NODES * GPUS} GPUs wait for it." in found[0]["annotations"]["summary"]


def test_hang_names_the_rank_on_the_part_that_scrapes_it(parts: list[PrometheusProcess]) -> None:
    """Both know that the job stands; the other one knows of no suspect."""

    def suspects() -> set[str] | None:
        found = {
            alert["labels"].get("rank", "")
            for alert in firing(parts, "RankskewJobHung")
            if alert["labels"]["cluster"] == "west"
        }
        return found if STUCK_RANK in found else None

    assert wait_for(suspects, PATIENCE_SECONDS) in ({STUCK_RANK}, {STUCK_RANK, ""})


def test_no_part_misses_the_ranks_of_the_other(parts: list[PrometheusProcess]) -> None:
    """Each scrapes only some of the nodes, and each says that the job is covered."""
    for each in parts:
        seen = wait_for(partial(each.value, BEATING), PATIENCE_SECONDS)
        assert seen is not None
        assert 0 < seen < NODES * GPUS
        assert wait_for(partial(each.value, COVERAGE), PATIENCE_SECONDS) == 1
        assert each.query("job:rankskew_ranks_missing:sum") == []
