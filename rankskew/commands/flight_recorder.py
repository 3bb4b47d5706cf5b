"""`rankskew flight-recorder`: name the rank that a collective waits for, from torch's dumps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json
from exporter.errors import UsageError
from rankskew.flight_recorder.dumps import read_directory
from rankskew.flight_recorder.groups import ranks_of_job
from rankskew.flight_recorder.match import findings
from rankskew.flight_recorder.report import as_json, as_text
from rankskew.wording import few

EXAMPLES: Final = """\
rankskew flight-recorder /tmp/dumps
rankskew flight-recorder /tmp/dumps --json"""
STATUS: Final = "exit status: 0 nothing is wrong, 1 a collective is named, 2 cannot tell"
NOTHING: Final = (
    "{directory} has no dump, a file named after its rank such as comm_lib_trace_rank_3; torch "
    "writes them when a collective times out if TORCH_FR_BUFFER_SIZE is set: see docs/hang.md"
)


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew flight-recorder",
        description="Read the dumps that torch's flight recorder wrote of a hanging job, one per "
        "rank, and name the collective in which the ranks do not agree, the ranks that are "
        "missing from it, and the lines of code. A dump is read as plain data: one that would run "
        "code is refused, and named as one that cannot be read.",
        epilog=STATUS,
        examples=EXAMPLES,
    )
    options.add_argument(
        "directory",
        type=Path,
        help="directory with one dump per rank of one job; collect them from all nodes",
    )
    add_json(options, "dumps and ranks_without_dump (ranks), and findings, the likely root first")
    return options


def run(arguments: Sequence[str]) -> int:
    """Name the collective in which the ranks of a job do not agree."""
    options = parser().parse_args(arguments)
    dumps, unreadable = read_directory(options.directory)
    if not any(dump.entries for dump in dumps):
        problem = few(list(unreadable.values()))
        raise UsageError(problem or NOTHING.format(directory=options.directory))
    world = ranks_of_job(dumps, unreadable)
    found = findings(dumps, world)
    missing = sorted(world - {dump.rank for dump in dumps})
    show = as_json if options.json else as_text
    print(show(dumps, unreadable, missing, found))
    if found:
        return 1
    return 2 if missing else 0
