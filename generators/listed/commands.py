"""The table of commands in docs/README.md."""

from generators.markdown import table
from rankskew.commands.table import COMMANDS


def commands() -> str:
    """Return a row for each command of `rankskew`."""
    return table(
        ("command", "what it does"),
        ((f"`rankskew {name}`", each.sentence) for name, each in COMMANDS.items()),
    )
