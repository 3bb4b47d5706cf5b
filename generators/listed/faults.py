"""The table of docs/simulate.md: the faults that `rankskew simulate` knows."""

from fleet_simulator.faults import KINDS
from generators.markdown import table


def faults() -> str:
    """Return a row for each fault: its name, what goes wrong, and how far it reaches."""
    rows = (
        (f"`{kind.name}`", kind.about, f"a {kind.scope}".replace("gpu", "GPU")) for kind in KINDS
    )
    return table(("fault", "what goes wrong", "on"), rows)
