"""`rankskew exporter`: serve, or check the settings and the files that it reads at its start."""

import argparse
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from exporter.collectors.catalog import COLLECTORS
from exporter.commands.arguments import Parser, add_json
from exporter.errors import FAILED, StartError, UsageError
from exporter.ingest import token_file
from exporter.log import PLAIN
from exporter.scrape.levels import ALL
from exporter.server import serve
from exporter.settings import Settings, flags
from exporter.vocabulary.thresholds import read_overrides
from exporter.web.config import read_web_config
from rank_probe.wire.document import as_document

logger = logging.getLogger(__name__)

SWITCH: Final = "collector."
EXAMPLES: Final = """\
rankskew exporter
rankskew exporter --web.listen-address=127.0.0.1:9917 --log.level=debug
rankskew exporter --web.config.file=/etc/rankskew/web.yaml --config.check
rankskew exporter --ingest.socket=/tmp/rankskew.sock --operator.socket= --path.state="""
TOKEN_FLAG = "--ingest.token-file"


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
    settings = _settings(values, options)
    problems += problems_of(settings)
    warnings = list(warnings_of(settings))
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
        help="check the other flags and the files that they name, print every problem and exit: "
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


def problems_of(settings: Settings) -> Iterator[str]:
    """Yield all that keeps the exporter from starting with *settings*, not only the first."""
    if settings.web_config_file:
        yield from read_web_config(Path(settings.web_config_file)).problems
    if settings.ingest_token_file:
        try:
            token_file.read(Path(settings.ingest_token_file), TOKEN_FLAG)
        except (UsageError, StartError) as error:
            yield str(error)
    if settings.thresholds_file:
        try:
            read_overrides(Path(settings.thresholds_file))
        except (UsageError, StartError) as error:
            yield f"--thresholds.file: {error}"
    for directory, file, flag in (
        (settings.path_procfs, "stat", "--path.procfs"),
        (settings.path_sysfs, "devices", "--path.sysfs"),
    ):
        if not Path(directory, file).exists():
            yield f"{flag}: {directory} has no {file}, so nothing is mounted there"


def warnings_of(settings: Settings) -> Iterator[str]:
    """Yield what is amiss although the exporter can start; NVML is not asked, as it can hang."""
    token, state = Path(settings.ingest_token_file), Path(settings.path_state)
    if settings.ingest_token_file and token.is_file():
        yield from token_file.exposures(token, TOKEN_FLAG)
    if settings.path_state and not (state.is_dir() and os.access(state, os.W_OK | os.X_OK)):
        yield (
            f"--path.state: {state} is not a directory that this user may write to, so a GPU that "
            "is lost while the exporter restarts is not noticed: create it, or pass --gpus.expected"
        )
    listed = Path(settings.path_procfs, "driver/nvidia/gpus")
    count = sum(1 for _ in listed.iterdir()) if listed.is_dir() else 0
    if settings.gpus_expected and count != settings.gpus_expected:
        yield (
            f"--gpus.expected is {settings.gpus_expected}, and the driver lists {count} GPUs here"
        )
