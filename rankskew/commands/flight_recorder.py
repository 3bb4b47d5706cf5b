"""`rankskew flight-recorder`: name the rank that a collective waits for, from torch's dumps."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json
from exporter.errors import UsageError
from rank_probe.wire.document import as_document
from rankskew.flight_recorder.dumps import read_directory
from rankskew.flight_recorder.match import CollectiveFinding, HangReport, compare_dumps
from rankskew.render import Document, Section, render
from rankskew.wording import counted, few, named_ranks

EXAMPLES: Final = """\
rankskew flight-recorder /tmp/dumps
rankskew flight-recorder /tmp/dumps --json"""
NO_DUMP: Final = (
    "{directory} has no dump, a file named after its rank such as comm_lib_trace_rank_3; torch "
    "writes them when a collective times out if TORCH_FR_BUFFER_SIZE is set: see docs/hang.md"
)
NOTHING: Final = "Nothing is wrong: the ranks have begun the same collectives, and finished them."
NO_ENDS: Final = "The ranks have begun the same collectives; nothing records whether they finished."
PARTIAL: Final = (
    "Nothing is wrong in these dumps, but {missing} left none that can be read, so nobody can tell."
)


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew flight-recorder",
        description="Read the dumps that torch's flight recorder wrote of a hanging job, one per "
        "rank, and name the collective in which the ranks do not agree, the ranks that are "
        "missing from it, and the lines of code. A dump is read as plain data: one that would run "
        "code is refused, and named as one that cannot be read.",
        epilog="exit status: 0 nothing is wrong, 1 a collective is named, 2 cannot tell",
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
    operations = sum(len(dump.entries) for dump in dumps)
    if not operations:
        problem = few(list(unreadable.values()))
        raise UsageError(problem or NO_DUMP.format(directory=options.directory))
    found = compare_dumps(dumps, unreadable)
    as_json = as_document("flight-recorder", asdict(found))
    unknown = any(entry.finished is None for dump in dumps for entry in dump.entries)
    calm = NO_ENDS if unknown else NOTHING
    if found.ranks_without_dump:
        calm = PARTIAL.format(missing=named_ranks(found.ranks_without_dump))
    print(as_json if options.json else render(_in_words(found, operations, calm)))
    return 1 if found.findings else 0 if calm == NOTHING else 2


def _in_words(found: HangReport, operations: int, calm: str) -> Document:
    lines = [*found.unreadable, *([] if found.findings else [calm])]
    sections = [Section(each.sentence, list(_details(each))) for each in found.findings]
    if len(sections) > 1:
        sections.insert(1, Section("What follows may be its consequence:"))
    title = f"{counted(len(found.dumps), 'dump')} with {operations} operations."
    return Document(title, lines, sections)


def _details(found: CollectiveFinding) -> Iterator[str]:
    if found.sizes:
        yield f"{found.operation} {found.sizes}"
    if found.line is not None:
        yield f"begun at {found.line}"
    yield from found.details
    if found.agreed is not None:
        yield f"before it, all ranks agreed on {found.agreed}"
