"""What `rankskew diagnose` said of each planted fault."""

from collections import Counter
from statistics import median
from typing import Any

from benchmarks.diagnose.score import is_right
from generators.markdown import table
from generators.measured.results import Row, rows, written

PARTS = ("rank", "stage", "cause", "first action", "exit status")


def faults() -> str:
    """Return a row for each fault of `rankskew simulate`, and for what cannot be told."""
    return _table("simulate", ", also while the figures were still coming in")


def traces() -> str:
    """Return a row for each fault in the traces of real ranks."""
    return _table("trace", "")


def planted() -> str:
    """Return a row for each cause that was planted for real, with what was told of it first."""
    found = [row for row in rows("causes") if "outcome" in row]
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


def _table(source: str, when: str) -> str:
    found = [row for row in rows("diagnose") if row["source"] == source]
    right = sum(map(is_right, found))
    wrong = sum(row.get("wrong cause", False) for row in found)
    cells = [
        (row["fault"], row["said"], *(_mark(row[part]) for part in PARTS), _share(row))
        for row in found
    ]
    said = f"All right in {right} of {len(found)}; a wrong cause in {wrong}"
    return f"{said}{when}.\n\n{table(('fault', 'what it says', *PARTS, 'explains'), cells)}"


def _share(row: Row) -> str:
    # Rows that were measured before this was told have none.
    return written(row.get("explains") or None, ".0%")


def _mark(value: Any) -> str:
    return "" if value is None else "right" if value else "**wrong**"
