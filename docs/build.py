"""Generates what the documentation lists: metrics, flags, alerts and measured figures.

`python -m docs.build` writes the pages; `--check` exits 1 if a committed one is stale.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from alerts.build_index import with_tables
from docs import (
    accuracy_table,
    audit_table,
    collectives_table,
    command_table,
    compare_table,
    compose_alertmanager,
    diagnose_table,
    fault_table,
    figures,
    health_check_table,
    late_lines_table,
    metrics_table,
    playbook_table,
    robustness_table,
    scale_table,
)
from docs.markdown import fill, table
from docs.variables import VARIABLES
from exporter.collectors.catalog import COLLECTORS
from exporter.settings import flags
from rankskew.diagnose.advice import advice

ROOT = Path(__file__).parents[1]


def flag_rows() -> list[tuple[str, str, str]]:
    """Return a row for every flag of `rankskew exporter`, in the order of its --help."""
    rows = [
        (f"`{flag.name}`", f"`{flag.show(setting.default)}`".replace("``", "empty"), flag.help)
        for setting, flag in flags()
    ]
    return rows + [(f"`--[no-]collector.{entry.name}`", "on", entry.help) for entry in COLLECTORS]


def configuration() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "The flags of `rankskew exporter`; `make docs` generates this page from the code.",
        "`--config.check`, with `--json` for scripts, "
        "[checks them](operating.md#check-the-settings).",
        "",
        table(
            ("flag", "default", "meaning"),
            flag_rows(),
        ),
        "",
        "Environment variables of the training process configure the probe.",
        "",
        table(
            ("variable", "default", "meaning"),
            VARIABLES,
        ),
    ]
    return "\n".join(lines) + "\n"


def _playbook(cause: str, page: str) -> str:
    return fill(page, {"advice": playbook_table.summary(cause)})


# Every generated page, and the function that makes its new text from the old one.
PAGES: dict[str, Callable[[str], str]] = {
    "docs/metrics.md": lambda _: metrics_table.page(),
    "docs/configuration.md": lambda _: configuration(),
    "docs/concepts.md": lambda page: fill(page, {"masking": figures.masking()}),
    "docs/accuracy.md": lambda page: fill(
        page,
        {
            "faults": accuracy_table.faults(),
            "crosscheck": accuracy_table.crosscheck(),
            "latency": accuracy_table.latency(),
            "ways": accuracy_table.ways(),
            "late_lines": late_lines_table.lines(),
        },
    ),
    "docs/compare.md": lambda page: fill(
        page,
        {
            "sample": compare_table.sample(),
            "coverage": compare_table.coverage(),
            "planted": compare_table.planted(),
        },
    ),
    "docs/overhead.md": lambda page: fill(
        page,
        {
            "overhead": figures.overhead(),
            "join": figures.join(),
            "scrape": figures.scrape(),
            "endurance": figures.endurance(),
            "late_lines_cost": late_lines_table.cost(),
            "health_check": health_check_table.costs(),
        },
    ),
    "docs/scale.md": lambda page: fill(
        page,
        {
            "scale_outcome": scale_table.outcome(),
            "scale": scale_table.scale(),
            "scale_rules": scale_table.rules(),
            "panels_outcome": scale_table.panels_outcome(),
            "panels": scale_table.panels(),
        },
    ),
    "docs/diagnose.md": lambda page: fill(
        page,
        {
            "sample": diagnose_table.sample(),
            "faults": diagnose_table.faults(),
            "traces": diagnose_table.traces(),
            "planted": diagnose_table.planted(),
        },
    ),
    "docs/audit.md": lambda page: fill(page, {"plants": audit_table.plants()}),
    "docs/playbook/README.md": lambda page: fill(page, {"causes": playbook_table.causes()}),
    **{f"docs/playbook/{cause}.md": partial(_playbook, cause) for cause in advice()},
    "docs/simulate.md": lambda page: fill(page, {"faults": fault_table.faults()}),
    "docs/security.md": lambda page: fill(
        page,
        {
            "hostile": robustness_table.measured("hostile"),
            "slow_clients": robustness_table.slow_clients(),
        },
    ),
    "docs/collectives.md": lambda page: fill(
        page,
        {
            "sample": collectives_table.sample(),
            "links": collectives_table.links(),
            "loop": collectives_table.loop(),
        },
    ),
    "docs/decisions/0002-libraries.md": lambda page: fill(page, figures.library_costs()),
    "docs/operating.md": lambda page: fill(
        page,
        {
            "restarts": robustness_table.measured("restarts"),
            "faults": robustness_table.measured("faults"),
        },
    ),
    "deploy/compose/alertmanager.yaml": lambda _: compose_alertmanager.configuration(),
    "alerts/README.md": with_tables,
    "README.md": lambda page: fill(page, {"evidence": figures.evidence()}),
    "docs/README.md": lambda page: fill(page, {"commands": command_table.commands()}),
}


def stale() -> dict[Path, str]:
    """Return the pages that are out of date, with their new text."""
    found = {}
    for name, generate in PAGES.items():
        path = ROOT / name
        old = path.read_text() if path.exists() else ""
        if (new := generate(old)) != old:
            found[path] = new
    return found


def main() -> int:
    """Write the pages, or with --check print which are stale."""
    parser = argparse.ArgumentParser(description="Generate what the documentation lists.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    check = parser.parse_args().check
    pages = stale()
    if check:
        for path in pages:
            print(f"stale: {path.relative_to(ROOT)}; run `make docs` and commit", file=sys.stderr)
        return 1 if pages else 0
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
