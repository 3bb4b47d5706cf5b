"""The tables on comparisons: how honest their intervals are, and what they say of real training."""

from collections.abc import Iterator
from itertools import groupby

from generators.markdown import table
from generators.measured.results import Row, rows, written


def coverage() -> str:
    """Return a row for each number of steps and straggler: the worst of all correlations."""
    header = (
        *("steps on each side", "late rank", "no interval", "the interval holds the truth"),
        *("called worse without a change", "a loss of 5% called worse"),
    )
    return table(header, _worst(rows("compare_coverage")))


def planted() -> str:
    """Return what was planted in real training beside what the comparison said of it."""
    header = ("change", "true ratio", "ratio", "95 % interval", "verdict", "named after it")
    return table(
        header,
        (
            (
                WORDS.get(row["fault"], f"one rank late in {row['fault']}"),
                f"{row['true ratio']:.3f}",
                written(row["ratio"], ".3f"),
                "" if row["ratio"] is None else f"{row['from']:.3f} to {row['to']:.3f}",
                row["verdict"].replace("_", " "),
                row["late"],
            )
            for row in rows("compare_planted")
        ),
    )


WORDS = {"none": "none", "rotating": "a different rank late in each step"}


def _worst(found: list[Row]) -> Iterator[tuple[str, ...]]:
    for (steps, straggler), group in groupby(found, lambda row: (row["steps"], row["straggler"])):
        those = list(group)
        same = [row["told worse"] for row in those if row["true ratio"] == 1]
        worse = [row["told worse"] for row in those if row["true ratio"] == 1.05]
        holds = [row["interval holds the truth"] for row in those]
        yield (
            str(steps),
            straggler,
            _range([row["refused"] for row in those]),
            f"{min(each for each in holds if each is not None):.1%} or more",
            f"{max(same):.1%} or less",
            _range(worse),
        )


def _range(shares: list[float]) -> str:
    return f"{min(shares):.0%} to {max(shares):.0%}"
