"""vmagent, VictoriaMetrics and vmalert in place of Prometheus, on loopback ports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from devstack.process import StackProcess, free_port

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
INTERVAL: Final = "1s"


class Agent(StackProcess):
    """vmagent with our configuration, over the nodes that *discovery* names, writing to *url*."""

    def __init__(self, directory: Path, discovery: str, url: str) -> None:
        config = yaml.safe_load((DEPLOY / "vmagent.yaml").read_text())
        config["global"]["scrape_interval"] = INTERVAL
        [job] = config["scrape_configs"]
        del job["static_configs"]
        job["http_sd_configs"] = [{"url": discovery}]
        path = directory / "vmagent.yaml"
        path.write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        self.ready_url = f"http://{address}/health"
        command = [
            "vmagent",
            f"-promscrape.config={path}",
            f"-remoteWrite.url={url}/api/v1/write",
            "-remoteWrite.flushInterval=100ms",
            f"-remoteWrite.tmpDataPath={directory / 'vmagent'}",
            f"-httpListenAddr={address}",
            "-memory.allowedBytes=128MB",
            "-loggerLevel=WARN",
        ]
        super().__init__("vmagent", command, directory / "vmagent.log")


class Ruler(StackProcess):
    """vmalert with *rules* over what *url* stores, telling *alertmanager*."""

    def __init__(self, directory: Path, rules: Sequence[Path], url: str, alertmanager: str) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.ready_url = f"http://{address}/health"
        command = [
            "vmalert",
            *(f"-rule={path}" for path in rules),
            f"-evaluationInterval={INTERVAL}",
            f"-datasource.url={url}",
            f"-remoteRead.url={url}",
            f"-remoteWrite.url={url}",
            "-remoteWrite.flushInterval=100ms",
            f"-notifier.url=http://{alertmanager}",
            f"-httpListenAddr={address}",
            "-loggerLevel=WARN",
        ]
        super().__init__("vmalert", command, directory / "vmalert.log")
