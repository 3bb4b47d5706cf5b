"""The commands of `rankskew`: what each does, where it is, and which extra brings its packages."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

EXPORTER: Final = "exporter"
CLI: Final = "cli"
MCP: Final = "mcp"


class Command(NamedTuple):
    """A command in *module*, with parser() and run(arguments); empty if named after the command.

    The command line knows only the names of these modules, so that the exporter's commands and the
    simulator are not imported before they are needed.
    """

    sentence: str
    module: str = ""
    extra: str = CLI


COMMANDS: Final[Mapping[str, Command]] = {
    "exporter": Command(
        "serve this node's metrics and take in what its ranks report",
        "exporter.commands.exporter",
        EXPORTER,
    ),
    "files": Command("write the rules, runbooks and dashboards that belong to this release"),
    "control": Command(
        "set what the probes of a running job measure, or release the GPUs for a reset",
        "exporter.commands.control",
        EXPORTER,
    ),
    "replay": Command("judge recorded traces: which ranks were late, and at what cost"),
    "simulate": Command(
        "serve a simulated fleet to try dashboards and alerts", "fleet_simulator.command", EXPORTER
    ),
    "diagnose": Command("say what is wrong with a job, why, and what to do about it"),
    "compare": Command("say what a change did to a job's steps"),
    "flight-recorder": Command(
        "name the rank that a hanging collective waits for, from torch's dumps"
    ),
    "top": Command("watch jobs and their ranks in this terminal"),
    "report": Command("look back over weeks of alerts, or over what a job lost"),
    "mcp": Command("let an assistant ask: the Model Context Protocol, read-only", extra=MCP),
}


def load(name: str) -> ModuleType:
    """Return the module of the command *name*, with its parser() and run(arguments)."""
    here = f"{__package__}.{name.replace('-', '_')}"
    return import_module(COMMANDS[name].module or here)
