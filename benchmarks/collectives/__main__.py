"""`rank-probe bench-collectives` on slow links, and beside a plain timing loop; needs root.

python -m benchmarks.collectives [--times 5] [--loop-only | --links-only]

Four gloo ranks, each in a network namespace, with one link or one rank's links slowed down: is it
the one that is named? Then four ranks without namespaces time each collective in turn with our code
and with a plain loop over torch.distributed; the ratio should be within 5 % of 1. Only the second
part needs a quiet machine. The results go to benchmarks/results/collectives.json;
collectives.txt beside it shows one of the measurements.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.collectives.links import LIMITED_LINK, RANKS, links, printed
from benchmarks.collectives.network import why_not
from benchmarks.report import RESULTS, show, write
from devstack.parts import ROOT

# What the documentation shows: a measurement with a slow link.
SAMPLE: Final = RESULTS / "collectives.txt"
TOLERANCE: Final = 0.05
LOOP_SECONDS: Final = 900


def loop() -> list[dict[str, Any]]:
    """Return a row for each collective and size: our time over that of a plain loop."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*command, "-m", "benchmarks.collectives.arms"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LOOP_SECONDS,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    lines = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return [{"part": "loop"} | json.loads(line) for line in lines]


def main() -> int:
    """Measure both parts; return 1 if a link was missed or a ratio is off by more than 5 %."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--times", type=int, default=5, help="runs of each case (default: 5)")
    part = options.add_mutually_exclusive_group()
    part.add_argument("--loop-only", action="store_true", help="only the plain loop; prints only")
    part.add_argument("--links-only", action="store_true", help="only the links; prints only")
    given = options.parse_args()
    if not given.loop_only and (why := why_not()):
        print(f"benchmarks.collectives: {why}; --loop-only can do without", file=sys.stderr)
        return 2
    slow = [] if given.loop_only else list(links(given.times))
    ratios = [] if given.links_only else loop()
    if given.loop_only or given.links_only:
        show(slow or ratios)
    else:
        write("collectives", [*_same_keys(slow, ratios)], ["torch"])
        SAMPLE.write_text(printed(LIMITED_LINK))
        print(f"written: {SAMPLE.name} in {SAMPLE.parent}")
    wrong = [row for row in slow if row["right"] < row["runs"]]
    wrong += [row for row in ratios if abs(row["ratio"] - 1) > TOLERANCE]
    return 1 if wrong else 0


def _same_keys(*parts: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    columns = dict.fromkeys(key for rows in parts for row in rows for key in row)
    yield from (dict.fromkeys(columns) | row for rows in parts for row in rows)


if __name__ == "__main__":
    sys.exit(main())
