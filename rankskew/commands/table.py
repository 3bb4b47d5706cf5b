"""The commands of `rankskew`, each with one sentence; each is a module of exporter.commands."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {
    "exporter": "serve this node's metrics and take in what its ranks report",
    "files": "write the rules, runbooks and dashboards that belong to this release",
    "control": "change how much the probes of a running job time",
    "gpus": "release the GPUs for a reset, or forget those that were removed",
    "replay": "judge recorded traces: which ranks were late, and at what cost",
    "simulate": "serve a simulated fleet to try dashboards and alerts",
    "diagnose": "say what is wrong with a job, why, and what to do about it",
    "flight-recorder": "name the rank that a hanging collective waits for, from torch's dumps",
    "top": "watch jobs and their ranks in this terminal",
    "report": "look back over weeks of alerts, or over what a job lost",
    "confirm": "say whether an incident of the report was right",
    "completion": "print a completion script for your shell",
}


def load(name: str) -> ModuleType:
    """Return the module of the command *name*, with its parser() and run(arguments)."""
    return import_module(f"exporter.commands.{name.replace('-', '_')}")
