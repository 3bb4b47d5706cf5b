"""The real stack on loopback ports: exporter, Prometheus, Alertmanager and a torch training.

Each is a context manager with its own directory, for the demo, tests and benchmarks.
"""

import json
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devstack.process import StackError, StackProcess, free_port, get, program

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "alerts" / "rules"
ALERTMANAGER_CONFIG = ROOT / "alerts" / "alertmanager.yaml"

# Debian's name for a program first, its own name second.
PROMETHEUS = ("prometheus",)
ALERTMANAGER = ("prometheus-alertmanager", "alertmanager")


def _get_json(url: str) -> Any:
    try:
        return json.loads(get(url))
    except OSError as error:
        raise StackError(f"no answer from {url}: {error}") from error


class Server(StackProcess):
    """A program that listens on *address*, a loopback port, and answers /-/ready when it is."""

    def listen(self, directory: Path, port: int = 0) -> None:
        """Choose a port, *port* if it is free, for the server with its files in *directory*."""
        directory.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port(port)}"
        self.url = f"http://{self.address}"
        self.ready_url = f"{self.url}/-/ready"


class ExporterProcess(Server):
    """`rankskew exporter`; kill() and start() again keep the port and the socket."""

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.listen(directory, port)
        self.socket = directory / "exporter.sock"
        command = [sys.executable, "-m", "rankskew", "exporter"]
        command += [f"--web.listen-address={self.address}", f"--ingest.socket={self.socket}"]
        command += [f"--operator.socket={directory / 'operator.sock'}"]
        log = directory / "exporter.log"
        super().__init__("the exporter", [*command, *flags], log, environment)

    @property
    def target(self) -> str:
        """Return the value of RANKSKEW_EXPORTER for ranks to find it."""
        return f"unix:{self.socket}"

    def live(self) -> dict[str, Any]:
        """Return what the built-in page shows."""
        summary: dict[str, Any] = _get_json(f"{self.url}/api/v1/live")
        return summary

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        """Return the page's entry for *job_id*; None while it does not know the job."""
        return next((job for job in self.live()["jobs"] if job["job_id"] == job_id), None)


class SimulationProcess(Server):
    """`rankskew simulate` with *arguments*, and *environment* added to this process's own."""

    # Each node of the tour looks back on minutes of evidence: half a minute of CPU.
    ready_seconds = 120.0

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.listen(directory)
        self.discovery = f"{self.url}/sd"
        command = [sys.executable, "-m", "rankskew", "simulate", "--listen-address", self.address]
        log = directory / "simulation.log"
        super().__init__("the simulation", [*command, *arguments], log, environment)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One element of an instant query's result."""

    labels: dict[str, str]
    value: float


class PrometheusProcess(Server):
    """Prometheus with the shipped rules, scraping *targets* every *interval_seconds*.

    *discovery* is the URL of a service discovery, for further targets.
    *overrides* maps (threshold name, job_id) to a value, as a user would record it. The *directory*
    may already contain data. *keeps* is the retention time, such as 15d.
    """

    def __init__(
        self,
        directory: Path,
        targets: Sequence[str] = (),
        alertmanager: str | None = None,
        *,
        discovery: str = "",
        scrapes_itself: bool = False,
        rules: Path = RULES,
        interval_seconds: float = 5.0,
        overrides: Mapping[tuple[str, str], float] | None = None,
        port: int = 0,
        keeps: str = "15d",
    ) -> None:
        self.listen(directory, port)
        overrides_file = directory / "overrides.yaml"
        overrides_file.write_text(yaml.safe_dump(override_rules(overrides or {})))
        config = directory / "prometheus.yaml"
        interval = f"{interval_seconds * 1000:.0f}ms"
        settings: dict[str, Any] = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": f"{interval_seconds * 900:.0f}ms",
                "evaluation_interval": interval,
            },
            "rule_files": [str(rules / "*.yaml"), str(overrides_file)],
            "scrape_configs": [
                {"job_name": "rankskew", "static_configs": [{"targets": list(targets)}]}
            ],
        }
        if scrapes_itself:
            itself = {"job_name": "prometheus", "static_configs": [{"targets": [self.address]}]}
            settings["scrape_configs"].append(itself)
        if discovery:
            settings["scrape_configs"][0]["http_sd_configs"] = [{"url": discovery}]
        if alertmanager:
            settings["alerting"] = {
                "alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]
            }
        config.write_text(yaml.safe_dump(settings))
        command = [
            program(PROMETHEUS),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self.address}",
            f"--web.external-url={self.url}",
            f"--storage.tsdb.retention.time={keeps}",
            "--rules.alert.resend-delay=1s",
            "--log.level=warn",
        ]
        super().__init__("Prometheus", command, directory / "prometheus.log")

    def query(self, expression: str) -> list[QueryResult]:
        """Return the current instant vector of *expression*."""
        answer = _get_json(
            f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        )
        return [
            QueryResult(element["metric"], float(element["value"][1]))
            for element in answer["data"]["result"]
        ]

    def value(self, expression: str) -> float | None:
        """Return the value of *expression* if it has exactly one series."""
        result = self.query(expression)
        return result[0].value if len(result) == 1 else None

    def active_alerts(self) -> list[dict[str, Any]]:
        """Return pending and firing alerts, as Prometheus reports them, with labels and value."""
        alerts: list[dict[str, Any]] = _get_json(f"{self.url}/api/v1/alerts")["data"]["alerts"]
        return alerts


def override_rules(overrides: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Return a rule file that sets the threshold *name* of *job_id* to a value."""
    rules = [
        {
            "record": "rankskew:threshold:override",
            "labels": {"name": name, "job_id": job_id},
            "expr": f"vector({value})",
        }
        for (name, job_id), value in overrides.items()
    ]
    return {"groups": [{"name": "overrides", "rules": rules}]}


class AlertmanagerProcess(Server):
    """Alertmanager with the shipped routes and inhibition; it pages *webhook_url* at once."""

    def __init__(
        self,
        directory: Path,
        webhook_url: str,
        *,
        shipped: Path = ALERTMANAGER_CONFIG,
        port: int = 0,
    ) -> None:
        self.listen(directory, port)
        config = directory / "alertmanager.yaml"
        settings = paging(yaml.safe_load(shipped.read_text()), webhook_url)
        config.write_text(yaml.safe_dump(settings))
        command = [
            program(ALERTMANAGER),
            f"--config.file={config}",
            f"--storage.path={directory / 'data'}",
            f"--web.listen-address={self.address}",
            f"--web.external-url={self.url}",
            "--cluster.listen-address=",  # One instance: no port for gossip.
            "--log.level=warn",
        ]
        super().__init__("Alertmanager", command, directory / "alertmanager.log")


def paging(config: dict[str, Any], webhook_url: str) -> dict[str, Any]:
    """Return *config* with *webhook_url* as every receiver, and no waiting in any route.

    Without templates: a webhook gets the annotations as they are.
    """
    receivers = [
        {"name": receiver["name"], "webhook_configs": [{"url": webhook_url, "send_resolved": True}]}
        for receiver in config["receivers"]
    ]
    route = _without_waiting(config["route"])
    return {**config, "receivers": receivers, "templates": [], "route": route}


def _without_waiting(route: dict[str, Any]) -> dict[str, Any]:
    children = [_without_waiting(child) for child in route.get("routes", [])]
    fast = {**route, "group_wait": "0s", "group_interval": "1s"}
    return {**fast, "routes": children} if children else fast


class TrainingProcess(StackProcess):
    """torchrun with demo/train.py under the probe; *arguments* are the script's own."""

    grace_seconds = 5.0

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        *,
        exporter: str,
        job_id: str = "demo",
        ranks: int = 4,
        environment: Mapping[str, str] | None = None,
        script: Sequence[str] = ("-m", "rank_probe", str(ROOT / "demo" / "train.py")),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.job_id = job_id
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--nproc-per-node", str(ranks)]
        command += ["--log-dir", str(directory / "torchrun")]  # Otherwise it leaves one in /tmp.
        # Its own rendezvous on a free port: two simultaneous trainings must not meet.
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command += [*script, *arguments]
        setting = {
            "RANKSKEW_EXPORTER": exporter,
            "RANKSKEW_JOB_ID": job_id,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        super().__init__("the training", command, directory / "training.log", setting)
