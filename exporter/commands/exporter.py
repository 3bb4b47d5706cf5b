"""`rankskew exporter`: serve."""

import argparse
import logging
from collections.abc import Sequence
from typing import Any, Final

from exporter.collectors.catalog import COLLECTORS
from exporter.commands.arguments import Parser
from exporter.errors import StartError, UsageError
from exporter.logs.configure import PLAIN
from exporter.server import serve
from exporter.settings import Settings, flags

logger = logging.getLogger(__name__)

SWITCH: Final = "collector."
EXAMPLES: Final = """\
rankskew exporter
rankskew exporter --web.listen-address=127.0.0.1:9917 --log.level=debug
rankskew exporter --ingest.socket=/tmp/rankskew.sock --operator.socket= --path.state="""


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    settings = parse_settings(arguments)
    try:
        serve(settings)
    except (UsageError, StartError) as error:
        if settings.log_format == PLAIN:
            raise
        logger.critical("%s", " ".join(str(error).split()))
        return error.status
    return 0


def parser() -> Parser:
    """Return the parser of its flags."""
    options = Parser(
        prog="rankskew exporter",
        description="Serve the node's metrics and accept the snapshots of its ranks.",
        examples=EXAMPLES,
    )
    for setting, flag in flags():
        help_text = f"{flag.help} (default: {flag.show(setting.default) or 'empty'})"
        options.add_argument(
            flag.name, dest=setting.name, metavar="VALUE", help=help_text.replace("%", "%%")
        )
    for entry in COLLECTORS:
        options.add_argument(
            f"--{SWITCH}{entry.name}",
            dest=SWITCH + entry.name,
            default=True,
            action=argparse.BooleanOptionalAction,
            help=entry.help,
        )
    return options


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings that the flags in *arguments* ask for; raises UsageError."""
    return _settings(vars(parser().parse_args(arguments)))


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
