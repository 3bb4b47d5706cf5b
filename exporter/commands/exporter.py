"""`rankskew exporter`: serve."""

import argparse
import logging
from collections.abc import Sequence
from typing import Any, Final

from exporter.collectors.catalog import COLLECTORS
from exporter.commands.arguments import Parser, add_json
from exporter.errors import FAILED, StartError, UsageError
from exporter.log.configure import PLAIN
from exporter.scrape.levels import ALL
from exporter.server import serve
from exporter.settings import Settings, flags
from rank_probe.wire.document import as_document

logger = logging.getLogger(__name__)

SWITCH: Final = "collector."
EXAMPLES: Final = """\
rankskew exporter
rankskew exporter --web.listen-address=127.0.0.1:9917 --log.level=debug
rankskew exporter --web.config.file=/etc/rankskew/web.yaml --config.check
rankskew exporter --ingest.socket=/tmp/rankskew.sock --operator.socket= --path.state="""


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, or check the settings."""
    options = parser().parse_args(arguments)
    if options.config_check:
        return _check(vars(options), options.json)
    if options.json:
        raise UsageError("--json is for --config.check; for a log in JSON pass --log.format=json")
    settings = parse_settings(arguments)
    try:
        serve(settings)
    except (UsageError, StartError) as error:
        if settings.log_format == PLAIN:
            raise
        logger.critical("%s", " ".join(str(error).split()))
        return FAILED
    return 0


def _check(options: dict[str, Any], as_json: bool) -> int:
    values, problems = _values(options)
    from exporter import config_check  # Here: no exporter that serves needs it.

    settings = _settings(values, options)
    problems += config_check.problems(settings)
    warnings = list(config_check.warnings(settings))
    if as_json:
        said = {"ok": not problems, "problems": problems, "warnings": warnings}
        print(as_document("exporter-check", said))
        return int(bool(problems))
    for kind, sentences in (("problem", problems), ("warning", warnings)):
        for sentence in sentences:
            print(f"{kind}: {sentence}")
    if not problems:
        print("ok: the exporter can start with these settings")
    return int(bool(problems))


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
    options.add_argument(
        "--config.check",
        dest="config_check",
        action="store_true",
        help="print all that is wrong with the other flags and the files that they name, and end: "
        "with status 0 if the exporter can start, else 1",
    )
    add_json(options, "ok, problems and warnings of --config.check")
    return options


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings that the flags in *arguments* ask for; raises UsageError."""
    options = vars(parser().parse_args(arguments))
    values, problems = _values(options)
    if problems:
        raise UsageError(problems[0])
    return _settings(values, options)


def _values(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the flags that can be parsed, and what is wrong with the others."""
    values: dict[str, Any] = {}
    problems = []
    for setting, flag in flags():
        text = options[setting.name]
        if text is not None:
            try:
                values[setting.name] = flag.parse(text)
            except ValueError as error:
                problems.append(f"{flag.name}: {error}")
    known = {ALL, *(entry.name for entry in COLLECTORS)}
    for name in sorted(values.get("series_detail", frozenset()) - known):
        problems.append(f"--series.detail: no collector is called {name!r}; --help lists them")
    return values, problems


def _settings(values: dict[str, Any], options: dict[str, Any]) -> Settings:
    switches = {name: on for name, on in options.items() if name.startswith(SWITCH)}
    off = {name.removeprefix(SWITCH) for name, on in switches.items() if not on}
    return Settings(**values, collectors_off=frozenset(off))
