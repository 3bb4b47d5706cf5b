"""Three Prometheus that share the nodes, the global one above them, and one that scrapes all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.build_shards import DEPLOY, plan
from benchmarks.diagnose import fast_rules
from demo.stack import Prometheus
from exporter.shards import Part

SHARDS: Final = 3
INTERVAL_SECONDS: Final = 2.0
INTERVAL: Final = f"{INTERVAL_SECONDS:g}s"
# Each cluster is a simulated fleet, whose nodes are found at a URL.
Clusters = dict[str, str]


def load(name: str) -> Any:
    """Return a configuration that we ship."""
    return yaml.safe_load((DEPLOY / name).read_text())


def rules_of(part: Part, directory: Path) -> Path:
    """Write the rules of *part*, all evaluated as often as they can be, and return where."""
    shipped = directory / "shipped"
    shipped.mkdir(parents=True)
    for name, text in plan().files(part).items():
        (shipped / name).write_text(text)
    return fast_rules(directory / "rules", shipped)


class Configured(Prometheus):
    """A Prometheus with *settings* of ours instead of those of the demo, and *rules*."""

    grace_seconds = 1.0

    def __init__(self, directory: Path, settings: dict[str, Any], rules: Path) -> None:
        super().__init__(directory, interval_seconds=INTERVAL_SECONDS, rules=rules)
        config = directory / "prometheus.yaml"
        ours = yaml.safe_load(config.read_text())
        settings["global"] |= ours["global"] | settings["global"]
        settings["global"] |= {key: INTERVAL for key in ("scrape_interval", "evaluation_interval")}
        settings |= {"rule_files": ours["rule_files"]}
        settings["alerting"].pop("alertmanagers")
        config.write_text(yaml.safe_dump(settings))


def scrape_jobs(clusters: Clusters, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return *job* once for each of *clusters*, under one name: one job name must stay unique."""
    relabelled = [
        {
            **job,
            "job_name": f"rankskew-{cluster}",
            "http_sd_configs": [{"url": url}],
            "relabel_configs": [
                {"target_label": "cluster", "replacement": cluster},
                *job.get("relabel_configs", []),
            ],
        }
        for cluster, url in clusters.items()
    ]
    return [
        {key: value for key, value in one.items() if key != "static_configs"} for one in relabelled
    ]


def shard(directory: Path, number: int, clusters: Clusters) -> Prometheus:
    """Return shard *number*, as shipped, of the nodes of *clusters*, by their names."""
    settings = load("shard.yaml")
    settings["global"]["external_labels"]["shard"] = str(number)
    [job] = settings["scrape_configs"]
    by_hash, keep = job["relabel_configs"]
    by_hash |= {"modulus": SHARDS, "source_labels": ["instance"]}
    keep["regex"] = str(number)
    settings["scrape_configs"] = scrape_jobs(clusters, job)
    return Configured(directory, settings, rules_of("shard", directory / "part"))


def above(directory: Path, shards: Sequence[Prometheus]) -> Prometheus:
    """Return the global Prometheus of *shards*, as shipped."""
    settings = load("federation.yaml")
    [job] = settings["scrape_configs"]
    job["static_configs"] = [{"targets": [each.address for each in shards]}]
    return Configured(directory, settings, rules_of("global", directory / "part"))


def single(directory: Path, clusters: Clusters) -> Prometheus:
    """Return a Prometheus that scrapes all nodes of *clusters*, with all rules."""
    settings: dict[str, Any] = {"global": {}, "alerting": {"alertmanagers": []}}
    settings["scrape_configs"] = scrape_jobs(clusters, {})
    directory.mkdir()
    return Configured(directory, settings, fast_rules(directory / "rules"))
