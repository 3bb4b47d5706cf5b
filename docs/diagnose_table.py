"""What `rankskew diagnose` said of each planted fault, and a report as it was printed."""

from typing import Any

from benchmarks.diagnose_score import is_right
from docs.figures import RESULTS, rows
from docs.markdown import table

SAMPLE = RESULTS / "diagnose_sample.txt"
PARTS = ("rank", "stage", "cause", "first action", "exit status")


def sample() -> str:
    """Return a whole report."""
    return f"```\n{SAMPLE.read_text().strip()}\n```"


def faults() -> str:
    """Return a row for each fault of `rankskew simulate`, and for what cannot be told."""
    return _table("simulate", ", also while the figures were still coming in")


def traces() -> str:
    """Return a row for each fault in the traces of real ranks."""
    return _table("trace", "")


def planted() -> str:
    """Return a row for each cause that was planted for real."""
    found = rows("causes")
    right = sum(row["right"] for row in found)
    sure = sum(row["wrong and sure"] for row in found)
    cells = [
        (row["planted"], _named(row), _mark(row["right"]), row["confidence"] or "") for row in found
    ]
    said = f"The cause is right in {right} of {len(found)}"
    sure_too = f"a wrong one with high confidence in {sure}"
    shown = table(("planted", "what it says", "cause", "confidence"), cells)
    return f"{said}; {sure_too}.\n\n{shown}"


def _named(row: dict[str, Any]) -> str:
    if row["rank"] is None:
        return "nobody is late" if row["status"] == 0 else "no rank"
    detail = f" ({row['detail']})" if row["detail"] else ""
    line = f", at `{row['line']}`" if row["line"] else ""
    return f"rank {row['rank']} {row['stage']} {row['cause']}{detail}{line}".replace("_", " ")


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


def _share(row: dict[str, Any]) -> str:
    # Rows that were measured before this was told have none.
    return f"{row['explains']:.0%}" if row.get("explains") else ""


def _mark(value: Any) -> str:
    return "" if value is None else "right" if value else "**wrong**"
