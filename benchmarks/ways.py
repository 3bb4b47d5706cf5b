"""Does the probe name the planted straggler? A delay in each stage of each way to train, in turn.

python -m benchmarks.ways [--only ARM]
"""

import argparse
import importlib.util
from collections.abc import Sequence

from benchmarks.report import Row, merged, show, write
from generators.markdown import table
from tests.rank_probe.ways import ARMS, STEPS, measure


def is_installed(package: str) -> bool:
    """Return whether *package* can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # Its parent package is missing too.
        return False


def table_of(result: Row) -> str:
    """Return which delays were named, with the measured excess as a share of the planted one."""
    found, machine = result["rows"], result["machine"]
    places = list(dict.fromkeys(row["in"] for row in found))
    cells = [
        (arm, *(_cell(found, arm, place) for place in places), _waits(found, arm))
        for arm in dict.fromkeys(row["arm"] for row in found)
    ]
    named = sum(row["named"] for row in found)
    sentence = (
        f"For {named} of {len(found)} delays the right rank and stage were named, "
        f"on {machine['cpus']} CPUs with torch {machine['torch']}."
    )
    return f"{sentence}\n\n{table(('training', *places, 'sync: late rank, its peers'), cells)}"


def _cell(found: Sequence[Row], arm: str, place: str) -> str:
    """Return what was measured; nothing if *arm* has no such stage."""
    row = next((row for row in found if (row["arm"], row["in"]) == (arm, place)), None)
    if row is None:
        return ""
    excess = f"{row['by, ms']:.0f} of {row['planted, ms']:.0f} ms"
    if row["named"]:
        return excess
    return f"**rank {row['waits least']}, {row['furthest ahead in']}**: {excess}"


def _waits(found: Sequence[Row], arm: str) -> str:
    """Return the ranges of the late rank's and its peers' waits over all places."""
    mine = [row for row in found if row["arm"] == arm]
    ranges = []
    for key in ("its wait, ms", "wait of its peers, ms"):
        values = [row[key] for row in mine]
        ranges.append(f"{min(values):.0f} to {max(values):.0f} ms")
    return ", ".join(ranges)


def main() -> None:
    """Measure and print; arms that are left out keep their rows of the last run."""
    parser = argparse.ArgumentParser(description="Does the probe name the planted straggler?")
    parser.add_argument("--only", choices=[arm.name for arm in ARMS])
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    rows: list[Row] = []
    for arm in ARMS:
        if options.only in (None, arm.name) and is_installed(arm.package):
            rows += measure(arm, options.steps)
            show(rows[-len(arm.places) :])
    order = [arm.name for arm in ARMS]
    kept = sorted(merged("ways", rows, ("arm",)), key=lambda row: order.index(row["arm"]))
    write("ways", kept, ("torch",), tables={"ways": table_of})


if __name__ == "__main__":
    main()
