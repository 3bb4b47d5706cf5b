"""A Prometheus that scrapes many simulated nodes from one port, each as its own target."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from devstack.parts import RULES, PrometheusProcess


class OnePortPrometheus(PrometheusProcess):
    """Prometheus with *rules* whose target NODE is the page /node/NODE on the loopback *port*.

    The path has the part of a node's name that the first group of *part* matches, by default all of
    it.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        nodes: Sequence[str],
        *,
        interval_seconds: float,
        rules: Path = RULES,
        part: str = "(.*)",
    ) -> None:
        super().__init__(directory, nodes, rules=rules, interval_seconds=interval_seconds)
        config = directory / "prometheus.yaml"
        settings = yaml.safe_load(config.read_text())
        settings["scrape_configs"][0]["relabel_configs"] = [
            {"source_labels": ["__address__"], "target_label": "instance"},
            {
                "source_labels": ["__address__"],
                "regex": part,
                "target_label": "__metrics_path__",
                "replacement": "/node/$1",
            },
            {"target_label": "__address__", "replacement": f"127.0.0.1:{port}"},
        ]
        config.write_text(yaml.safe_dump(settings))
