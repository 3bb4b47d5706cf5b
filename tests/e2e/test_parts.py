"""Two Prometheus that share the nodes of a job alert as one that scrapes them all would."""

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


def firing(parts: list[PrometheusProcess], name: str) -> list[dict[str, Any]]:
    return [
        alert
        for each in parts
        for alert in each.active_alerts()
        if alert["state"] == "firing" and alert["labels"]["alertname"] == name
    ]


def test_parts_alert_as_one_would(tmp_path: Path) -> None:
    """A late and a stuck rank are named in the right cluster, though their jobs share a name."""
    size = [f"--nodes={NODES}", f"--gpus={GPUS}"]
    faults = {"east": "thermal:node=1,gpu=1", "west": "hang:node=4,gpu=0"}
    with ExitStack() as running:
        clusters = {
            name: running.enter_context(
                SimulationProcess(tmp_path / name, [*size, f"--fault={fault}"])
            ).discovery
            for name, fault in faults.items()
        }
        parts = [
            running.enter_context(part(tmp_path / f"part-{number}", number, clusters))
            for number in range(PARTS)
        ]

        def suspects() -> set[str] | None:
            hung = [alert["labels"] for alert in firing(parts, "RankskewJobHung")]
            found = {each.get("rank", "") for each in hung if each["cluster"] == "west"}
            return found if STUCK_RANK in found else None

        # By the part that scrapes it, once, with its cost in GPUs of the whole job.
        late = wait_for(lambda: firing(parts, "RankskewStraggler") or None, PATIENCE_SECONDS)
        assert late
        named = [(each["labels"]["cluster"], each["labels"]["rank"]) for each in late]
        assert named == [("east", LATE_RANK)]
        assert f" of {NODES * GPUS} GPUs wait for it." in late[0]["annotations"]["summary"]
        # Both parts see the hang; the one that does not scrape the stuck rank has no suspect.
        assert wait_for(suspects, PATIENCE_SECONDS) in ({STUCK_RANK}, {STUCK_RANK, ""})
        # Each scrapes only some of the nodes, and misses no rank of the others.
        for each in parts:
            seen = wait_for(partial(each.value, BEATING), PATIENCE_SECONDS)
            assert seen is not None
            assert 0 < seen < NODES * GPUS
            assert wait_for(partial(each.value, COVERAGE), PATIENCE_SECONDS) == 1
            assert each.query("job:rankskew_ranks_missing:sum") == []
