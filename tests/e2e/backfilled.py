"""A real Prometheus whose past was written by the test."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from devstack.parts import RULES
from devstack.process import StackProcess, free_port

INTERVAL_SECONDS: Final = 60.0
# What was written is as old as the tests say, whatever the day.
KEPT: Final = "100y"
Span = tuple[float, float]


@dataclass
class Past:
    """Series by name, each with its labels and values at multiples of INTERVAL_SECONDS."""

    series: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, spans: Iterable[Span], value: float = 1.0, **labels: str) -> None:
        """Add a series that has *value* during *spans*, which end before their end."""
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        lines = self.series.setdefault(name, [])
        for begin, end in spans:
            points = round((end - begin) / INTERVAL_SECONDS)
            lines += [
                f"{name}{{{inside}}} {value} {begin + n * INTERVAL_SECONDS:.0f}"
                for n in range(points)
            ]

    def counter(self, name: str, span: Span, per_second: float, **labels: str) -> None:
        """Add a counter that begins at 0 and grows all the time during *span*."""
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        points = round((span[1] - span[0]) / INTERVAL_SECONDS)
        self.series.setdefault(name, []).extend(
            f"{name}{{{inside}}} {n * INTERVAL_SECONDS * per_second} "
            f"{span[0] + n * INTERVAL_SECONDS:.0f}"
            for n in range(points)
        )

    def fires(self, alert: str, severity: str, spans: Sequence[Span], **labels: str) -> None:
        """Add an alert of `llama` in `eu` that fires during *spans*."""
        named = {"alertname": f"Rankskew{alert}", "alertstate": "firing", "severity": severity}
        self.add("ALERTS", spans, 1.0, **(named | {"cluster": "eu", "job_id": "llama"} | labels))

    def lines(self) -> list[str]:
        """Return all of it as lines of OpenMetrics."""
        return [line for lines in self.series.values() for line in lines]


def write_blocks(directory: Path, lines: Iterable[str]) -> None:
    """Write *lines* of OpenMetrics as blocks into the *directory* of a Prometheus."""
    text = directory.with_suffix(".txt")
    text.write_text("\n".join([*lines, "# EOF\n"]))
    command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=240h"]
    command += ["openmetrics", str(text), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class OldPrometheus(StackProcess):
    """A Prometheus on what is in *data*, with the shipped rules, that scrapes nothing.

    What was written has no end markers, so a series ends with its last value at once.
    """

    def __init__(self, directory: Path, data: Path) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self.ready_url = f"{self.url}/-/ready"
        config = directory / "prometheus.yaml"
        interval = f"{INTERVAL_SECONDS:.0f}s"
        settings = {
            "global": {"evaluation_interval": interval},
            "rule_files": [str(RULES / "*.yaml")],
        }
        config.write_text(yaml.safe_dump(settings))
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--storage.tsdb.retention.time={KEPT}",
            f"--web.listen-address={address}",
            f"--query.lookback-delta={INTERVAL_SECONDS - 10:.0f}s",
        ]
        super().__init__("Prometheus", command, directory / "prometheus.log")


@contextmanager
def remembering(past: Past, directory: Path) -> Iterator[str]:
    """Serve *past*; yields the URL."""
    write_blocks(directory / "data", past.lines())
    with OldPrometheus(directory, directory / "data") as prometheus:
        yield prometheus.url
