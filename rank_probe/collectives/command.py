"""`rank-probe bench-collectives`: its options, its run, and a watchdog that ends a hang."""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from rank_probe.audit.exchange import why_not
from rank_probe.command_line.grammar import WrongCommand
from rank_probe.command_line.parser import CommandParser, positive_duration
from rank_probe.process import identity
from rank_probe.process.identity import Identity

# The exit status.
CANNOT_MEASURE: Final = 2
START: Final = "torchrun --nproc-per-node 8 -m rank_probe bench-collectives"
DESCRIPTION: Final = """\
Time all-reduce, all-gather and reduce-scatter over sizes, and messages between
pairs of ranks, and name the link, rank or node that is slower than its like.
Run it under the launcher of the training job, on the same nodes, before the job:
beside a job each slows the other down."""
EXAMPLES: Final = """\
exit status: 0 if nothing stands out, 1 if a link, rank or node is slow, 2 if nothing could be
measured (torchrun makes a 1 of a 2; --json has "slow")

examples:
  torchrun --nproc-per-node 8 -m rank_probe bench-collectives --duration 2m
  srun python -m rank_probe bench-collectives --json | jq .verdict
"""


class CannotMeasure(Exception):
    """Nothing could be measured; one sentence on what is wrong."""


class Watchdog(threading.Thread):
    """Ends the process when a step takes longer than *patience_seconds*."""

    def __init__(self, rank: int, patience_seconds: float) -> None:
        super().__init__(daemon=True)
        self._rank, self._patience = rank, patience_seconds
        self.begins("the start")

    def begins(self, step: str) -> None:
        """Begin the next *step* and restart the timeout."""
        self.step = step
        self._give_up = time.monotonic() + self._patience

    def end(self, sentence: str) -> NoReturn:
        """Print *sentence*, and end this process."""
        _say(sentence)
        os._exit(CANNOT_MEASURE)

    def run(self) -> None:
        """Watch until the process ends."""
        while (left := self._give_up - time.monotonic()) > 0:
            time.sleep(left)
        self.end(
            f"rank {self._rank} waited {self._patience:.0f} s in vain during {self.step}: a rank "
            "has ended or hangs, or a link is down; for slow links raise --timeout or lower "
            "--max-mib"
        )


def place(environment: Mapping[str, str]) -> Identity:
    """Return this process's place; raises CannotMeasure without a launcher, peers or torch."""
    me = identity.from_environment(environment)
    if me is None:
        raise CannotMeasure(f"no launcher has given this process a rank; start it with: {START}")
    if me.world_size < 2:
        raise CannotMeasure(f"one rank alone has no link; start at least two: {START}")
    if problem := why_not(environment):
        raise CannotMeasure(problem)
    return me


def chosen(backend: str | None) -> str:
    """Return *backend*, by default nccl if it can be used, else gloo; raises CannotMeasure."""
    import torch
    from torch import distributed

    can_nccl = torch.cuda.is_available() and distributed.is_nccl_available()
    if backend == "nccl" and not can_nccl:
        raise CannotMeasure("nccl needs a GPU and a torch built with it; use --backend gloo")
    return backend or ("nccl" if can_nccl else "gloo")


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("bench-collectives", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    backend = "what carries the collectives (default: nccl if there is a GPU, else gloo)"
    add("--backend", choices=("nccl", "gloo"), help=backend)
    largest = "the largest array; messages are a quarter (default: 256 with nccl, 16 with gloo)"
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
    from rank_probe.collectives import measure, report

    # Python's handler would wait until a blocked collective returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Libraries log their connections to stdout. Send that to stderr: stdout is for our result.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    watchdog = Watchdog(me.rank, given.timeout)
    watchdog.start()
    try:
        with measure.joined(me, backend, given.timeout, watchdog.begins) as world:
            if me.rank == 0:
                ranks = report.ranks_on_nodes(world.hosts)
                _say(f"{ranks} measure with {backend}, for {given.duration:.0f} s or more")
            largest = given.max_mib * 2**20 if given.max_mib else measure.LARGEST_BYTES[backend]
            result = measure.measure(world, given.duration, largest)
            if me.rank == 0:  # Before another rank exits with 1: torchrun calls it a failure.
                text = report.as_json(result) if given.json else report.as_text(result)
                print(text, file=output, flush=True)
                try:
                    if given.textfile is not None:
                        report.write_textfile(given.textfile, result)
                except OSError as error:
                    watchdog.end(f"cannot write {error.filename}: {error.strerror}")
    except (RuntimeError, OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        watchdog.end(
            f"rank {me.rank} cannot go on with {watchdog.step}: a rank has ended, a link is "
            f"down, or this torch cannot do it ({why})"
        )
    return int(bool(result.named))


def _say(sentence: str) -> None:
    print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
