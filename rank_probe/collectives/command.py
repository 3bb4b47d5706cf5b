"""The grammar of `rank-probe bench-collectives`, and its course."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from rank_probe.collectives import report
from rank_probe.collectives.measure import LARGEST_BYTES, MeasuredLinks, measure
from rank_probe.collectives.world import (
    CANNOT_MEASURE,
    CannotMeasure,
    Watchdog,
    chosen,
    joined,
    place,
)
from rank_probe.command_line.grammar import WrongCommand
from rank_probe.command_line.parser import CommandParser, positive_duration

DESCRIPTION: Final = """\
Time all-reduce, all-gather and reduce-scatter over sizes, and messages between
pairs of ranks, and name the link, rank or node that is slower than its like.
Run it under the launcher of the training job, on the same nodes, before the job:
beside a job each slows the other down."""
EXAMPLES: Final = """\
exit status: 0 if nothing stands out, 1 if a link, rank or node is slow, 2 if nothing could be
measured (torchrun makes a 1 of a 2; --json has "slow")

examples:
  torchrun --nproc-per-node 8 -m rank_probe bench-collectives
  torchrun --nproc-per-node 8 -m rank_probe bench-collectives --duration 2m
  srun python -m rank_probe bench-collectives --json | jq .verdict
"""


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("bench-collectives", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    backend = "what carries the collectives (default: nccl if there is a GPU, else gloo)"
    add("--backend", choices=("nccl", "gloo"), help=backend)
    largest = (
        "the largest array, of which a message between two ranks is a quarter (default: 256 with "
        "nccl, 16 with gloo)"
    )
    add("--max-mib", metavar="N", type=_positive, help=largest)
    long = "measure for about this long in all, such as 60s or 5m (default: 30s)"
    add("--duration", metavar="DURATION", type=positive_duration, default=30.0, help=long)
    late = "give up when one step takes longer (default: 60s)"
    add("--timeout", metavar="DURATION", type=positive_duration, default=60.0, help=late)
    add("--json", action="store_true", help="print one JSON document")
    series = "write series for node_exporter's textfile collector"
    add("--textfile", metavar="FILE.prom", type=Path, help=series)
    return options


def run(arguments: Sequence[str]) -> int:
    """Measure, and print the result on rank 0; return the exit status. Raises WrongCommand."""
    given = parser().parse_args(arguments)
    if given.textfile is not None and not given.textfile.absolute().parent.is_dir():
        missing = f"there is no directory {given.textfile.absolute().parent}"
        raise WrongCommand(missing, "rank-probe bench-collectives --help")
    try:
        me = place(os.environ)
        backend = chosen(given.backend)
    except CannotMeasure as failure:
        _say(str(failure))
        return CANNOT_MEASURE
    # Python's handler would wait until a blocked collective returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Libraries say on stdout whom they have met; only our own output goes where stdout led.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    watchdog = Watchdog(me.rank, given.timeout)
    watchdog.start()
    try:
        with joined(me, backend, given.timeout, watchdog) as world:
            if me.rank == 0:
                ranks = report.ranks_on_nodes(world.hosts)
                _say(f"{ranks} measure with {backend}, for {given.duration:.0f} s or more")
            largest = given.max_mib * 2**20 if given.max_mib else LARGEST_BYTES[backend]
            result = measure(world, given.duration, largest)
            if me.rank == 0:
                _show(result, given.json, given.textfile, output)
    except CannotMeasure as failure:
        watchdog.end(str(failure))
    except (RuntimeError, OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        watchdog.end(
            f"rank {me.rank} cannot go on with {watchdog.step}: a rank has ended, a link is "
            f"down, or this torch cannot do it ({why})"
        )
    return int(bool(result.named))


def _show(result: MeasuredLinks, as_json: bool, textfile: Path | None, output: TextIO) -> None:
    """Print and write the result. Raises CannotMeasure."""
    print(report.as_json(result) if as_json else report.as_text(result), file=output, flush=True)
    try:
        if textfile is not None:
            report.write_textfile(textfile, result)
    except OSError as error:
        raise CannotMeasure(f"cannot write {error.filename}: {error.strerror}") from error


def _say(sentence: str) -> None:
    print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
