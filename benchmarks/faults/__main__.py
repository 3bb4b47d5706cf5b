"""Every fault in turn; exits 1 when a promise is broken.

With --only, the last result of the other faults stays.

python -m benchmarks.faults
python -m benchmarks.faults --kills 30 --seed 2 --only kills
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.faults.alone.disk import NEEDS_ROOT, can_mount, disks
from benchmarks.faults.alone.memory import capped
from benchmarks.faults.alone.replays import replayed
from benchmarks.faults.alone.sockets import socket_directory
from benchmarks.faults.killing import measure
from benchmarks.faults.plan import Plan
from benchmarks.faults.standing import (
    Lengths,
    clock_jumps,
    no_cpu_to_spare,
    prometheus_is_down,
)
from benchmarks.faults.versions import NO_HISTORY, has_history, upgraded
from benchmarks.report import Row, beside_limits, broken, last, row, write

# What is done to the stack of the kills, in this order.
STANDING: Final = {
    "prometheus": prometheus_is_down,
    "clock": clock_jumps,
    "cpu": no_cpu_to_spare,
}
# What is done to an exporter of its own.
ALONE: Final[dict[str, Callable[[Path], list[Row]]]] = {
    "disk": lambda directory: disks(directory) if can_mount() else _left_out("disk", NEEDS_ROOT),
    "socket": socket_directory,
    "replays": replayed,
    "memory": capped,
    "versions": lambda directory: (
        upgraded(directory) if has_history() else _left_out("versions", NO_HISTORY)
    ),
}
FAULTS: Final = ("kills", *STANDING, *ALONE)


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return *rows*, and in their places those of the last result that were not measured again."""
    measured = {each["what"]: each for each in rows}
    kept = [measured.pop(each["what"], each) for each in last("faults")]
    return [*kept, *measured.values()]


def _left_out(fault: str, why: str) -> list[Row]:
    print(f"{fault} is left out: {why}", file=sys.stderr)
    return [row(f"{fault}: left out", 1)]


def run(plan: Plan, lengths: Lengths, only: Sequence[str] = FAULTS) -> list[Row]:
    """Return the rows of every fault in *only*."""
    rows: list[Row] = []
    standing = [fault for name, fault in STANDING.items() if name in only]
    if standing or "kills" in only:
        kills = plan if "kills" in only else Plan(kills=0)
        with tempfile.TemporaryDirectory() as directory:
            rows += measure(Path(directory), kills, lengths, standing)
    for name, fault in ALONE.items():
        if name in only:
            print(f"{name}...", flush=True)
            with tempfile.TemporaryDirectory() as directory:
                rows += fault(Path(directory))
    return rows


def main() -> int:
    """Run what was asked for, and print and write what was found."""
    plan, lengths = Plan(), Lengths()
    parser = argparse.ArgumentParser(description="Faults against a real stack.")
    parser.add_argument("--kills", type=int, default=plan.kills, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=plan.seed, help="of what is killed when")
    parser.add_argument(
        "--prometheus-down",
        type=float,
        default=lengths.prometheus_down,
        metavar="SECONDS",
        help="how long Prometheus stays down (default 600)",
    )
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=FAULTS, help="some faults")
    options = parser.parse_args()
    rows = run(Plan(options.kills, options.seed), Lengths(options.prometheus_down), options.only)
    write("faults", merged(rows), tables={"faults": beside_limits})
    for each in broken(rows):
        print(f"broken: {each['what']} is {each['measured']}", file=sys.stderr)
    return int(bool(broken(rows)))


if __name__ == "__main__":
    sys.exit(main())
