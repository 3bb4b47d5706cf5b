"""The command line of `rankskew`. It imports nothing that the base install lacks until needed."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from exporter.bundle import write_files
from exporter.errors import UsageError
from exporter.settings import Settings, flags
from rank_probe.version import __version__

SWITCH: Final = "collector."


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one line, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def run(arguments: Sequence[str]) -> int:
    """Run the command in *arguments*; raises UsageError or StartError for what it cannot do."""
    parser = _Parser(
        prog="rankskew",
        description="Names the late rank of a multi-GPU PyTorch job, its stage and its cost.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rankskew {__version__}")
    parser.add_argument("command", choices=COMMANDS, help="exporter: serve; files: write rules")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="COMMAND --help lists them")
    options = parser.parse_args(arguments)
    return COMMANDS[options.command](options.arguments)


def run_files(arguments: Sequence[str]) -> int:
    """Write what an operator needs beside the exporter: rules, runbooks, dashboards."""
    parser = _Parser(
        prog="rankskew files",
        description="Write the alert rules, runbooks, Alertmanager configuration and dashboards.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")
    options = parser.parse_args(arguments)
    written = write_files(options.directory, options.overwrite)
    print(f"{len(written)} files written below {options.directory}")
    print(f"Prometheus: add {options.directory.resolve()}/alerts/rules/*.yaml to rule_files")
    return 0


def run_exporter(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    from exporter.server import serve

    serve(parse_settings(arguments))
    return 0


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings that the flags in *arguments* ask for; raises UsageError."""
    from exporter.collectors import COLLECTORS

    parser = _Parser(
        prog="rankskew exporter",
        description="Serve the node's metrics and take in the snapshots of its ranks.",
        allow_abbrev=False,
    )
    for setting, flag in flags():
        help_text = f"{flag.help} (default: {flag.show(setting.default) or 'empty'})"
        parser.add_argument(
            flag.name, dest=setting.name, metavar="VALUE", help=help_text.replace("%", "%%")
        )
    for entry in COLLECTORS:
        parser.add_argument(
            f"--{SWITCH}{entry.name}",
            dest=SWITCH + entry.name,
            default=True,
            action=argparse.BooleanOptionalAction,
            help=entry.help,
        )
    return _settings(vars(parser.parse_args(arguments)))


def _settings(options: dict[str, Any]) -> Settings:
    values: dict[str, Any] = {}
    for setting, flag in flags():
        text = options[setting.name]
        if text is not None:
            try:
                values[setting.name] = flag.parse(text)
            except ValueError as error:
                raise UsageError(f"{flag.name}: {error}") from error
    off = {name.removeprefix(SWITCH) for name, on in options.items() if on is False}
    return Settings(**values, collectors_off=frozenset(off))


COMMANDS: Final = {"exporter": run_exporter, "files": run_files}
