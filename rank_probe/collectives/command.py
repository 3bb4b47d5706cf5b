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
from rank_probe.collectives.guard import keep_away
from rank_probe.collectives.measure import MeasuredLinks, measure, plan
from rank_probe.collectives.world import CANNOT_MEASURE, CannotMeasure, Watchdog, joined, place
from rank_probe.command_line.grammar import WrongCommand
from rank_probe.command_line.parser import CommandParser

SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 60.0
UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
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
    backend = "what carries the collectives (default: nccl if there is a GPU, else gloo)"
    add("--backend", choices=("nccl", "gloo"), help=backend)
    largest = "the largest array (default: 256 MiB with nccl, 16 MiB with gloo)"
    add("--max-bytes", metavar="SIZE", type=parse_bytes, help=largest)
    message = "the message between two ranks (default: 64 MiB with nccl, 4 MiB with gloo)"
    add("--pair-bytes", metavar="SIZE", type=parse_bytes, help=message)
    long = f"measure for about this long in all (default: {SECONDS:.0f})"
    add("--seconds", metavar="N", type=_positive, default=SECONDS, help=long)
    late = f"give up when one step takes longer (default: {TIMEOUT_SECONDS:.0f})"
    add("--timeout", metavar="SECONDS", type=_positive, default=TIMEOUT_SECONDS, help=late)
    beside = "measure although ranks of a job run on the same GPUs; both become slower"
    add("--beside-a-job", action="store_true", help=beside)
    add("--json", action="store_true", help="print one JSON document")
    series = "write series for node_exporter's textfile collector"
    add("--textfile", metavar="FILE.prom", type=Path, help=series)
    return options


def run(arguments: Sequence[str]) -> int:
    """Measure, and print the result on rank 0; return the exit status. Raises WrongCommand."""
    given = parser().parse_args(arguments)
    if given.textfile is not None and not given.textfile.absolute().parent.is_dir():
        raise WrongCommand(f"there is no directory {given.textfile.absolute().parent}", HELP)
    try:
        me = place(os.environ)
    except CannotMeasure as failure:
        _say(str(failure))
        return CANNOT_MEASURE
    # Python's handler would wait until a blocked collective returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Or a store that ends with rank 0 leaves a C++ stack on stderr, beside our sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Libraries say on stdout whom they have met; only our own output goes where stdout led.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    watchdog = Watchdog(me.rank, given.timeout)
    with watchdog.watching():
        try:
            with joined(me, given.backend, given.timeout, watchdog) as world:
                notes = keep_away(world, given.beside_a_job)
                world.connect(given.timeout)
                if world.rank == 0:
                    ranks = report.ranks_on_nodes(world.hosts)
                    _say(f"{ranks} measure with {world.backend}, for {given.seconds:.0f} s or more")
                chosen = plan(
                    world.backend, world.size, given.seconds, given.max_bytes, given.pair_bytes
                )
                result = measure(world, chosen, notes)
                status = world.announce(
                    result and _show(result, given.json, given.textfile, output)
                )
                world.says("the end")
                world.exchange(None)
        except CannotMeasure as failure:
            watchdog.end(str(failure))
        except (RuntimeError, OSError, ValueError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0][:200]
            watchdog.end(
                f"rank {me.rank} cannot go on with {watchdog.doing}: a rank has ended, a link is "
                f"down, or this torch cannot do it ({why})"
            )
    return int(status)


def _show(result: MeasuredLinks, as_json: bool, textfile: Path | None, output: TextIO) -> int:
    """Print and write the result; return the exit status. Raises CannotMeasure."""
    print(report.as_json(result) if as_json else report.as_text(result), file=output, flush=True)
    try:
        if textfile is not None:
            report.write_textfile(textfile, result)
    except OSError as error:
        raise CannotMeasure(f"cannot write {error.filename}: {error.strerror}") from error
    return 1 if result.named else 0


def _say(sentence: str) -> None:
    print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)


def parse_bytes(text: str) -> int:
    """Return the bytes in text such as `4096`, `4KiB` or `4M`; raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 4KiB or 256MiB")
    if not int(found[1]):
        raise argparse.ArgumentTypeError("a size must be at least one byte")
    return int(found[1]) * UNITS[found[2]]


def _positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found
