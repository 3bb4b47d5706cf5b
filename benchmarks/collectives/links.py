"""Slow one link, or the links of one rank: is it the one that is named?"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.collectives.network import Network
from devstack.parts import ROOT

RANKS: Final = 4
SECONDS: Final = "6"
MAX_BYTES: Final = "256KiB"
ENDED_SECONDS: Final = 120
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
