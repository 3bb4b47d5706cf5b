"""The grammar of `rank-probe audit`, and its exit status."""

import argparse
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rank_probe.audit.checks.catalog import audit
from rank_probe.audit.checks.launch import Launch
from rank_probe.audit.exchange import NoAnswer
from rank_probe.audit.readings.files import NodeMounts
from rank_probe.audit.report import as_json, as_metrics, as_text, failed
from rank_probe.audit.session import Asked, look
from rank_probe.command_line.parser import CommandParser, duration

DESCRIPTION: Final = """\
Say whether this launch could be slow, or hang, because of how it is set up. Under
a launcher the ranks post what they see to the launcher's store, and rank 0 compares
and prints; alone it looks at this node. It starts nothing and changes nothing."""
EXAMPLES: Final = """\
exit status: 0 if nothing fails, 1 if something does, 2 if it could not look;
torchrun turns each of these that is not 0 into 1

examples:
  torchrun --nproc-per-node 8 -m rank_probe audit --workers 8
  srun python -m rank_probe audit --timeout 2m   # with MASTER_ADDR and MASTER_PORT set
  rank-probe audit --ranks 8 --strict            # a node, in a prolog or an init container
  rank-probe audit --json | jq '.checks[] | select(.status == "fail")'
"""


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("audit", DESCRIPTION, EXAMPLES)
    options.add_argument(
        "--workers",
        metavar="NUMBER",
        type=_count,
        default=0,
        help="num_workers of each rank's DataLoader (default: 0)",
    )
    options.add_argument(
        "--pin-memory",
        action="store_true",
        help="the DataLoader pins its batches, in a thread of its own",
    )
    options.add_argument(
        "--ranks",
        metavar="NUMBER",
        type=_count,
        help="without a launcher: how many ranks will run on this node (default: one for each GPU)",
    )
    options.add_argument(
        "--timeout",
        metavar="DURATION",
        type=_seconds,
        default=60.0,
        help="end after this long, such as 60s or 5m, with what is known by then (default: 60s)",
    )
    options.add_argument("--strict", action="store_true", help="let a warning fail the audit")
    options.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_argument(
        "--textfile",
        metavar="PATH",
        type=Path,
        help="write the outcomes as metrics too, for node_exporter's textfile collector",
    )
    options.add_argument(
        "--path.procfs", metavar="PATH", type=Path, default="/proc", help="the node's /proc"
    )
    options.add_argument(
        "--path.sysfs", metavar="PATH", type=Path, default="/sys", help="the node's /sys"
    )
    return options


def run(arguments: Sequence[str]) -> int:
    """Print what was found, on rank 0; return the exit status. Raises WrongCommand."""
    options = parser().parse_args(arguments)
    environment = dict(os.environ)
    asked = Asked(
        workers=options.workers,
        pin_memory=options.pin_memory,
        ranks_here=options.ranks,
        seconds=options.timeout,
        mounts=NodeMounts(vars(options)["path.procfs"], vars(options)["path.sysfs"]),
    )

    def report(launch: Launch) -> int:
        outcomes = audit(launch)
        show = as_json if options.json else as_text
        print(show(launch, outcomes, options.strict), flush=True)
        try:
            if options.textfile:
                _write(options.textfile, as_metrics(outcomes))
        except _NotWritten as error:  # The launch is no worse for it.
            _say(error)
        return int(failed(outcomes, options.strict))

    with _ending_after(options.timeout) as doing:
        try:
            return look(asked, environment, report, doing)
        except NoAnswer as error:
            _say(error)
            return 2


def _say(problem: Exception) -> None:
    print(f"rank-probe: {problem}", file=sys.stderr, flush=True)


class _NotWritten(Exception):
    """The metrics could not be written; one sentence."""


def _write(path: Path, text: str) -> None:
    """Write *text* so that nobody reads half of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise _NotWritten(f"cannot write --textfile {path}: {error.strerror}") from error


@contextmanager
def _ending_after(seconds: float) -> Iterator[Callable[[str], None]]:
    """End the process if the block takes longer: a call into the driver may never return.

    The block tells the function that it gets what it is doing.
    """
    told = ["starting"]

    def end() -> None:
        sentence = f"the audit did not end within {seconds:g} s: it was {told[-1]}"
        os.write(2, f"rank-probe: {sentence}\n".encode())
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield told.append
    finally:
        timer.cancel()


def _seconds(text: str) -> float:
    seconds = duration(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0")
    return seconds


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8")
    return int(text)
