"""The command line of `rankskew`. It imports nothing that the base install lacks until needed."""

import argparse
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final, NoReturn

from exporter.bundle import bundled, write_files
from exporter.errors import UsageError
from exporter.operator.control_command import default_endpoint, give_order
from exporter.operator.gpus_command import forget, release, resume
from exporter.operator.levels import Order
from exporter.replay.progress import ProgressLine
from exporter.replay.promtool import rule_files
from exporter.replay.replay import Replay, as_json, replay
from exporter.replay.report import report
from exporter.replay.traces import Run, read_traces
from exporter.settings import Settings, duration_seconds, flags
from rank_probe.snapshot import LEVELS
from rank_probe.version import __version__

WHAT_THEY_DO: Final = (
    "exporter: serve; files: write rules, runbooks, dashboards; control: change what ranks time; "
    "gpus: let go of them for a reset; replay: judge recorded traces"
)
SWITCH: Final = "collector."
SHIPPED: Final = object()


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
    parser.add_argument("command", choices=COMMANDS, help=WHAT_THEY_DO)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="COMMAND --help lists them")
    options = parser.parse_args(arguments)
    return COMMANDS[options.command](options.arguments)


def run_files(arguments: Sequence[str]) -> int:
    """Write what an operator needs beside the exporter: rules, runbooks, dashboards."""
    parser = _Parser(
        prog="rankskew files",
        description="Write the alert rules, runbooks, Alertmanager configuration and dashboards, "
        "and say what to add to rule_files.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory", type=Path, help="where to; made if it is missing, its other files stay"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")
    parser.add_argument(
        "--vmalert",
        action="store_true",
        help="rules for vmalert before 1.92, which knows no keep_firing_for",
    )
    options = parser.parse_args(arguments)
    written = write_files(options.directory, options.overwrite, options.vmalert)
    print(f"{len(written)} files written below {options.directory}")
    rules = f"{options.directory.resolve()}/alerts/rules/*.yaml"
    if options.vmalert:
        print(f"vmalert: add -rule='{rules}'")
    else:
        print(f"Prometheus: add {rules} to rule_files")
    return 0


def run_control(arguments: Sequence[str]) -> int:
    """Change how much the probes of a job's ranks on this node time."""
    parser = _Parser(
        prog="rankskew control",
        description="Change how much the probes of a running job's ranks on this node time: "
        "nothing but a heartbeat (off), the stages (stages), or also every step, into a trace file "
        "(detail).",
        allow_abbrev=False,
    )
    parser.add_argument("job_id")
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("--rank", type=int, help="only this rank (default: all on this node)")
    parser.add_argument(
        "--endpoint",
        default=default_endpoint(),
        help="where the exporter takes snapshots (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    print(give_order(Order(options.job_id, options.level, options.rank), options.endpoint))
    return 0


def run_gpus(arguments: Sequence[str]) -> int:
    """Make the exporter let go of the GPUs for a while, or forget those that were taken out."""
    parser = _Parser(
        prog="rankskew gpus",
        description="As root: make the exporter of this node close the GPUs, so that they can be "
        "reset or reconfigured or their driver reloaded (release), read them again (resume), or "
        "expect no longer those that were taken out for good (forget).",
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=("release", "resume", "forget"))
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="DURATION",
        type=_duration,
        default="10m",
        help="when a release ends by itself (default: %(default)s)",
    )
    parser.add_argument(
        "--endpoint",
        default=default_endpoint(),
        help="the exporter's Unix socket (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.action == "release":
        print(release(options.seconds, options.endpoint))
    else:
        print({"resume": resume, "forget": forget}[options.action](options.endpoint))
    return 0


def _duration(text: str) -> float:
    try:
        return duration_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run_replay(arguments: Sequence[str]) -> int:
    """Judge recorded traces, and account for the waiting in them."""
    parser = _Parser(
        prog="rankskew replay",
        description="Judge recorded traces as the join judges a running job, and say who was slow: "
        "rank, stage, kind, onset, end, GPUs lost. The slowdown is the time of the run over its "
        "time if every named rank had needed no longer than its peers, communication unchanged.",
        allow_abbrev=False,
    )
    parser.add_argument("path", type=Path, nargs="+", help="a CSV file, or a directory of them")
    parser.add_argument(
        "--time-scale",
        metavar="K",
        type=_positive,
        default=1.0,
        help="make the clock and every stage K times slower; a trace of a few seconds needs it "
        "(default: 1)",
    )
    parser.add_argument(
        "--rules",
        metavar="DIR",
        type=Path,
        nargs="?",
        const=SHIPPED,
        help="also evaluate alert rules, with promtool, over what the judge says, and list the "
        "alerts that fire: the rules in DIR, or the shipped ones where --rules comes last",
    )
    parser.add_argument(
        "--scrape-interval",
        metavar="DURATION",
        type=_interval,
        default="15s",
        help="how often the ranks are scraped and the rules evaluated (default: %(default)s)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    rules = None
    if options.rules is not None:
        shipped = options.rules is SHIPPED
        rules = rule_files(bundled("alerts/rules") if shipped else options.rules)
    replays = [
        _replay(run, options.time_scale, rules, options.scrape_interval)
        for run in read_traces(options.path)
    ]
    print(as_json(replays) if options.format == "json" else report(replays))
    return 0


def _replay(run: Run, scale: float, rules: Sequence[Path] | None, interval: float) -> Replay:
    progress = ProgressLine(f"judging job {run.job_id}")
    try:
        return replay(run, scale, rules, interval, progress)
    finally:
        progress.clear()


def _interval(text: str) -> float:
    seconds = _duration(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is no time to wait")
    return seconds


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def run_exporter(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    from exporter.server import serve

    serve(parse_settings(arguments))
    return 0


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings that the flags in *arguments* ask for; raises UsageError."""
    from exporter.collectors.catalog import COLLECTORS

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


COMMANDS: Final = {
    "exporter": run_exporter,
    "files": run_files,
    "control": run_control,
    "gpus": run_gpus,
    "replay": run_replay,
}
