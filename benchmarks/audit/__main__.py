"""Plant one misconfiguration after another in a real launch: does `rank-probe audit` find it?

python -m benchmarks.audit [--only NAME]; a row for each plant, 5 minutes on two cores, as root.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.audit.launch import launch, troubles
from benchmarks.audit.plants import PLANTS, Plant
from benchmarks.report import show, write
from tests import nvmlstub


def row(plant: Plant, document: dict[str, Any]) -> dict[str, Any]:
    """Return what was planted, whether its check found it, and what else was found."""
    found = troubles(document)
    mine = found.pop(plant.check, None)
    right = mine is not None if plant.check else True
    return {
        "planted": plant.name,
        "check": plant.check or None,
        "found": "yes" if right and plant.check else None if right else "NO",
        "as": mine["status"] if mine else None,
        "others found": ", ".join(found) or None,
        "it says": mine["reason"] if mine else None,
    }


def main() -> None:
    """Run them and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="plant only what has NAME in its name")
    only = parser.parse_args().only
    plants = [plant for plant in PLANTS if not only or only in plant.name]
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        library = nvmlstub.build(Path(directory))
        for number, plant in enumerate(plants):
            folder = Path(directory) / str(number)
            rows.append(row(plant, launch(folder, library, [plant])))
            print(".", end="", flush=True)
    print()
    if only:
        show(rows)
    else:
        write("audit", rows, ["torch"])


if __name__ == "__main__":
    main()
