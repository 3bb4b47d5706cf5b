"""The command line of `rankskew`. It imports no command until that is asked for."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from exporter.commands.arguments import Parser
from rank_probe.version import __version__

# Each is a module of exporter.commands.
COMMANDS: Final = ("exporter", "files", "control", "gpus", "replay", "simulate")
WHAT_THEY_DO: Final = (
    "exporter: serve; files: write rules, runbooks, dashboards; control: change what ranks time; "
    "gpus: release them for a reset; replay: judge recorded traces; "
    "simulate: serve a simulated fleet"
)


def run(arguments: Sequence[str]) -> int:
    """Run the command in *arguments*; raises UsageError or StartError for what it cannot do."""
    parser = Parser(
        prog="rankskew",
        description="Names the late rank of a multi-GPU PyTorch job, its stage and its cost.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rankskew {__version__}")
    parser.add_argument("command", choices=COMMANDS, help=WHAT_THEY_DO)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="COMMAND --help lists them")
    options = parser.parse_args(arguments)
    command = import_module(f"exporter.commands.{options.command}")
    status: int = command.run(options.arguments)
    return status
