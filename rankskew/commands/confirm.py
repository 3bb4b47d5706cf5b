"""`rankskew confirm`: say whether an incident was right."""

import argparse
import getpass
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser
from exporter.errors import StartError, UsageError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble
from rankskew.commands.servers import DEFAULT_URL, add_access, patient
from rankskew.report.confirmations import (
    VERDICTS,
    Confirmation,
    Confirmations,
    add,
    default_file,
    read,
)
from rankskew.report.incidents import find
from rankskew.report.times import show

EXAMPLES: Final = """\
rankskew confirm 1112-0604-rha3 yes
rankskew confirm 1110-0604-mvlf no --note "it was the nightly scan"
rankskew confirm --list"""
EPILOG: Final = """\
The status is 0 if it is written down, and 2 if there is no such incident, Prometheus does not
answer or the file cannot be written, or for wrong usage."""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew confirm",
        description="Say whether an incident of rankskew report --shadow was right: yes, no or "
        "unsure. What was said last counts. It is written to a file that several people may share, "
        "and that the report reads.",
        epilog=EPILOG,
        examples=EXAMPLES,
    )
    options.add_argument("incident", nargs="?", help="an id that the report prints")
    options.add_argument("verdict", nargs="?", choices=VERDICTS)
    options.add_argument("--list", action="store_true", help="print what was said of each incident")
    options.add_argument("--note", metavar="TEXT", default="", help="what it was")
    options.add_argument(
        "--by", metavar="NAME", help="who says so (default: the user who runs the command)"
    )
    options.add_argument(
        "--prometheus",
        metavar="URL",
        default=DEFAULT_URL,
        help="the Prometheus that has the incident (default: %(default)s)",
    )
    options.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        default=default_file(),
        help="where it is written (default: %(default)s)",
    )
    options.add_argument(
        "--json", action="store_true", help="print one JSON document: what was written, or the list"
    )
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Write down what somebody says of an incident, or list what was said."""
    options = parser().parse_args(arguments)
    if options.list:
        if options.incident is not None:
            raise UsageError("--list takes no incident")
        return _list(options)
    if options.incident is None or options.verdict is None:
        raise UsageError("say which incident, and yes, no or unsure; or --list")
    alert, who, began = _incident(options)
    said = Confirmation(
        incident=options.incident,
        verdict=options.verdict,
        alert=alert,
        who=who,
        began=began,
        at=round(time.time()),
        by=options.by or _user(),
        note=options.note,
    )
    add(options.file, said)
    if options.json:
        print(as_document("confirm", asdict(said)))
    else:
        print(f"{said.incident}, {_what(said)}: {said.verdict}; written to {options.file}")
    return 0


def _incident(options: argparse.Namespace) -> tuple[str, Mapping[str, str], float]:
    """Return the alert of the incident, of whom it is and when it began; StartError for none."""
    before = read(options.file).newest.get(options.incident)
    if before is not None:
        return before.alert, before.who, before.began
    prometheus = patient(options)
    try:
        found = find(prometheus, options.incident, time.time())
    except Trouble as trouble:
        raise StartError(str(trouble)) from trouble
    if found is None:
        raise StartError(
            f"{prometheus.url} has no incident {options.incident!r}; "
            "rankskew report --shadow prints those that it has"
        )
    return found


def _list(options: argparse.Namespace) -> int:
    said = read(options.file)
    if options.json:
        listed = {
            "file": str(options.file),
            "confirmations": [asdict(each) for each in said.newest.values()],
            "broken_lines": list(said.broken),
        }
        print(as_document("confirm-list", listed))
        return 0
    _print(said, options.file)
    return 0


def _print(said: Confirmations, file: Path) -> None:
    for each in said.newest.values():
        note = f": {each.note}" if each.note else ""
        print(
            f"{each.incident}  {each.verdict:<6}  {_what(each)}, by {each.by or 'nobody'} "
            f"at {show(each.at)} UTC{note}"
        )
    if not said.newest:
        print(f"nothing is written in {file}")
    if said.broken:
        lines = ", ".join(map(str, said.broken))
        print(f"rankskew: {file}: not readable and left out: line {lines}", file=sys.stderr)


def _what(said: Confirmation) -> str:
    who = said.who
    job = f" of job {who['job_id']}" if "job_id" in who else ""
    rank = f" for rank {who['rank']}" if "rank" in who else ""
    node = f" on {who['instance']}" if "instance" in who else ""
    return f"{said.alert}{rank}{node}{job}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A user without a name, as in some containers.
        return ""
