"""What the probe uses of torch that torch does not promise, as rank_probe has it."""

from generators.markdown import table
from rank_probe.torch_hooks.private import OLDEST, TABLE


def private_names() -> str:
    """Return a row for each name: why it is used, which releases have it, and what if not."""
    cells = [
        (
            f"`{row.name.replace(':', '.')}`",
            row.why,
            row.since or f"before {OLDEST}",
            row.until,
            _same_as(row.instead) or row.without,
        )
        for row in TABLE
    ]
    return table(("name", "why", "since", "until", "what the probe does without it"), cells)


def _same_as(instead: str) -> str:
    return f"It uses `{instead.rpartition(':')[2]}`." if instead else ""
