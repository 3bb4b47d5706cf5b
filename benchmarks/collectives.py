"""`rank-probe bench-collectives` on slow links, and beside a plain timing loop; needs root.

python -m benchmarks.collectives [--times 5] [--loop-only | --links-only]

Four gloo ranks, each in a network namespace, with one link or one rank's links slowed down: is it
the one that is named? Then four ranks without namespaces time each collective in turn with our code
and with a plain loop over torch.distributed; the ratio should be within 5 % of 1. Only the second
part needs a quiet machine. The results go to benchmarks/results/collectives.json;
collectives.txt beside it and docs/images/collectives.svg show one of the measurements.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.collectives_network import Network, why_not
from benchmarks.report import RESULTS, show, write

ROOT: Final = Path(__file__).parents[1]
# What the documentation shows: a measurement with a slow link.
SAMPLE: Final = RESULTS / "collectives.txt"
PICTURE: Final = ROOT / "docs" / "images" / "collectives.svg"
RANKS: Final = 4
SECONDS: Final = "6"
MAX_BYTES: Final = "256KiB"
ENDED_SECONDS: Final = 120
TOLERANCE: Final = 0.05
LOOP_SECONDS: Final = 900
DELAY_SECONDS: Final = 0.005
MEGABITS: Final = 200


@dataclass(frozen=True)
class Case:
    """How the network is slowed down, and what must be named: kind and ranks, or None."""

    name: str
    plant: Callable[[Network], None]
    expected: tuple[str, list[int]] | None


def _nothing(network: Network) -> None:
    pass


def _delayed_link(network: Network) -> None:
    network.delay(1, 3, DELAY_SECONDS)


def _limited_link(network: Network) -> None:
    network.limit(1, [3], MEGABITS)
    network.limit(3, [1], MEGABITS)


def _limited_one_way(network: Network) -> None:
    network.limit(0, [2], MEGABITS)


def _delayed_rank(network: Network) -> None:
    for other in (0, 1, 3):
        network.delay(2, other, DELAY_SECONDS)


def _limited_rank(network: Network) -> None:
    network.limit(2, [0, 1, 3], MEGABITS)


LIMITED_LINK: Final = Case("link 1-3, 200 Mbit/s", _limited_link, ("link", [1, 3]))
CASES: Final = (
    Case("no slow link", _nothing, None),
    Case("link 1-3, 5 ms", _delayed_link, ("link", [1, 3])),
    LIMITED_LINK,
    Case("link 0 to 2, 200 Mbit/s", _limited_one_way, ("link", [0, 2])),
    Case("rank 2, 5 ms", _delayed_rank, ("rank", [2])),
    Case("rank 2 sends 200 Mbit/s", _limited_rank, ("rank", [2])),
)


def printed(case: Case, options: Sequence[str] = ()) -> str:
    """Return what rank 0 prints about the network of *case*; exits if it prints nothing."""
    with Network(RANKS) as network:
        case.plant(network)
        command = [sys.executable, "-m", "rank_probe", "bench-collectives", "--backend", "gloo"]
        command += ["--seconds", SECONDS, "--max-bytes", MAX_BYTES, *options]
        ranks = [
            subprocess.Popen(
                network.command(rank, command),
                env=os.environ
                | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
                | network.environment(rank),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            said = [rank.communicate(timeout=ENDED_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    if not said[0][0]:
        raise SystemExit("".join(errors for _, errors in said))
    return said[0][0]


def measured(case: Case, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON document about the network of *case*."""
    document: dict[str, Any] = json.loads(printed(case, ["--json", *options]))
    return document


def named(document: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Return kind and ranks of each thing that *document* names."""
    return [(one["kind"], one["ranks"]) for one in document["named"]]


def links(times: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each case: how often the right thing was named, and only that."""
    for case in CASES:
        documents = [measured(case) for _ in range(times)]
        expected = [case.expected] if case.expected else []
        wrong = [document for document in documents if named(document) != expected]
        yield {
            "part": "links",
            "case": case.name,
            "runs": times,
            "right": times - len(wrong),
            "named": titles((wrong or documents)[0]),
        }


def titles(document: dict[str, Any]) -> str:
    """Return the names of what *document* names."""
    return "; ".join(one["title"] for one in document["named"]) or "nothing"


def loop() -> list[dict[str, Any]]:
    """Return a row for each collective and size: our time over that of a plain loop."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*command, "-m", "benchmarks.collectives_arms"],
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
        SAMPLE.write_text(printed(LIMITED_LINK, ["--picture", str(PICTURE)]))
        print(f"written: {SAMPLE.name} in {SAMPLE.parent}, {PICTURE.name} in {PICTURE.parent}")
    wrong = [row for row in slow if row["right"] < row["runs"]]
    wrong += [row for row in ratios if abs(row["ratio"] - 1) > TOLERANCE]
    return 1 if wrong else 0


def _same_keys(*parts: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    columns = dict.fromkeys(key for rows in parts for row in rows for key in row)
    yield from (dict.fromkeys(columns) | row for rows in parts for row in rows)


if __name__ == "__main__":
    sys.exit(main())
