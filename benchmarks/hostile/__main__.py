"""Attack a real exporter: hostile snapshots and bytes that are nearly HTTP, on both listeners.

    python -m benchmarks.hostile [--bodies N] [--requests N] [--seed N]
    python -m benchmarks.hostile --seed N --repeat body:17 request:4

No 5xx, no traceback, no growth, no case that takes long, and in between proper pushes and scrapes.
Exits 1 with the shortest bytes that do harm and the command that repeats them. With schemathesis
installed (benchmarks/requirements.txt), what the exporter says of itself in /openapi.json is tried
too.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.hostile.attack import Harm, Plan, repeat, run
from benchmarks.hostile.openapi import try_descriptions
from benchmarks.hostile.victim import Broken
from benchmarks.report import beside_limits, write


def main() -> int:
    """Attack and tell."""
    parser = argparse.ArgumentParser(description="Attack a real exporter with hostile input.")
    usual = Plan()
    parser.add_argument("--bodies", type=int, default=usual.bodies)
    parser.add_argument("--requests", type=int, default=usual.requests)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--repeat", nargs="+", metavar="KIND:NUMBER")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        if options.repeat:
            harm = repeat(Path(directory), options.seed, options.repeat)
            print(harm or "no harm")
            return int(harm is not None)
        try:
            plan = Plan(options.bodies, options.requests, options.seed)
            rows = run(Path(directory), plan) + try_descriptions(Path(directory), options.seed)
        except (Harm, Broken) as harmed:
            print(harmed, file=sys.stderr)
            return 1
    write("hostile", rows, tables={"hostile": beside_limits})
    return 0


if __name__ == "__main__":
    sys.exit(main())
