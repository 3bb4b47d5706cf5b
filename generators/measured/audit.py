"""The table on the audit: what was planted, which check found it, and what else was found."""

from generators.markdown import table
from generators.measured.results import rows


def plants() -> str:
    """Return a row for each planted misconfiguration, and one for the launch without any."""
    found = rows("audit")
    cells = [
        (
            row["planted"],
            f"`{row['check']}`" if row["check"] else "",
            row["as"] or ("" if row["check"] is None else "not found"),
            row["others found"] or "nothing",
        )
        for row in found
    ]
    planted = [row for row in found if row["check"]]
    right = sum(row["found"] == "yes" for row in planted)
    alone = sum(not row["others found"] for row in found)
    return (
        f"{right} of {len(planted)} were found; in {alone} of {len(found)} launches nothing else "
        f"was.\n\n{table(('planted', 'check', 'found as', 'else'), cells)}"
    )
