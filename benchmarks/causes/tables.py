"""What `rankskew diagnose` said of each planted fault."""

from collections import Counter
from statistics import median
from typing import Any

from benchmarks.report import Row
from generators.markdown import table

PARTS = ("rank", "stage", "cause", "first action", "exit status")


def planted(result: Row) -> str:
    """Return a row for each cause that was planted for real, with what was told of it first."""
    found = [row for row in result["rows"] if "outcome" in row]
    runs: dict[tuple[bool, str], list[Row]] = {}
    for row in found:
        runs.setdefault((row["busy"], row["planted"]), []).append(row)
    cells = [
        (
            f"{planted.replace('_', ' ')}{', all CPUs busy' if busy else ''}",
            _named(each[0]),
            _after(each),
            _outcomes(each),
        )
        for (busy, planted), each in runs.items()
    ]
    header = ("planted", "what it says first, in the first run", "after, median", "cause")
    said = _counted(found, False)
    said = said[0].upper() + said[1:]
    return f"{said}; with all CPUs busy, {_counted(found, True)}.\n\n{table(header, cells)}"


def _after(runs: list[Row]) -> str:
    seconds = [row["after"] for row in runs if row["cause"]]
    return f"{median(seconds):.0f} s" if seconds else ""


def _outcomes(runs: list[Row]) -> str:
    counted = Counter(row["outcome"] for row in runs)
    return ", ".join(
        f"{count} {outcome if outcome != 'wrong' else _mark(False)}"
        for outcome, count in counted.most_common()
    )


def _counted(found: list[Row], is_busy: bool) -> str:
    outcomes = [row["outcome"] for row in found if row["busy"] == is_busy]
    right, wrong = outcomes.count("right"), outcomes.count("wrong")
    return f"the first cause is right in {right} of {len(outcomes)} and wrong in {wrong}"


def _named(row: Row) -> str:
    if not row["cause"]:
        return "nothing"
    detail = f" ({row['detail']})" if row["detail"] else ""
    said = f"rank {row['rank']}: {row['cause']}{detail}".replace("_", " ")
    return f"{said}: {row['sentence']}" if row["sentence"] else said


def _mark(value: Any) -> str:
    return "" if value is None else "right" if value else "**wrong**"
