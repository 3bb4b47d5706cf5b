"""`rankskew completion`: print the script with which a shell completes commands and flags."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import shtab

from exporter.commands.arguments import Parser
from rank_probe.version import __version__
from rankskew.commands.table import COMMANDS, load
from rankskew.extras import NotInstalled, needing

SHELLS: Final = ("bash", "zsh", "fish")
EXAMPLES: Final = """\
rankskew completion bash > /etc/bash_completion.d/rankskew
rankskew completion zsh > "${fpath[1]}/_rankskew"
rankskew completion fish > ~/.config/fish/completions/rankskew.fish"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew completion",
        description="Print a script that lets your shell complete the commands of rankskew and "
        "their flags. It lists what is installed when you run this: run it again after an upgrade.",
        examples=EXAMPLES,
    )
    options.add_argument("shell", choices=SHELLS)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    options = parser().parse_args(arguments)
    print(shtab.complete(everything(), options.shell))
    return 0


def everything() -> Parser:
    """Return one parser with the arguments of all commands whose packages are installed."""
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
    return whole
