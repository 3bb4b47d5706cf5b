"""`rankskew flight-recorder`: name the rank that a collective waits for, from torch's dumps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json
from exporter.errors import UsageError
from rankskew.flight_recorder.dumps import read_directory
from rankskew.flight_recorder.match import findings
from rankskew.flight_recorder.report import as_json, as_text, untold

EXAMPLES: Final = """\
rankskew flight-recorder /tmp/dumps
rankskew flight-recorder /tmp/dumps --json"""
STATUS: Final = "exit status: 0 nothing is wrong, 1 a collective is named, 2 cannot tell"
NOTHING: Final = (
    "{directory} has no dump, a file named after its rank such as comm_lib_trace_rank_3; torch "
    "writes them when a collective times out if TORCH_FR_BUFFER_SIZE is set: see docs/nccl.md"
)


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew flight-recorder",
        description="Read the dumps that torch's flight recorder wrote of a hanging job, one per "
        "rank, and name the collective in which the ranks do not agree, the ranks that are "
        "missing from it, and the lines of code. A dump is read as plain data: one that would run "
        "code is refused.",
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
    dumps = read_directory(options.directory)
    if not any(dump.entries for dump in dumps):
        raise UsageError(NOTHING.format(directory=options.directory))
    found = findings(dumps)
    print(as_json(dumps, found) if options.json else as_text(dumps, found))
    if found:
        return 1
    return 2 if untold(dumps) else 0
