"""The grammar of `rank-probe bench-collectives`, and its course."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from rank_probe.collectives import metrics, report
from rank_probe.collectives.guard import keep_away
from rank_probe.collectives.measure import MeasuredLinks, measure
from rank_probe.collectives.measurements.ending import CANNOT_MEASURE, CannotMeasure, Watchdog
from rank_probe.collectives.measurements.plan import (
    SECONDS,
    TIMEOUT_SECONDS,
    MeasurementOptions,
    plan,
)
from rank_probe.collectives.measurements.units import parse_bytes
from rank_probe.collectives.measurements.world import connect, joined, place
from rank_probe.command_line.grammar import WrongCommand
from rank_probe.command_line.parser import CommandParser

HELP: Final = "rank-probe bench-collectives --help"
DESCRIPTION: Final = """\
Time all-reduce, all-gather and reduce-scatter over sizes, and messages between
pairs of ranks, and name the link, rank or node that is slower than its like.
Run it under the launcher of the training job, on the same nodes, before the job."""
EXAMPLES: Final = """\
exit status: 0 if nothing stands out, 1 if a link, rank or node is slow, 2 if nothing could be
measured (torchrun makes a 1 of a 2; --json has "slow")

examples:
  torchrun --nproc-per-node 8 -m rank_probe bench-collectives
  torchrun --nproc-per-node 8 -m rank_probe bench-collectives --seconds 60
  srun python -m rank_probe bench-collectives --json | jq .verdict
"""


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("bench-collectives", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    add(
        "--backend",
        choices=("nccl", "gloo"),
        help="what carries the collectives (default: nccl if there is a GPU, else gloo)",
    )
    add(
        "--max-bytes",
        metavar="SIZE",
        type=_size,
        help="the largest array (default: 256 MiB with nccl, 16 MiB with gloo)",
    )
    add(
        "--pair-bytes",
        metavar="SIZE",
        type=_size,
        help="the message between two ranks (default: 64 MiB with nccl, 4 MiB with gloo)",
    )
    add(
        "--seconds",
        metavar="N",
        type=_positive,
        default=SECONDS,
        help=f"measure for about this long in all (default: {SECONDS:.0f})",
    )
    add(
        "--timeout",
        metavar="SECONDS",
        type=_positive,
        default=TIMEOUT_SECONDS,
        help=f"give up when one step takes longer (default: {TIMEOUT_SECONDS:.0f})",
    )
    add(
        "--beside-a-job",
        action="store_true",
        help="measure although ranks of a job run on the same GPUs; both become slower",
    )
    add("--json", action="store_true", help="print one JSON document")
    add(
        "--textfile",
        metavar="FILE.prom",
        type=Path,
        help="write series for node_exporter's textfile collector",
    )
    return options


def run(arguments: Sequence[str]) -> int:
    """Measure, and print the result on rank 0; return the exit status. Raises WrongCommand."""
    given = parser().parse_args(arguments)
    options = MeasurementOptions(
        max_bytes=given.max_bytes,
        pair_bytes=given.pair_bytes,
        seconds=given.seconds,
    )
    textfile: Path | None = given.textfile
    if textfile is not None and not textfile.absolute().parent.is_dir():
        raise WrongCommand(f"there is no directory {textfile.absolute().parent}", HELP)
    try:
        me = place(os.environ)
    except CannotMeasure as failure:
        _say(str(failure))
        return CANNOT_MEASURE
    # Or a store that ends with rank 0 leaves a C++ stack on stderr, beside our sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Libraries say on stdout whom they have met; only our own output goes where stdout led.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    watchdog = Watchdog(me.rank, given.timeout)
    with watchdog.watching():
        try:
            with joined(me, given.backend, given.timeout, watchdog) as world:
                notes = keep_away(world, me.local_rank, given.beside_a_job)
                connect(world, me, given.timeout)
                if world.rank == 0:
                    _say(
                        f"{world} measure with {world.backend}, for {options.seconds:.0f} s or more"
                    )
                result = measure(world, plan(options, world.backend, world.size), notes)
                status = world.announce(result and _show(result, given.json, textfile, output))
                world.says("the end")
                world.exchange(None)
        except CannotMeasure as failure:
            watchdog.end(str(failure))
        except (RuntimeError, OSError, ValueError) as error:
            watchdog.end(
                f"rank {me.rank} cannot go on with {watchdog.doing}: a rank has ended, a link is "
                f"down, or this torch cannot do it ({_first_line(error)})"
            )
    return int(status)


def _show(
    result: MeasuredLinks,
    as_json: bool,
    textfile: Path | None,
    output: TextIO,
) -> int:
    """Print and write the result; return the exit status. Raises CannotMeasure."""
    print(report.as_json(result) if as_json else report.as_text(result), file=output, flush=True)
    try:
        if textfile is not None:
            metrics.write(textfile, result)
    except OSError as error:
        raise CannotMeasure(f"cannot write {error.filename}: {error.strerror}") from error
    return 1 if result.named else 0


def _say(sentence: str) -> None:
    print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _size(text: str) -> int:
    try:
        found = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found:
        raise argparse.ArgumentTypeError("a size must be at least one byte")
    return found


def _positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found
