"""Writes what travels into deploy/prometheus/: run `python -m alerts.build_shards`."""

import re
from pathlib import Path

from alerts.build_index import rule_files
from exporter.shards import Plan, selector

DEPLOY = Path(__file__).parents[1] / "deploy" / "prometheus"
# A line with one of these comments is generated.
GENERATED = re.compile(r"'[^']*' # generated: (\w+)$", re.MULTILINE)


def plan() -> Plan:
    """Return where each of the shipped rules runs."""
    return Plan({path.name: path.read_text() for path in rule_files()})


def with_names(text: str) -> str:
    """Return the configuration *text* with the names of the series that it lets pass."""
    travelling, scraped = plan().travelling(), plan().scraped()
    lines = {
        "selector": selector(travelling),
        "travelling": "|".join(travelling),
        "scraped": "|".join(scraped),
    }
    return GENERATED.sub(lambda line: f"'{lines[line[1]]}' # generated: {line[1]}", text)


def files() -> list[Path]:
    """Return the configurations with generated lines."""
    return [path for path in sorted(DEPLOY.glob("*.yaml")) if GENERATED.search(path.read_text())]


if __name__ == "__main__":
    for path in files():
        path.write_text(with_names(path.read_text()))
