"""Generates what pages list: metrics, flags, alerts, and the tables that benchmarks have written.

`python -m generators.build` writes the pages; `--check` exits 1 if a committed one is stale.
"""

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.report import RESULTS
from exporter.vocabulary.advice import advice
from generators import alert_rules, metrics, schemas, tables
from generators.files import ROOT, text_of, write_or_check
from generators.markdown import fill

Part = Callable[[], str]

# Every page with generated parts, by their markers.
PARTS: Final[Mapping[str, Mapping[str, Part]]] = {
    "README.md": {"evidence": tables.evidence},
    "alerts/README.md": {
        "alerts": alert_rules.alerts_table,
        "files": alert_rules.files_table,
        "thresholds": alert_rules.thresholds_table,
    },
    "docs/README.md": {"commands": tables.commands},
    "docs/configuration.md": {"flags": tables.exporter_flags},
    "docs/metrics.md": {"cost": metrics.cost, "metrics": metrics.tables},
    "docs/playbook.md": {
        "causes": tables.causes,
        **{f"advice_{cause}": partial(tables.actions, cause) for cause in advice()},
    },
    "docs/simulate.md": {"faults": tables.faults},
}
# Text that a benchmark has written beside its result; the marker names the file. A page may include
# only the part before one of the file's tables, and link to the rest.
MEASURED: Final = re.compile(
    r"^<!-- (\w+): .* from benchmarks/results/\1\.md(?:, before table (\d))? -->$", re.MULTILINE
)


def measured(page: str) -> dict[str, str]:
    """Return the tables of benchmarks that *page* has places for."""
    return {
        name: before_table(int(number or 0), (RESULTS / f"{name}.md").read_text().strip())
        for name, number in MEASURED.findall(page)
    }


def before_table(number: int, text: str) -> str:
    """Return *text* up to its table *number*, counted from 1; the whole text for 0."""
    parts = text.split("\n\n")
    tables = [len(parts), *(i for i, part in enumerate(parts) if part.startswith("| "))]
    return "\n\n".join(parts[: tables[number]])


def texts() -> dict[Path, str]:
    """Return what each generated page should be."""
    new = {ROOT / "deploy/compose/alertmanager.yaml": tables.compose_alertmanager()}
    new |= {ROOT / f"docs/schemas/{kind}.json": schemas.schema(kind) for kind in schemas.DOCUMENTS}
    for path in (ROOT / "README.md", ROOT / "alerts/README.md", *(ROOT / "docs").rglob("*.md")):
        page, parts = text_of(path), PARTS.get(str(path.relative_to(ROOT)), {})
        new[path] = fill(page, {name: part() for name, part in parts.items()} | measured(page))
    return new


def main() -> int:
    """Write the pages, or with --check print which are stale."""
    return write_or_check(texts(), "make docs")


if __name__ == "__main__":
    sys.exit(main())
