"""The command line of `rankskew`. It imports no command until that is asked for."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Final

from exporter.commands.arguments import Parser
from exporter.errors import UsageError
from rank_probe.version import __version__
from rankskew.commands.table import COMMANDS, load
from rankskew.extras import needing

EXAMPLES: Final = """\
rankskew exporter
rankskew files /etc/prometheus/rankskew
rankskew COMMAND --help"""
# How alike two names must be for one to be a typing error of the other.
ALIKE: Final = 0.5


def parser() -> Parser:
    """Return the parser of the command's name; each command has a parser of its own."""
    commands = "\n".join(f"  {name:<16}{each.sentence}" for name, each in COMMANDS.items())
    options = Parser(
        prog="rankskew",
        description="Names the late rank of a multi-GPU PyTorch job, its stage and its cost.",
        epilog=f"commands:\n{commands}",
        examples=EXAMPLES,
    )
    options.add_argument("--version", action="version", version=f"rankskew {__version__}")
    options.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    options.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return options


def run(arguments: Sequence[str]) -> int:
    """Run the command in *arguments*; raises UsageError or StartError for what it cannot do."""
    if not arguments:
        parser().print_help()
        return 0
    options = parser().parse_args(arguments)
    if options.command not in COMMANDS:
        raise UsageError(_unknown(options.command))
    with needing(COMMANDS[options.command].extra):
        status: int = load(options.command).run(options.arguments)
    return status


def _unknown(name: str) -> str:
    alike = difflib.get_close_matches(name, COMMANDS, 1, ALIKE)
    hint = f"did you mean {alike[0]!r}?" if alike else "see rankskew --help"
    return f"there is no command {name!r}; {hint}"
