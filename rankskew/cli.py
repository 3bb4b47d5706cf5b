"""The command line of `rankskew`, which imports a command only when it is needed."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from exporter.commands.arguments import Parser
from exporter.errors import UsageError
from rank_probe.version import __version__
from rankskew.commands.table import CLI, COMMANDS, load

EXAMPLES: Final = """\
rankskew exporter
rankskew files /etc/prometheus/rankskew
rankskew COMMAND --help
rankskew --print-completion bash > /etc/bash_completion.d/rankskew"""
SHELLS: Final = ("bash", "zsh", "fish")
# Our own packages belong to no extra, so a missing one is a bug.
OURS: Final = ("rank_probe", "exporter", "rankskew", "fleet_simulator")


class NotInstalled(UsageError):
    """A package of an extra cannot be imported here."""


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Let the block import packages of *extra*; raises NotInstalled if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in OURS:
            raise
        raise NotInstalled(
            f"{missing} is not installed: run pip install 'rankskew[{extra}]'"
        ) from error


class PrintCompletion(argparse.Action):
    """Print the script and exit, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *of_option: Any) -> None:
        """Print the script for the shell that was given."""
        print(completion(of_option[1]))
        parser.exit()


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
    options.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        help="print a completion script for this shell",
    )
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
        raise UsageError(f"there is no command {options.command!r}; see rankskew --help")
    with needing(COMMANDS[options.command].extra):
        status: int = load(options.command).run(options.arguments)
    return status


def completion(shell: str) -> str:
    """Return the completion script of the commands whose packages are installed."""
    with needing(CLI):
        import shtab
    whole = Parser(prog="rankskew")
    whole.add_argument("--version", action="version", version=__version__, help="show the version")
    commands = whole.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        try:
            with needing(command.extra):
                own = load(name).parser()
        except NotInstalled:
            continue
        for action in own._actions:
            if action.type is Path:
                vars(action)["complete"] = shtab.FILE  # Where shtab looks for it.
        commands.add_parser(name, help=command.sentence, parents=[own], add_help=False)
    return str(shtab.complete(whole, shell))
