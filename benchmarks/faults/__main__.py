"""Every fault in turn; exits 1 when a promise is broken.

python -m benchmarks.faults --kills 30 --seed 2
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.faults.killing import measure
from benchmarks.faults.plan import Plan
from benchmarks.faults.rows import broken
from benchmarks.report import write


def main() -> int:
    """Run what was asked for, and print and write what was found."""
    plan = Plan()
    parser = argparse.ArgumentParser(description="Faults against a real stack.")
    parser.add_argument("--kills", type=int, default=plan.kills, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=plan.seed, help="of what is killed when")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(Path(directory), Plan(options.kills, options.seed))
    write("faults", rows)
    for each in broken(rows):
        print(f"broken: {each['what']} is {each['measured']}", file=sys.stderr)
    return int(bool(broken(rows)))


if __name__ == "__main__":
    sys.exit(main())
